"""ONNX graphs read and written without onnx or onnxruntime: what a graph does with its weights,
small graphs, and protobuf.

Field numbers are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

import mmap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from runtimes.errors import ModelError
from runtimes.models.modelfile import GENAI_CONFIG
from runtimes.untrusted import check_name, open_regular

# Protobuf messages as bytes, read and written without onnx.
#
# The wire format is https://protobuf.dev/programming-guides/encoding. A file may come from
# anybody: what is read of it is bounded by a `ParseWork`, and no message is read because another
# one nests it.

# A message: the values of each field, numbers or, where they have a length, bytes.
Fields = defaultdict[int, list[Any]]

MOST_BYTES = 2**31 - 1  # of a message, as protobuf says
_MOST_NUMBER = 2**29 - 1  # of a field, as protobuf says
_MOST_TEXT = 2**16  # bytes of a name


@dataclass(slots=True)
class ParseWork:
    """Budget for parsing one file, far above the largest graphs."""

    fields: int = 2**20
    characters: int = 2**25

    def step(self) -> None:
        """Count one field. Raises ValueError."""
        self.fields -= 1
        if self.fields < 0:
            raise ValueError("it has too many parts")


def fields(data: Any, work: ParseWork) -> Fields:
    """A message's values by their numbers; raises ValueError or IndexError for what is none."""
    found: Fields = defaultdict(list)
    for number, value, _ in items(data, work):
        if value is not None:
            found[number].append(value)
    return found


def items(data: Any, work: ParseWork) -> Iterator[tuple[int, Any, memoryview]]:
    """Each field's number, its value (None for the kinds that nothing here reads), and all of its
    bytes."""
    if not isinstance(data, memoryview):
        raise ValueError("a number stands where a message is expected")
    at, end = 0, len(data)
    while at < end:
        work.step()
        begin = at
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        value: Any = None
        if kind == 0:
            value, at = _varint(data, at)
        else:
            size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}.get(kind, -1), at)
            if size < 0 or at + size > end:
                raise ValueError("a field runs past its end")
            value = data[at : at + size] if kind == 2 else None
            at += size
        if not 0 < number <= _MOST_NUMBER:
            raise ValueError(f"there is no field {number}")
        yield number, value, data[begin:at]


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number of 64 bits, which has 10 bytes at most, and where it ends."""
    value = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    for shift in range(7, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise ValueError("a number has more than 10 bytes")


def varints(data: memoryview, work: ParseWork) -> list[int]:
    """Numbers that are packed one behind the other."""
    at, values = 0, []
    while at < len(data):
        work.step()
        value, at = _varint(data, at)
        values.append(value)
    return values


def last_text(values: list[Any], work: ParseWork) -> str:
    """The text of a field that may be given once."""
    return texts(values[-1:], work)[0] if values else ""


def texts(values: list[Any], work: ParseWork) -> tuple[str, ...]:
    """The texts of a field."""
    return tuple(text(data, work) for data in values)


def text(data: Any, work: ParseWork) -> str:
    """A name. Raises ValueError for what is none."""
    if not isinstance(data, memoryview) or len(data) > _MOST_TEXT:
        raise ValueError("a name is no text, or too long")
    work.characters -= len(data)
    if work.characters < 0:
        raise ValueError("its names are too long")
    return str(data, "utf-8", errors="replace")


def encode(number: int, value: int | str | bytes) -> bytes:
    """A field: a number from 0 on, or a text or message with its length."""
    if isinstance(value, int):
        return _encoded(number << 3) + _encoded(value)
    data = value.encode() if isinstance(value, str) else value
    return _encoded(number << 3 | 2) + _encoded(len(data)) + data


def _encoded(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


# TensorProto.DataType -> bytes of an element
_ELEMENT_BYTES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}
_DEFAULT_ELEMENT_BYTES = 4
_MOST_SIZE = 2**63 - 1  # elements of a constant, and its bytes
_MOST_DIMENSIONS = 16
_MOST_PARTS = 2**17  # nodes and constants
PRUNED = "/lm_head/prune"  # how the builder names the nodes that keep a prompt's last position
# A constant that a session may override: the first position that logits are wanted after. Negative
# numbers count from the end; without an override it is -1, the last position.
LOGITS_FROM = "logits_from"
# The file of a second graph of the same model, for passes of many tokens, beside the decoder's.
WIDE = "wide.onnx"


@dataclass(frozen=True, slots=True)
class Initializer:
    """A constant of the graph: its shape, and its bytes here or in the file beside the graph."""

    name: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Node:
    """One operation: its type, and what it reads and makes in order."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    # Attributes that are integers, from 0 on.
    numbers: dict[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """Inputs, outputs, nodes and initializers of a graph."""

    nodes: tuple[Node, ...]
    initializers: dict[str, Initializer] = field(repr=False)
    cache_bytes: int  # of one element of the keys and values
    pruned: bool  # logits come for a prompt's last position only


def decoder_of(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Read the decoder's part of the genai_config.json of ``folder``. Raises ModelError."""
    decoder = _section(folder, _section(folder, config, "model"), "decoder")
    if "filename" not in decoder:
        raise ModelError(f"{folder / GENAI_CONFIG} lacks 'filename': build the model again")
    name = check_name(decoder["filename"], str(folder / GENAI_CONFIG))
    if "/" in name:
        raise ModelError(f"{folder / GENAI_CONFIG} names the graph {name}, outside its folder")
    return decoder


def shares_buffers(folder: Path, config: dict[str, Any]) -> bool:
    """Whether the graph of a genai_config.json writes keys and values into the past it is given."""
    return bool(_section(folder, config, "search").get("past_present_share_buffer", True))


def _section(folder: Path, config: dict[str, Any], name: str) -> dict[str, Any]:
    value = config.get(name, {})
    if not isinstance(value, dict):
        raise ModelError(f"{folder / GENAI_CONFIG}: {name} is no object: build the model again")
    return value


def read_graph(path: Path) -> OnnxGraph:
    """Describe the graph file at ``path``; raises ModelError when it is none."""
    try:
        stamp = path.stat()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    return _read(path, stamp.st_mtime_ns, stamp.st_size)


@lru_cache(maxsize=8)
def _read(path: Path, _changed: int, _size: int) -> OnnxGraph:
    work = ParseWork()
    try:
        model = fields(mapped(path), work)
        return _describe(fields(model[7][0], work), work)
    except (OSError, ValueError, IndexError) as error:
        raise ModelError(f"{path} is not an ONNX graph: {error or 'it ends too early'}") from error


def mapped(path: Path) -> memoryview:
    """The bytes of a graph file. Raises OSError or ValueError for what cannot be one."""
    with open_regular(path) as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has {len(data):,} bytes, and a graph at most {MOST_BYTES:,}")
    return data


def _describe(graph: Fields, work: ParseWork) -> OnnxGraph:
    if len(graph[1]) + len(graph[5]) > _MOST_PARTS:
        raise ValueError("it has too many parts")
    nodes = tuple(_node(fields(value, work), work) for value in graph[1])
    initializers = [_initializer(fields(value, work), work) for value in graph[5]]
    inputs = [fields(value, work) for value in graph[11]]
    past = (value for value in inputs if last_text(value[1], work).startswith("past"))
    return OnnxGraph(
        nodes,
        {tensor.name: tensor for tensor in initializers},
        _ELEMENT_BYTES.get(
            next((_element_type(value, work) for value in past), 0), _DEFAULT_ELEMENT_BYTES
        ),
        pruned=any(node.name.startswith(PRUNED) for node in nodes),
    )


def _node(node: Fields, work: ParseWork) -> Node:
    attributes = [fields(one, work) for one in node[5]]
    return Node(
        last_text(node[3], work),
        last_text(node[4], work),
        texts(node[1], work),
        texts(node[2], work),
        {last_text(one[1], work): _number(one[3]) for one in attributes if one[3]},
    )


def _number(values: list[Any], default: int = 0) -> int:
    value = values[-1] if values else default
    if not isinstance(value, int):
        raise ValueError("a text stands where a number is expected")
    return value


def _initializer(tensor: Fields, work: ParseWork) -> Initializer:
    shape: list[int] = []
    for value in tensor[1]:  # one by one, or packed
        shape += [value] if isinstance(value, int) else varints(value, work)
    if len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"a constant has {len(shape):,} dimensions")
    element = _number(tensor[2], 1)
    raw = len(tensor[9][-1]) if tensor[9] and isinstance(tensor[9][-1], memoryview) else 0
    entries = [fields(entry, work) for entry in tensor[13]]
    external = {last_text(one[1], work): last_text(one[2], work) for one in entries}
    computed = prod(shape) * _ELEMENT_BYTES.get(element, _DEFAULT_ELEMENT_BYTES)
    nbytes = int(external.get("length", 0)) or raw or computed
    if not 0 <= nbytes <= _MOST_SIZE or max(*shape, 0, 0) > _MOST_SIZE:
        raise ValueError("a constant is larger than a file can be")
    return Initializer(last_text(tensor[8], work), tuple(shape), nbytes)


def _element_type(value: Fields, work: ParseWork) -> int:
    """Return the element type of an input that is a tensor, else 0."""
    kinds = fields(value[2][0], work)[1] if value[2] else []
    types = fields(kinds[0], work)[1] if kinds else []
    return _number(types)


# ONNX graphs as bytes, made without onnx.
#
# Field numbers are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.


FLOAT, INT32, INT64, FLOAT16 = 1, 6, 7, 10  # TensorProto.DataType
FLOATS = {2: FLOAT16, 4: FLOAT}  # by their bytes
MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own operators
_INT = 2  # AttributeProto.AttributeType
_IR_VERSION, _OPSET = 8, 17


def node(
    kind: str,
    inputs: tuple[str, ...],
    outputs: str | tuple[str, ...],
    attributes: bytes = b"",
    domain: str = "",
) -> bytes:
    """A NodeProto, named after its first output; an input that is not given is empty."""
    made = (outputs,) if isinstance(outputs, str) else outputs
    data = b"".join(encode(1, name) for name in inputs) + b"".join(encode(2, o) for o in made)
    data += encode(3, f"{made[0]}/{kind}") + encode(4, kind) + attributes
    return data + encode(7, domain) if domain else data


def integer(name: str, value: int) -> bytes:
    """A node's attribute."""
    return encode(5, encode(1, name) + encode(3, value) + encode(20, _INT))


def value_info(name: str, element: int, *shape: int | str) -> bytes:
    """An input or output; sizes that are texts are found out by a run."""
    sizes = b"".join(encode(1, encode(1 if isinstance(n, int) else 2, n)) for n in shape)
    return encode(1, name) + encode(2, encode(1, encode(1, element) + encode(2, sizes)))


def constant(name: str, element: int, count: int, data: bytes) -> bytes:
    """A vector of the graph."""
    return encode(1, count) + encode(2, element) + encode(8, name) + encode(9, data)


def model(
    nodes: Iterable[bytes],
    inputs: Iterable[bytes],
    outputs: Iterable[bytes],
    constants: Iterable[bytes] = (),
) -> bytes:
    """A file's content."""
    graph = encode(2, "small")
    for number, parts in ((1, nodes), (5, constants), (11, inputs), (12, outputs)):
        graph += b"".join(encode(number, part) for part in parts)
    sets = (encode(2, _OPSET), encode(1, MICROSOFT) + encode(2, 1))
    return encode(1, _IR_VERSION) + encode(7, graph) + b"".join(encode(8, one) for one in sets)
