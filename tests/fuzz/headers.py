# ruff: noqa: E501
"""Headers of model files that somebody has damaged or made up.

    python -m tests.fuzz.headers SECONDS SEED

Real headers of GGUF files and ONNX folders are taken apart, changed in what they say (types, counts,
lengths, names, order) or in their bytes, and given to everything that looks at a file before it is
loaded. Each of them either describes the file or raises ModelError, within bounds.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
import resource
import shutil
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from app.models.catalog import details, entry_of, file_quality, fit
from quantize.errors import SourceError, UsageError
from quantize.gguf.imatrixfile import read_matrix
from quantize.recipes import bits_per_weight
from quantize.source.open import open_gguf
from runtimes.errors import IngotError, ModelError
from runtimes.llamacpp.context import layers_that_fit
from runtimes.llamacpp.modelfile import peek
from runtimes.models.memory import estimate, require_fit
from runtimes.models.modelfile import GENAI_CONFIG
from runtimes.models.registry import backend_of, read_model
from runtimes.onnx.lora import adapted_graph, products, read_adapter_header
from runtimes.onnx.memory import graph_of
from runtimes.settings import RunnerSettings
from tests.fuzz.cases import built as files_built

_MOST_CPU_S, _MOST_MB = 3.0, 500  # of a case, and of all cases of a process together
_CHUNK = 2000  # cases of a seed
_ALL = 0.1  # the share of cases that everything looks at
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
_COUNTS = (
    0,
    1,
    2,
    3,
    31,
    32,
    255,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**60,
    2**63,
    2**64 - 1,
)
_WORDS = (
    b"", b"\xff\xfe", b"llama", b"qwen3next", b"jamba", b"nemotron_h", b"gemma3", b"mamba", b"rwkv7",
    b"\x1b]0;x\x07", b"a" * 300, b"blk.99999999999999999999.ffn_up.weight", b"bert", b"t5", b"lora",
    b"adapter", b"imatrix", b"x.in_sum2", b"{{ 1 }}" * 50,
)  # fmt: skip
_FLOATS = (0.0, -1.0, 0.5, 32.0, math.nan, math.inf, -math.inf, 1e308)
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
        number = random.choice(_FLOATS)
        return kind, struct.pack(
            "<" + form, 1e30 if abs(number) == 1e308 and form == "f" else number
        )
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


def change_bytes(data: bytes, random: Random) -> bytes:
    """Bytes that are flipped, cut off, repeated or spliced."""
    raw = bytearray(data)
    match random.randrange(6):
        case 0 | 1 if raw:
            for _ in range(random.choice((1, 1, 2, 8))):
                raw[random.randrange(len(raw))] = random.choice(
                    (0, 1, 0x7F, 0x80, 0xFF, random.randrange(256))
                )
        case 2:
            del raw[random.randrange(len(raw) + 1) :]
        case 3 if len(raw) > 8:
            at = random.randrange(len(raw) - 8)
            raw[at : at + 8] = random.choice(_COUNTS).to_bytes(8, "little")
        case 4:
            at = random.randrange(len(raw) + 1)
            raw[at:at] = random.choice((b"\xff" * 200, b"\0" * 64, bytes(raw[:100])))
        case _ if raw:
            at, to = sorted(random.randrange(len(raw)) for _ in range(2))
            del raw[at : min(to, at + 64)]
    return bytes(raw)


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
            made.append(_varint(number << 3 | wire))
            if isinstance(value, int):
                made.append(_varint(value))
            else:
                data = value.encoded() if isinstance(value, Message) else value
                made.append((_varint(len(data)) if wire == 2 else b"") + data)
        return b"".join(made)

    def copied(self) -> Message:
        return Message(
            self.kind,
            [(n, w, v.copied() if isinstance(v, Message) else v) for n, w, v in self.items],
        )

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


def _varint(value: int) -> bytes:
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
        other = (*other[:2], other[2].copied())
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


_STRANGE: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**31, 2**64, 10**30, 1.5, math.nan, math.inf, -math.inf, "", "x", "1", [], [1],
    ["a"], {}, {"a": 1}, [[[]]], "../../etc/passwd", "/etc/passwd", "a/b", "*", "**", "\ud800", "\0", "x" * 5000,
)  # fmt: skip


def change_json(value: Any, random: Random) -> None:
    """Put something else in one place."""
    while isinstance(value, dict) and value:
        key = random.choice(list(value))
        if isinstance(value[key], dict) and value[key] and random.random() < 0.9:
            value = value[key]
        elif random.random() < 0.2:
            del value[key]
            return
        else:
            value[key] = copy.deepcopy(random.choice(_STRANGE))
            return


class Cases:
    """Cases made of a seed and a number, in a folder of their own."""

    def __init__(self, folder: Path, built: Path) -> None:
        self.folder = folder
        self.ggufs = [Gguf.read(path) for path in sorted(built.glob("*.gguf"))]
        sample = built / "onnx-int4"
        self.config = json.loads((sample / GENAI_CONFIG).read_text())
        self.tokenizer = json.loads((sample / "tokenizer_config.json").read_text())
        self.model = Message.read((sample / "model.onnx").read_bytes(), "model")
        graph = next(value for _, _, value in self.model.items if isinstance(value, Message))
        kinds: Counter[int] = Counter()
        few = []
        for item in graph.items:  # some of each
            kinds[item[0]] += 1
            if kinds[item[0]] <= 5:
                few.append(item)
        graph.items = few
        self.encoded = self.model.encoded()
        self.onnx = folder / "onnx-int4"
        self.onnx.mkdir(parents=True, exist_ok=True)
        self.gguf = folder / "model-00001-of-00002.gguf"
        (self.onnx / GENAI_CONFIG).write_text(json.dumps(self.config))
        (self.onnx / "model.onnx").write_bytes(self.model.encoded())
        self.like = read_model(self.onnx)

    def write(self, random: Random) -> Path:
        """Make a case and return what is to be looked at."""
        if random.random() < 0.75:
            header = copy.copy(random.choice(self.ggufs))
            header.pairs, header.tensors = list(header.pairs), list(header.tensors)
            for _ in range(random.choice((0, 1, 1, 2, 3))):
                change_gguf(header, random)
            data = header.encoded()
            if random.random() < 0.3:
                data = change_bytes(data, random)
            with self.gguf.open("wb") as file:
                file.write(data)
                if random.random() < 0.8:  # a hole, where the tensors' data would be
                    file.truncate(max(header.size, len(data)))
            return self.gguf
        config, tokenizer = copy.deepcopy(self.config), copy.deepcopy(self.tokenizer)
        model = self.encoded
        for _ in range(random.choice((1, 1, 2))):
            match random.randrange(5):
                case 0:
                    change_json(config, random)
                case 1:
                    change_json(tokenizer, random)
                case 2:
                    model = change_bytes(model, random)
                case _:
                    changed = self.model.copied()
                    change_message(changed, random)
                    model = changed.encoded()
        (self.onnx / GENAI_CONFIG).write_bytes(_json(config, random))
        (self.onnx / "tokenizer_config.json").write_bytes(_json(tokenizer, random))
        (self.onnx / "model.onnx").write_bytes(model)
        return self.onnx

    def look(self, path: Path, all_of_it: bool) -> bool:
        """Do what Ingot does to open a file and estimate its memory, or all that it does to show it,
        plan with it and build from it. Whether it could be opened; raises what may not be raised.
        """
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
            if backend_of(self.like).adapter_problem(self.like, path) is None:
                read_adapter_header(path, self.like)
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
            details(entry, fit(entry, free=2**30))
            file_quality(entry)
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


def _json(value: Any, random: Random) -> bytes:
    data = json.dumps(value).encode()
    if random.random() < 0.05:
        return random.choice(
            (b"[" * 5000, b"{" + data, data[:-2], b"\xff" + data, b"1" * 6000, b"[]")
        )
    return data


def chunk(seed: int, built: Path, count: int = _CHUNK, only: int | None = None) -> Counter[str]:
    """The cases of a seed. Raises AssertionError for one that broke a rule, which stays on disk."""
    figures: Counter[str] = Counter()
    folder = Path(tempfile.mkdtemp(prefix="ingot-headers-", dir=_memory_disk()))
    try:
        cases = Cases(folder, built)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(count) if only is None else [only]:
            random = Random(seed * 10**6 + number)
            path = cases.write(random)
            begun = time.thread_time()
            try:
                opened = cases.look(path, all_of_it=random.random() < _ALL)
                assert time.thread_time() - begun < _MOST_CPU_S, "it takes too long"
                grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
                assert grown < _MOST_MB, f"it takes {grown:.0f} MB"
            except BaseException as error:
                kept = Path(tempfile.mkdtemp(prefix="ingot-headers-failed-")) / path.name
                (shutil.copytree if path.is_dir() else shutil.copyfile)(path, kept)
                raise AssertionError(
                    f"seed {seed}, case {number} ({kept}): {type(error).__name__}: {error}"
                ) from error
            figures["cases"] += 1
            figures["opened" if opened else "refused"] += 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return figures


def _memory_disk() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def run(
    seconds: float, seed: int, built: Path | None = None, most: int = sys.maxsize
) -> dict[str, int]:
    """Cases for so long, or so many, in two processes; returns how many were opened and refused.
    Raises AssertionError, with the seed, the case and where it is kept, for a broken rule."""
    built = built or files_built()
    end, figures = time.monotonic() + seconds, Counter[str]()
    with ProcessPoolExecutor(2) as pool:
        waiting = [pool.submit(chunk, seed + number, built) for number in range(4)]
        while waiting:
            figures += waiting.pop(0).result()
            if begun := os.environ.get("INGOT_FUZZ_BEGUN"):  # that it gets on
                Path(begun).write_text(str(figures["cases"]))
            ahead = figures["cases"] + len(waiting) * _CHUNK
            if time.monotonic() < end and ahead < most:
                seed_next = seed + figures["cases"] // _CHUNK + len(waiting)
                waiting.append(pool.submit(chunk, seed_next, built))
    return dict(figures)


def main() -> None:
    """Print the figures."""
    most = int(sys.argv[3]) if len(sys.argv) > 3 else sys.maxsize
    print(run(float(sys.argv[1]), int(sys.argv[2]), most=most))  # noqa: T201


if __name__ == "__main__":
    main()
