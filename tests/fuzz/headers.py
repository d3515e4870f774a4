# ruff: noqa: E501
"""Headers of model files that somebody has damaged or made up.

Real headers of GGUF files and ONNX folders are taken apart, changed in what they say (types, counts,
lengths, names, order) or in their bytes, and given to everything that looks at a file before it is
loaded. Each of them either describes the file or raises ModelError, within bounds.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import resource
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from app.models.catalog import details, entry_of, fit, with_bits
from quantize.errors import SourceError, UsageError
from quantize.gguf.imatrixfile import read_matrix
from quantize.recipes import bits_per_weight
from quantize.source.open import open_gguf
from runtimes.errors import IngotError, ModelError
from runtimes.llamacpp.context import layers_that_fit
from runtimes.llamacpp.modelfile import peek
from runtimes.models.memory import estimate, require_fit
from runtimes.models.modelfile import GENAI_CONFIG, ModelFile
from runtimes.models.registry import backend_of, read_model
from runtimes.onnx.lora import adapted_graph, products, read_adapter_header
from runtimes.onnx.memory import graph_of
from runtimes.settings import RunnerSettings
from tests.fuzz.cases import Case, built, loop
from tests.fuzz.mutate import damaged, dumped, mutated

_MOST_MB = 500  # of all cases of a process together
_ALL = 0.1  # the share of cases that everything looks at
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
_COUNTS = (0, 1, 2, 3, *(2**n + d for n in (5, 8, 16, 31, 32, 60, 63, 64) for d in (-1, 0)))[:-1]
_WORDS = (
    b"", b"\xff\xfe", b"llama", b"qwen3next", b"jamba", b"nemotron_h", b"gemma3", b"mamba", b"rwkv7",
    b"\x1b]0;x\x07", b"a" * 300, b"blk.99999999999999999999.ffn_up.weight", b"bert", b"t5", b"lora",
    b"adapter", b"imatrix", b"x.in_sum2", b"{{ 1 }}" * 50,
)  # fmt: skip
_FLOATS = (0.0, -1.0, 0.5, 32.0, math.nan, math.inf, -math.inf, 1e30)
_LAYERS = RunnerSettings(slots=1)


@dataclass
class Gguf:
    """A header in parts. A value is the format's kind and what follows it, as bytes."""

    pairs: list[tuple[bytes, int, bytes]]
    tensors: list[tuple[bytes, tuple[int, ...], int, int]]
    version: int = 3
    tensor_count: int | None = None  # what it says, where that is another
    pair_count: int | None = None
    size: int = 0  # of the whole file
    tail: bytes = b""

    @classmethod
    def read(cls, path: Path, most: int = 4) -> Gguf:
        """The header of a whole file: ``most`` elements of each array, and twice as many tensors."""
        data = path.read_bytes()
        tensors, pairs = struct.unpack_from("<QQ", data, 8)
        found, at = cls([], [], size=len(data)), 24

        def text(at: int) -> tuple[bytes, int]:
            (size,) = struct.unpack_from("<Q", data, at)
            return data[at + 8 : at + 8 + size], at + 8 + size

        for _ in range(pairs):
            key, at = text(at)
            (kind,) = struct.unpack_from("<I", data, at)
            begin = at = at + 4
            if kind == _ARRAY:
                of, length = struct.unpack_from("<IQ", data, at)
                at += 12
                cut = at
                for number in range(length):
                    at = text(at)[1] if of == _STRING else at + struct.calcsize("<" + _SCALARS[of])
                    cut = at if number < most else cut
                value = struct.pack("<IQ", of, min(length, most)) + data[begin + 12 : cut]
            else:
                at = text(at)[1] if kind == _STRING else at + struct.calcsize("<" + _SCALARS[kind])
                value = data[begin:at]
            found.pairs.append((key, kind, value))
        for _ in range(tensors):
            name, at = text(at)
            (dims,) = struct.unpack_from("<I", data, at)
            shape = struct.unpack_from(f"<{dims}Q", data, at + 4)
            kind, offset = struct.unpack_from("<IQ", data, at + 4 + 8 * dims)
            at += 16 + 8 * dims
            found.tensors.append((name, shape, kind, offset))
        del found.tensors[2 * most :]
        return found

    def encoded(self) -> bytes:
        """The header."""
        tensors = len(self.tensors) if self.tensor_count is None else self.tensor_count
        pairs = len(self.pairs) if self.pair_count is None else self.pair_count
        head = [struct.pack("<4sIQQ", b"GGUF", self.version % 2**32, tensors, pairs)]
        head += (_text(key) + struct.pack("<I", kind) + value for key, kind, value in self.pairs)
        for name, shape, kind, offset in self.tensors:
            head.append(_text(name) + struct.pack("<I", len(shape)))
            head.append(struct.pack(f"<{len(shape)}QIQ", *shape, kind, offset))
        return b"".join(head) + self.tail


def _text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def _value(random: Random, depth: int = 0) -> tuple[int, bytes]:
    """A kind and a value of that kind, or nearly."""
    kind = random.choice((*_SCALARS, _STRING, _ARRAY, _ARRAY, random.randrange(20)))
    if kind == _ARRAY and depth < 3:
        of, one = _value(random, depth + 1)
        count = random.choice((0, 1, 2, 5) if depth else (0, 1, 2, 5, 40, 1030))
        said = count if random.random() < 0.8 else random.choice(_COUNTS)
        return kind, struct.pack("<IQ", of, said) + one * count
    if kind == _STRING:
        return kind, _text(random.choice(_WORDS))
    form = _SCALARS.get(kind, "Q")
    if form in "fd":
        return kind, struct.pack("<" + form, random.choice(_FLOATS))
    size = struct.calcsize("<" + form)
    return kind, random.choice(_COUNTS).to_bytes(8, "little")[:size]


def change_gguf(header: Gguf, random: Random) -> None:
    """Say something else in one place."""
    pairs, tensors = header.pairs, header.tensors
    match random.randrange(14):
        case 0 | 1 | 2 | 3 if pairs:
            at = random.randrange(len(pairs))
            pairs[at] = (pairs[at][0], *_value(random))
        case 4 if pairs:
            at = random.randrange(len(pairs))
            kind = random.choice((*_SCALARS, _STRING, _ARRAY, random.randrange(300)))
            pairs[at] = (pairs[at][0], kind, pairs[at][2])
        case 5 if pairs:
            del pairs[random.randrange(len(pairs))]
        case 6 if pairs:
            pairs.insert(random.randrange(len(pairs)), random.choice(pairs))
        case 7:
            key = random.choice(_KEYS)
            arch = next(
                (value[8:] for name, _, value in pairs if name.endswith(b"architecture")), b""
            )
            pairs.append((key.replace(b"ARCH", arch), *_value(random)))
        case 8:
            text = _text(random.choice(_WORDS))
            pairs[:] = [
                (name, kind, text if name == b"general.architecture" else value)
                for name, kind, value in pairs
            ]
        case 9:
            header.tensor_count = random.choice(_COUNTS)
        case 10:
            header.pair_count = random.choice(_COUNTS)
        case 11 | 12 if tensors:
            at = random.randrange(len(tensors))
            name, shape, kind, offset = tensors[at]
            count = random.choice(_COUNTS)
            tensors[at] = random.choice(
                (
                    (random.choice(_WORDS), shape, kind, offset),
                    (name, shape, random.randrange(45), offset),
                    (name, shape, kind, count),
                    (name, (count,) * random.randrange(6), kind, offset),
                    (name, (*shape[1:], count), kind, offset),
                    random.choice(tensors),
                )
            )
        case _:
            header.version = random.choice((0, 1, 2, 3, 4, 2**31))


_KEYS = tuple(
    b"ARCH." + key.encode()
    for key in (
        "block_count embedding_length attention.head_count attention.head_count_kv context_length"
        " attention.key_length attention.value_length attention.sliding_window vocab_size"
        " attention.sliding_window_pattern feed_forward_length expert_used_count"
        " expert_feed_forward_length attention.shared_kv_layers attention.key_length_mla"
        " attention.recurrent_layers full_attention_interval nextn_predict_layers ssm.conv_kernel"
        " ssm.inner_size ssm.state_size ssm.group_count wkv.head_size shortconv.l_cache"
        " kda.head_dim attention.causal token_shift_count"
    ).split()
) + tuple(
    b"general.alignment split.count split.no split.tensors.count general.type adapter.type"
    b" adapter.lora.alpha imatrix.chunk_count imatrix.chunk_size tokenizer.chat_template"
    b" tokenizer.ggml.tokens tokenizer.ggml.merges general.architecture".split()
)


# ONNX: what is a message within another, by field number

_MESSAGES: dict[str, dict[int, str]] = {
    "model": {7: "graph", 8: "opset"},
    "graph": {1: "node", 5: "tensor", 11: "value", 12: "value"},
    "node": {5: "attribute"},
    "tensor": {13: "entry"},
    "value": {2: "type"},
    "type": {1: "tensor_type"},
    "tensor_type": {2: "shape"},
    "shape": {1: "dimension"},
}


@dataclass
class Message:
    """A protobuf message: number, wire type, and a number, bytes or message each."""

    kind: str
    items: list[tuple[int, int, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, data: bytes, kind: str) -> Message:
        found, at = cls(kind), 0
        while at < len(data):
            key, at = _number(data, at)
            number, wire = key >> 3, key & 7
            value: Any
            if wire == 0:
                value, at = _number(data, at)
            else:
                size, at = _number(data, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
                value, at = data[at : at + size], at + size
                inner = _MESSAGES.get(kind, {}).get(number)
                if wire == 2 and inner:
                    value = cls.read(value, inner)
            found.items.append((number, wire, value))
        return found

    def encoded(self) -> bytes:
        made = []
        for number, wire, value in self.items:
            made.append(varint(number << 3 | wire))
            if isinstance(value, int):
                made.append(varint(value))
            else:
                data = value.encoded() if isinstance(value, Message) else value
                made.append((varint(len(data)) if wire == 2 else b"") + data)
        return b"".join(made)

    def all(self) -> Iterator[Message]:
        yield self
        for _, _, value in self.items:
            if isinstance(value, Message):
                yield from value.all()


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return value, at


def varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(made) + bytes([value])


def change_message(model: Message, random: Random) -> None:
    """Say something else in one place."""
    some = [one for one in model.all() if one.items]
    if not some:
        return
    inside, other = random.choice(some), random.choice(random.choice(some).items)
    if isinstance(other[2], Message):
        other = (*other[:2], copy.deepcopy(other[2]))
    at = random.randrange(len(inside.items))
    number, wire, value = inside.items[at]
    inside.items[at] = random.choice(
        (
            (number, 0, random.choice((*_COUNTS, 2**70, 2**700))),
            (number, 2, random.choice(_WORDS)),
            (number, 2, b"\xff" * random.choice((1, 9, 11, 5000))),
            (random.choice((0, 1, 2, 3, 5, 7, 9, 13, 2**29, 2**40)), wire, value),
            (number, 5, b"abcd"),
            (number, 3, value),
            other,
        )
    )
    if random.random() < 0.2:
        inside.items *= random.choice((0, 2, 30))


@dataclass
class _Parts:
    """What cases are made of."""

    ggufs: list[Gguf]
    config: Any
    tokenizer: Any
    model: Message
    like: ModelFile  # that adapters would be of


@cache
def _parts() -> _Parts:
    sample = built() / "onnx-int4"
    config, tokenizer = (
        json.loads((sample / name).read_text()) for name in (GENAI_CONFIG, "tokenizer_config.json")
    )
    model = Message.read((sample / "model.onnx").read_bytes(), "model")
    graph = next(value for _, _, value in model.items if isinstance(value, Message))
    kinds: Counter[int] = Counter()
    few = []
    for item in graph.items:  # some of each
        kinds[item[0]] += 1
        if kinds[item[0]] <= 5:
            few.append(item)
    graph.items = few
    ggufs = [Gguf.read(path) for path in sorted(built().glob("*.gguf"))]
    return _Parts(ggufs, config, tokenizer, model, read_model(sample))


def _write(case: Case) -> Path:
    """Make a case and return what is to be looked at."""
    random, parts = case.random, _parts()
    if random.random() < 0.75:
        header = random.choice(parts.ggufs)
        header = replace(header, pairs=[*header.pairs], tensors=[*header.tensors])
        for _ in range(random.choice((0, 1, 1, 2, 3))):
            change_gguf(header, random)
        data = header.encoded()
        if random.random() < 0.3:
            data = damaged(data, random)
        path = case.write("model-00001-of-00002.gguf", data)
        if random.random() < 0.8:  # a hole, where the tensors' data would be
            with path.open("r+b") as file:
                file.truncate(max(header.size, len(data)))
        return path
    said = {GENAI_CONFIG: parts.config, "tokenizer_config.json": parts.tokenizer}
    model = parts.model.encoded()
    for _ in range(random.choice((1, 1, 2))):
        match random.randrange(5):
            case 0 | 1:
                name = random.choice((*said,))
                said[name] = mutated(said[name], random)
            case 2:
                model = damaged(model, random)
            case _:
                changed = copy.deepcopy(parts.model)
                change_message(changed, random)
                model = changed.encoded()
    for name, value in said.items():
        data = dumped(value, random)
        case.write(f"onnx-int4/{name}", damaged(data, random) if random.random() < 0.05 else data)
    return case.write("onnx-int4/model.onnx", model).parent


def _look(path: Path, all_of_it: bool) -> bool:
    """Do what Ingot does to open a file and estimate its memory, or all that it does to show it,
    plan with it and build from it. Whether it could be opened; raises what may not be raised."""
    like = _parts().like
    try:
        model, said = read_model(path), ""
    except ModelError as error:
        model, said = None, str(error)
    assert model or str(path.parent) in said, f"the file is not named: {said}"
    if path.is_file() and all_of_it:
        start = path.open("rb").read(2**16)
        for size in (len(start), 4000, 600):
            with contextlib.suppress(ModelError):
                estimate(peek(start[:size], path, 10**6), _LAYERS)
        with contextlib.suppress(SourceError, UsageError):
            open_gguf(path, requantize=True)
        if backend_of(like).adapter_problem(like, path) is None:
            read_adapter_header(path, like)
        if b"imatrix" in start or b"in_sum2" in start:
            with contextlib.suppress(UsageError):
                read_matrix(path)
    if model is None:
        return False
    if not all_of_it:
        with contextlib.suppress(ModelError):
            estimate(model, _LAYERS)
        return True
    with contextlib.suppress(ModelError):
        entry = entry_of(path)
        details(entry, fit(entry))
        with_bits(entry)
        bits_per_weight(path, 10**6)
    with contextlib.suppress(IngotError):
        estimate(model, RunnerSettings(slots=64, reproducible=True))
        require_fit(model, RunnerSettings(slots=4), 1000)
    if path.is_file():
        layers_that_fit(model, RunnerSettings(slots=2), 2**24)
    else:
        with contextlib.suppress(ModelError):
            wanted = products(graph_of(model), model)
            adapted_graph(path / "model.onnx", wanted[:3] or [])
    return True


def run(seconds: float, seed: int, count: int | None = None) -> dict[str, int]:
    _parts()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def one(case: Case) -> None:
        opened = _look(_write(case), all_of_it=case.random.random() < _ALL)
        case.figures["opened" if opened else "refused"] += 1
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
        assert grown < _MOST_MB, f"it takes {grown} MB"

    return loop("headers", one, seconds, seed, count)
