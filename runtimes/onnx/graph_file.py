"""ONNX graphs read and written without onnx or onnxruntime: what a graph does with its weights,
small graphs, and protobuf.

Field numbers are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

import mmap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from pathlib import Path
from typing import Any

from runtimes.errors import ModelError
from runtimes.models.modelfile import GENAI_CONFIG, read_json, reading
from runtimes.untrusted import check_name, open_regular

# Protobuf messages as bytes, read and written without onnx.
#
# The wire format is https://protobuf.dev/programming-guides/encoding. A file may come from
# anybody: what is read of it is bounded by a `_Budget`, and no message is read because another
# one nests it.

MOST_BYTES = 2**31 - 1  # of a message, as protobuf says
_MOST_NUMBER = 2**29 - 1  # of a field, as protobuf says
_MOST_TEXT = 2**16  # bytes of a name


@dataclass(slots=True)
class _Budget:
    """Budget for parsing one file, far above the largest graphs."""

    fields: int = 2**20
    characters: int = 2**25

    def step(self) -> None:
        """Count one field. Raises ValueError."""
        self.fields -= 1
        if self.fields < 0:
            raise ValueError("it has too many parts")


class ProtoMessage:
    """A message, and the budget of its file. By index: the values of each field, numbers or, where
    they have a length, bytes.

    Raises ValueError or IndexError for what is none.
    """

    def __init__(self, data: Any, budget: _Budget) -> None:
        if not isinstance(data, memoryview):
            raise ValueError("a number stands where a message is expected")
        self._data, self._budget = data, budget

    def items(self) -> Iterator[tuple[int, Any, memoryview]]:
        """Each field's number, its value (None for the kinds that nothing here reads), and all of
        its bytes."""
        data, at = self._data, 0
        while at < len(data):
            self._budget.step()
            begin = at
            key, at = _varint(data, at)
            number, kind = key >> 3, key & 7
            value: Any = None
            if kind == 0:
                value, at = _varint(data, at)
            else:
                size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}.get(kind, -1), at)
                if size < 0 or at + size > len(data):
                    raise ValueError("a field runs past its end")
                value = data[at : at + size] if kind == 2 else None
                at += size
            if not 0 < number <= _MOST_NUMBER:
                raise ValueError(f"there is no field {number}")
            yield number, value, data[begin:at]

    @cached_property
    def _values(self) -> defaultdict[int, list[Any]]:
        found = defaultdict[int, list[Any]](list)
        for number, value, _ in self.items():
            if value is not None:
                found[number].append(value)
        return found

    def __getitem__(self, number: int) -> list[Any]:
        return self._values[number]

    def within(self, data: Any) -> "ProtoMessage":
        """A value of this message, which is one itself."""
        return ProtoMessage(data, self._budget)

    def messages(self, number: int) -> list["ProtoMessage"]:
        """The values of a field that are messages."""
        return [self.within(value) for value in self[number]]

    def number(self, number: int, default: int = 0) -> int:
        """The value of a field that may be given once."""
        value = (self[number] or [default])[-1]
        if not isinstance(value, int):
            raise ValueError("a text stands where a number is expected")
        return value

    def numbers(self, number: int) -> list[int]:
        """The values of a field, one by one or packed one behind the other."""
        found: list[int] = []
        for value in self[number]:
            if isinstance(value, int):
                found.append(value)
                continue
            at = 0
            while at < len(value):
                self._budget.step()
                one, at = _varint(value, at)
                found.append(one)
        return found

    def text(self, number: int) -> str:
        """The text of a field that may be given once."""
        return (self.texts(number) or ("",))[-1]

    def texts(self, number: int) -> tuple[str, ...]:
        """The texts of a field."""
        return tuple(map(self.as_text, self[number]))

    def as_text(self, value: Any) -> str:
        """A value as a name."""
        if not isinstance(value, memoryview) or len(value) > _MOST_TEXT:
            raise ValueError("a name is no text, or too long")
        self._budget.characters -= len(value)
        if self._budget.characters < 0:
            raise ValueError("its names are too long")
        return str(value, "utf-8", errors="replace")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number of 64 bits, which has 10 bytes at most, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise ValueError("a number has more than 10 bytes")


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


# TensorProto.DataType -> bytes of an element, where these are not 4
_ELEMENT_BYTES = {2: 1, 3: 1, 4: 2, 5: 2, 7: 8, 9: 1, 10: 2, 11: 8, 13: 8, 16: 2}
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


def genai_section(folder: Path, *names: str) -> dict[str, Any]:
    """A part of the genai_config.json of ``folder``. Raises ModelError."""
    found = read_json(folder / GENAI_CONFIG)
    for name in names:
        found = found.get(name, {})
        if not isinstance(found, dict):
            raise ModelError(f"{folder / GENAI_CONFIG}: {name} is no object: build the model again")
    return found


def decoder_of(folder: Path) -> dict[str, Any]:
    """The decoder's part of that file. Raises ModelError."""
    decoder, where = genai_section(folder, "model", "decoder"), folder / GENAI_CONFIG
    if "filename" not in decoder:
        raise ModelError(f"{where} lacks 'filename': build the model again")
    if "/" in (name := check_name(decoder["filename"], str(where))):
        raise ModelError(f"{where} names the graph {name}, outside its folder")
    return decoder


def shares_buffers(folder: Path) -> bool:
    """Whether the folder's graph writes keys and values into the past that it is given."""
    return bool(genai_section(folder, "search").get("past_present_share_buffer", True))


def read_graph(path: Path) -> OnnxGraph:
    """Describe the graph file at ``path``; raises ModelError when it is none."""
    with reading(path):
        stamp = path.stat()
    return _read(path, stamp.st_mtime_ns, stamp.st_size)


@lru_cache(maxsize=8)
def _read(path: Path, _changed: int, _size: int) -> OnnxGraph:
    with parsed(path) as model:
        return _describe(model.messages(7)[0])


@contextmanager
def parsed(path: Path) -> Iterator[ProtoMessage]:
    """The message that a graph file is. What is wrong with it is a ModelError, also within."""
    try:
        with open_regular(path) as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        if len(data) > MOST_BYTES:
            raise ValueError(f"it has {len(data):,} bytes, and a graph at most {MOST_BYTES:,}")
        yield ProtoMessage(data, _Budget())
    except (OSError, ValueError, IndexError) as error:
        raise ModelError(f"{path} is not an ONNX graph: {error or 'it ends too early'}") from error


def _describe(graph: ProtoMessage) -> OnnxGraph:
    if len(graph[1]) + len(graph[5]) > _MOST_PARTS:
        raise ValueError("it has too many parts")
    nodes = tuple(map(_node, graph.messages(1)))
    past = (one for one in graph.messages(11) if one.text(1).startswith("past"))
    tensors = (tensor for one in past for kind in one.messages(2) for tensor in kind.messages(1))
    element = next((tensor.number(1) for tensor in tensors), 0)
    return OnnxGraph(
        nodes,
        {tensor.name: tensor for tensor in map(_initializer, graph.messages(5))},
        _ELEMENT_BYTES.get(element, _DEFAULT_ELEMENT_BYTES),
        pruned=any(node.name.startswith(PRUNED) for node in nodes),
    )


def _node(node: ProtoMessage) -> Node:
    numbers = {one.text(1): one.number(3) for one in node.messages(5) if one[3]}
    return Node(node.text(3), node.text(4), node.texts(1), node.texts(2), numbers)


def _initializer(tensor: ProtoMessage) -> Initializer:
    shape = tensor.numbers(1)
    if len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"a constant has {len(shape):,} dimensions")
    raw = [len(value) for value in tensor[9] if isinstance(value, memoryview)]
    external = {one.text(1): one.text(2) for one in tensor.messages(13)}
    computed = prod(shape) * _ELEMENT_BYTES.get(tensor.number(2, 1), _DEFAULT_ELEMENT_BYTES)
    nbytes = int(external.get("length", 0)) or sum(raw) or computed
    if not 0 <= nbytes <= _MOST_SIZE or max(*shape, 0, 0) > _MOST_SIZE:
        raise ValueError("a constant is larger than a file can be")
    return Initializer(tensor.text(8), tuple(shape), nbytes)


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


def any_shape(name: str, element: int) -> bytes:
    """An input or output whose sizes, and how many there are, are found out by a run."""
    return encode(1, name) + encode(2, encode(1, encode(1, element)))


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
