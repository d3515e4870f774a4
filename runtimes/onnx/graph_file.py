"""Read what an ONNX graph does with its weights, without onnx or onnxruntime.

Field numbers are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

import mmap
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from runtimes.errors import ModelError
from runtimes.models.modelfile import GENAI_CONFIG
from runtimes.onnx.wire import MOST_BYTES, Fields, ParseWork, fields, last_text, texts, varints
from runtimes.untrusted import check_name, open_regular

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
    """What a graph is made of."""

    nodes: tuple[Node, ...]
    initializers: dict[str, Initializer] = field(repr=False)
    cache_bytes: int  # of one element of the keys and values
    pruned: bool  # logits come for a prompt's last position only


def decoder_of(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """What the genai_config.json of ``folder`` says of the decoder. Raises ModelError."""
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
    """Of an input that is a tensor; 0 for what is none."""
    kinds = fields(value[2][0], work)[1] if value[2] else []
    types = fields(kinds[0], work)[1] if kinds else []
    return _number(types)
