"""Read what an ONNX graph does with its weights, without onnx or onnxruntime.

Field numbers are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto; the wire format
is https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from runtimes.errors import ModelError

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


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """``cache_bytes`` is the size of one element of the keys and values; ``pruned`` whether logits
    come for a prompt's last position only."""

    nodes: tuple[Node, ...]
    initializers: dict[str, Initializer] = field(repr=False)
    cache_bytes: int
    pruned: bool


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
        data = memoryview(path.read_bytes())
        graph = next(value for number, value in _messages(data) if number == 7)
        return _describe(graph)
    except (OSError, ValueError, IndexError, StopIteration) as error:
        raise ModelError(f"{path} is not an ONNX graph: {error or 'it ends too early'}") from error


def _describe(graph: memoryview) -> OnnxGraph:
    nodes: list[Node] = []
    initializers: dict[str, Initializer] = {}
    cache_bytes = _DEFAULT_ELEMENT_BYTES
    for number, value in _messages(graph):
        if number == 1:
            nodes.append(_node(value))
        elif number == 5:
            tensor = _initializer(value)
            initializers[tensor.name] = tensor
        elif number == 11:
            name, element = _input(value)
            if name.startswith("past") and element in _ELEMENT_BYTES:
                cache_bytes = _ELEMENT_BYTES[element]
    pruned = any(node.name.startswith(PRUNED) for node in nodes)
    return OnnxGraph(tuple(nodes), initializers, cache_bytes, pruned)


def _node(data: memoryview) -> Node:
    inputs: list[str] = []
    outputs: list[str] = []
    name = kind = ""
    for number, value in _messages(data):
        if number == 1:
            inputs.append(_text(value))
        elif number == 2:
            outputs.append(_text(value))
        elif number == 3:
            name = _text(value)
        elif number == 4:
            kind = _text(value)
    return Node(name, kind, tuple(inputs), tuple(outputs))


def _initializer(data: memoryview) -> Initializer:
    name, shape, element, raw, external = "", [], 1, 0, 0
    for number, value in _fields(data):
        if isinstance(value, int):
            if number == 1:
                shape.append(value)
            elif number == 2:
                element = value
        elif number == 1:
            shape += _varints(value)
        elif number == 8:
            name = _text(value)
        elif number == 9:
            raw = len(value)
        elif number == 13:
            key, text = (_text(part) for _, part in _messages(value))
            external = int(text) if key == "length" else external
    computed = prod(shape) * _ELEMENT_BYTES.get(element, _DEFAULT_ELEMENT_BYTES)
    return Initializer(name, tuple(shape), external or raw or computed)


def _input(data: memoryview) -> tuple[str, int]:
    """An input's name and the type of its elements; 0 for what is no tensor."""
    name, element = "", 0
    for number, value in _messages(data):
        if number == 1:
            name = _text(value)
        elif number == 2:
            for _, tensor in _messages(value):
                kinds = (v for n, v in _fields(tensor) if n == 1 and isinstance(v, int))
                element = next(kinds, 0)
    return name, element


def _messages(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The fields that have a length: strings, bytes and messages."""
    for number, value in _fields(data):
        if not isinstance(value, int):
            yield number, value


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}.get(kind, -1), at)
        if size < 0 or at + size > len(data):
            raise ValueError("a field runs past its end")
        if kind == 2:
            yield key >> 3, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _varints(data: memoryview) -> list[int]:
    at, values = 0, []
    while at < len(data):
        value, at = _varint(data, at)
        values.append(value)
    return values


def _text(data: memoryview) -> str:
    return bytes(data).decode("utf-8", errors="replace")
