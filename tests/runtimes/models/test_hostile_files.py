"""Model files that somebody has made to break their reader: each is refused, with its name."""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from app.models.catalog import catalog, fit, with_bits
from quantize.errors import SourceError, UsageError
from quantize.gguf.imatrixfile import read_matrix
from quantize.source.open import open_gguf
from runtimes.errors import ModelError
from runtimes.llamacpp.modelfile import peek
from runtimes.models.gguf import named_parts, read_header
from runtimes.models.memory import estimate
from runtimes.models.modelfile import GENAI_CONFIG
from runtimes.models.registry import read_model
from runtimes.onnx.graph_file import read_graph
from runtimes.onnx.tokenizer import OnnxTokenizer
from runtimes.settings import RunnerSettings
from tests.fuzz.headers import Gguf
from tests.runtimes.models.sparse_gguf import said


@pytest.fixture(scope="module")
def header(gguf: Path) -> Gguf:
    return Gguf.read(gguf)


def write(path: Path, header: Gguf, **changed: Any) -> Path:
    """The header with other values, over a hole where the tensors would be."""
    pairs = [pair for pair in header.pairs if pair[0].decode() not in changed]
    pairs += [(key.encode(), *said(value)) for key, value in changed.items()]
    path.write_bytes(Gguf(pairs, header.tensors).encoded())
    with path.open("r+b") as file:
        file.truncate(header.size)
    return path


STRANGE: dict[str, Any] = {
    "text": "12",
    "empty": "",
    "list": ["a", "b"],
    "no list": [],
    "long list": [("I", 1)] * 2000,
    "lists": [[("I", 1)]],
    "nan": ("f", float("nan")),
    "inf": ("d", float("inf")),
    "-inf": ("f", float("-inf")),
    "negative": ("i", -5),
    "fraction": ("f", 1.5),
    "huge": ("Q", 2**64 - 1),
    "yes": True,
}
NUMBERS = (
    "general.alignment",
    "split.count",
    "llama.block_count",
    "llama.embedding_length",
    "llama.attention.head_count_kv",
    "llama.attention.key_length",
    "llama.feed_forward_length",
    "llama.vocab_size",
)


@pytest.mark.parametrize("key", NUMBERS)
def test_a_number_of_another_kind(header: Gguf, tmp_path: Path, key: str) -> None:
    for name, value in STRANGE.items():
        path = write(tmp_path / "m.gguf", header, **{key: value})
        with pytest.raises(ModelError) as caught:
            read_model(path)
        assert str(path) in str(caught.value)
        assert name == "lists" or key in str(caught.value)
        assert name == "lists" or "download or build it again" in str(caught.value)
        with path.open("rb") as file:
            start = file.read(60_000)
        if not key.startswith(("general.alignment", "split")):
            with pytest.raises(ModelError):
                peek(start, path, 10**6)
        if key == "split.count":
            with pytest.raises(SourceError):
                open_gguf(path, requantize=True)
    (entry,) = (one for one in catalog([path]) if one.path == path)
    assert with_bits(entry).fidelity is None
    with pytest.raises(ModelError):
        fit(entry)


@pytest.mark.parametrize(
    "value", [("I", 7), ["a"], ("f", float("nan")), b"x" * 2_000_000], ids=range(4)
)
@pytest.mark.parametrize("key", ["general.architecture", "tokenizer.chat_template"])
def test_a_text_of_another_kind(header: Gguf, tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(ModelError, match=key):
        read_model(write(tmp_path / "m.gguf", header, **{key: value}))


@pytest.mark.parametrize("arch", ["jamba", "nemotron_h", "qwen3next", "gemma3", "mamba", "rwkv7"])
def test_architectures_with_layers_of_their_own(header: Gguf, tmp_path: Path, arch: str) -> None:
    """Values by layer that are too few, too many, or of another kind."""
    for key in ("feed_forward_length", "attention.head_count_kv", "attention.recurrent_layers"):
        for value in ([("I", 0)], [("I", 1)] * 1000, [("f", 0.5)], [("i", -1)] * 3, "x"):
            changed = {
                "general.architecture": arch,
                f"{arch}.block_count": ("I", 4),
                f"{arch}.embedding_length": ("I", 64),
                f"{arch}.{key}": value,
            }
            path = write(tmp_path / "m.gguf", header, **changed)
            try:
                model = read_model(path)
            except ModelError as error:
                told = str(error)
            else:
                told = key
                assert estimate(model, RunnerSettings(slots=2)).total > 0
            assert key in told


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (8, 2**60, "tensors"),
        (16, 2**60, "pairs"),
        (8, 2**17, "header is damaged|ends in the middle|unknown type"),
        (24, 2**63, "a name has"),
    ],
)
def test_counts_that_the_file_cannot_hold(
    header: Gguf, tmp_path: Path, at: int, value: int, why: str
) -> None:
    path = write(tmp_path / "m.gguf", header)
    data = bytearray(path.read_bytes())
    data[at : at + 8] = value.to_bytes(8, "little")
    path.write_bytes(data)
    begun = time.process_time()
    with pytest.raises(ModelError, match=why):
        read_model(path)
    assert time.process_time() - begun < 5


def test_a_hole_of_a_terabyte_is_not_read(header: Gguf, tmp_path: Path) -> None:
    for of, length in ((8, 2**31), (8, 2**21), (4, 2**36), (9, 2**20)):
        pairs = [*header.pairs, (b"x", 9, struct.pack("<IQ", of, length))]
        path = tmp_path / "m.gguf"
        path.write_bytes(Gguf(pairs, []).encoded())
        with path.open("r+b") as file:
            file.truncate(2**40)
        begun = time.process_time()
        with pytest.raises(ModelError, match=r"m\.gguf"):
            read_model(path)
        assert time.process_time() - begun < 5


def test_what_is_given_twice_or_overlaps(header: Gguf, tmp_path: Path) -> None:
    twice = Gguf([*header.pairs, header.pairs[0]], header.tensors, size=header.size)
    with pytest.raises(ModelError, match="given twice"):
        read_model(write(tmp_path / "m.gguf", twice))
    same = Gguf(header.pairs, [*header.tensors, header.tensors[0]], size=header.size)
    with pytest.raises(ModelError, match="two tensors are called"):
        read_model(write(tmp_path / "m.gguf", same))
    (name, shape, kind, offset), *rest = header.tensors
    many = [(name + bytes([65 + i]), shape, kind, offset) for i in range(20)]
    over = Gguf(header.pairs, [*many, *rest[:1]], size=header.size)
    with pytest.raises(ModelError, match="overlap"):
        read_model(write(tmp_path / "m.gguf", over))


def test_pipes_and_devices_are_not_opened(tmp_path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no pipes with names")
    os.mkfifo(tmp_path / "m.gguf")
    (tmp_path / "zero.gguf").symlink_to("/dev/zero")
    for name in ("m.gguf", "zero.gguf"):
        with pytest.raises(ModelError, match="no regular file"):
            read_header(tmp_path / name)


def test_names_of_parts_that_count_none() -> None:
    path = Path("x-00001-of-00000.gguf")
    assert named_parts(path) == (path,)


def test_an_imatrix_whose_counts_are_no_numbers(tmp_path: Path) -> None:
    pairs = [(b"general.type", *said("imatrix")), (b"imatrix.chunk_count", *said(["a"]))]
    tensors = [(b"a.in_sum2", (8,), 0, 0), (b"a.counts", (1,), 0, 32)]
    path = tmp_path / "i.gguf"
    path.write_bytes(Gguf(pairs, tensors).encoded() + bytes(256))
    with pytest.raises(UsageError, match=r"imatrix\.chunk_count"):
        read_matrix(path)


# ONNX


@pytest.fixture
def folder(pebble_built: Path, tmp_path: Path) -> Path:
    source, heavy = pebble_built / "onnx-int4", shutil.ignore_patterns("*.data")
    return Path(shutil.copytree(source, tmp_path / "onnx-int4", ignore=heavy))


def test_long_numbers_of_protobuf_end_the_reading_at_once(folder: Path) -> None:
    begun = time.process_time()
    for data in (b"\xff" * 20_000_000, b"\x3a" + b"\xff" * 5_000_000, b"\x3a\x80" * 9):
        (folder / "model.onnx").write_bytes(data)
        with pytest.raises(ModelError, match=r"model\.onnx is not an ONNX graph"):
            estimate(read_model(folder), RunnerSettings(slots=1))
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    "graph",
    [
        b"\x0a\x00" * 3_000_000,  # nodes of nothing
        b"\x2a\x00" * 140_000,  # constants
        b"\x2a\x06\x0a\x04\x01\x01\x01\x01" * 140_000,
        b"\x2a" + b"\x84\x80\x80\x01" + b"\x0a\x80\x80\x80\x01" + b"\x01" * 2**21,  # dimensions
        b"\x0a\x05\x1a\x03abc" * 140_000,
        b"\x08\x01",  # a number for a node
        b"\x0a\x02\x18\x01",  # a number for a name
    ],
    ids=range(7),
)
def test_graphs_of_too_many_parts(tmp_path: Path, graph: bytes) -> None:
    size, made = len(graph), bytearray()
    while size > 0x7F:
        made.append(size & 0x7F | 0x80)
        size >>= 7
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x3a" + bytes(made) + bytes([size]) + graph)
    begun = time.process_time()
    with pytest.raises(ModelError, match="is not an ONNX graph"):
        read_graph(path)
    assert time.process_time() - begun < 10


ANY = [None, "x", "12", -7, 2**70, 1.5, float("nan"), float("inf"), [1], {"a": 1}, True]
ELSEWHERE = ["../model.onnx", "/etc/passwd", "a/../model.onnx", "**", "", "."]
SETTINGS: dict[str, list[Any]] = {
    "model.context_length": ANY,
    "model.vocab_size": ANY,
    "model.decoder": ANY,
    "model.decoder.num_attention_heads": ANY,
    "model.decoder.num_hidden_layers": ANY,
    "model.decoder.head_size": ANY,
    "model.decoder.filename": ANY + ELSEWHERE,
    "model.eos_token_id": ["x", [1, "x"], [[1]], 1.5, {"a": 1}, 2**70],
    "search": [value for value in ANY if not isinstance(value, dict)],
}


@pytest.mark.parametrize("key", SETTINGS)
def test_settings_of_another_kind(folder: Path, key: str) -> None:
    whole = (folder / GENAI_CONFIG).read_text()
    *sections, last = key.split(".")
    for value in SETTINGS[key]:
        config = part = json.loads(whole)
        for section in sections:
            part = part[section]
        part[last] = value
        (folder / GENAI_CONFIG).write_text(json.dumps(config))
        if last == "eos_token_id":
            with pytest.raises(ModelError, match=last):
                OnnxTokenizer(folder)
        else:
            with pytest.raises(ModelError, match=r"onnx-int4"):
                estimate(read_model(folder), RunnerSettings(slots=1))


NO_OBJECT = [b"[" * 100_000, b"[]", b"{", b"\xff", b" " * 2**26]
CONTENTS = {
    GENAI_CONFIG: [*NO_OBJECT, b'{"model": {}}', b'{"model": []}'],
    "tokenizer_config.json": NO_OBJECT,
    "tokenizer.json": [b"[" * 100_000, b"{}", b"\xff", b"", b'{"model": {"type": "BPE"}}'],
    "chat_template.jinja": [b"\xff", b"x" * 2**21],
}


@pytest.mark.parametrize("name", CONTENTS)
def test_files_that_are_none(folder: Path, name: str) -> None:
    if name == "tokenizer_config.json":
        (folder / "chat_template.jinja").unlink()  # else nothing is read of it
    for data in CONTENTS[name]:
        (folder / name).write_bytes(data)
        with pytest.raises(ModelError, match=name):
            (OnnxTokenizer if name == "tokenizer.json" else read_model)(folder)
