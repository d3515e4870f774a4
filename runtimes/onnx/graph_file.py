"""Read what an ONNX graph does with its weights, without onnx or onnxruntime.

Field numbers are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from runtimes.errors import ModelError
from runtimes.onnx.wire import Fields, fields, last_text, texts, varints

# TensorProto.DataType -> bytes of an element
_ELEMENT_BYTES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}
_DEFAULT_ELEMENT_BYTES = 4
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


def shares_buffers(config: dict[str, Any]) -> bool:
    """Whether the graph of a genai_config.json writes keys and values into the past it is given."""
    return bool(config.get("search", {}).get("past_present_share_buffer", True))


def read_graph(path: Path) -> OnnxGraph:
    """Describe the graph file at ``path``; raises ModelError when it is none."""
    try:
        stamp = path.stat()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    return _read(path, stamp.st_mtime_ns, stamp.st_size)


@lru_cache(maxsize=32)
def _read(path: Path, _changed: int, _size: int) -> OnnxGraph:
    try:
        model = fields(memoryview(path.read_bytes()))
        return _describe(fields(model[7][0]))
    except (OSError, ValueError, IndexError, TypeError) as error:
        raise ModelError(f"{path} is not an ONNX graph: {error or 'it ends too early'}") from error


def _describe(graph: Fields) -> OnnxGraph:
    nodes = tuple(
        Node(last_text(node[3]), last_text(node[4]), texts(node[1]), texts(node[2]), _numbers(node))
        for node in map(fields, graph[1])
    )
    initializers = [_initializer(fields(value)) for value in graph[5]]
    inputs = [fields(value) for value in graph[11]]
    past = (value for value in inputs if last_text(value[1]).startswith("past"))
    return OnnxGraph(
        nodes,
        {tensor.name: tensor for tensor in initializers},
        _ELEMENT_BYTES.get(next(map(_element_type, past), 0), _DEFAULT_ELEMENT_BYTES),
        pruned=any(node.name.startswith(PRUNED) for node in nodes),
    )


def _numbers(node: Fields) -> dict[str, int]:
    attributes = map(fields, node[5])
    return {last_text(one[1]): one[3][-1] for one in attributes if one[3]}


def _initializer(tensor: Fields) -> Initializer:
    shape: list[int] = []
    for value in tensor[1]:  # one by one, or packed
        shape += [value] if isinstance(value, int) else varints(value)
    element = tensor[2][-1] if tensor[2] else 1
    raw = len(tensor[9][-1]) if tensor[9] else 0
    entries = map(fields, tensor[13])
    external = {last_text(entry[1]): last_text(entry[2]) for entry in entries}
    computed = prod(shape) * _ELEMENT_BYTES.get(element, _DEFAULT_ELEMENT_BYTES)
    nbytes = int(external.get("length", 0)) or raw or computed
    return Initializer(last_text(tensor[8]), tuple(shape), nbytes)


def _element_type(value: Fields) -> int:
    """Of an input that is a tensor; 0 for what is none."""
    kinds = fields(value[2][0])[1] if value[2] else []
    types = fields(kinds[0])[1] if kinds else []
    return int(types[0]) if types else 0
