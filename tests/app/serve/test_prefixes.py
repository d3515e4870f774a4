"""Beginnings of prompts on disk: used after a restart, and only if they are whole and the model's
own."""

from __future__ import annotations

import json
import os
import random
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.models.prefixes import SavedPrefixes
from tests.app.serve.conftest import Running, running
from tests.support import read_rows, write_rows

SYSTEM = "You answer questions about the cities of the world. " * 12
QUESTIONS = ("What is the capital of France?", "What is 12 + 30?", "What is the colour of snow?")


def ask(server: Running, question: str) -> tuple[str, int]:
    """The answer, and how many tokens of the prompt were cached."""
    answer = server.client().chat.completions.create(
        model="pebble",
        messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
        max_tokens=4,
    )
    return answer.choices[0].message.content, answer.usage.prompt_tokens_details.cached_tokens


@pytest.fixture(params=["gguf", "onnx"])
def model(request, gguf_file: Path, onnx_folder: Path) -> dict[str, Path]:
    return {"pebble": gguf_file if request.param == "gguf" else onnx_folder}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return tmp_path / "saved"


def one_file(folder: Path) -> Path:
    [path] = folder.glob("*.prefix")
    return path


def test_server_and_batch_use_what_the_other_has_read(
    gguf_file, saved, command, tmp_path, monkeypatch
):
    monkeypatch.setattr("app.batch.run.shared_prefixes", lambda: SavedPrefixes(saved, 10**9, 0.0))
    rows = write_rows(tmp_path / "in.jsonl", [{"prompt": text} for text in QUESTIONS])
    model = {"pebble": gguf_file}

    def batch(name: str) -> list[int]:
        out = tmp_path / name
        words = ["--model", gguf_file, "--system", SYSTEM, "--max-tokens", "4", "--quiet"]
        assert command("batch", rows, out, *words).returncode == 0
        return [record["usage"]["cached_tokens"] for record in read_rows(out)]

    assert min(batch("first.jsonl")) == 0
    with running(model, saved, slots=2) as server:
        assert ask(server, QUESTIONS[0])[1] > 100
    one_file(saved).unlink()
    with running(model, saved, slots=2, saved_mb=0) as server:
        for question in QUESTIONS:
            ask(server, question)
    assert not list(saved.glob("*.prefix"))  # without room nothing stays
    with running(model, saved, slots=2) as server:
        assert ask(server, QUESTIONS[0])[1] == 0
        ask(server, QUESTIONS[1])
    assert min(batch("second.jsonl")) > 100


def flipped(whole: bytes, most: int, chosen: random.Random) -> bytes:
    damaged = bytearray(whole)
    damaged[chosen.randrange(most)] ^= 1 << chosen.randrange(8)
    return bytes(damaged)


def without(whole: bytes, chosen: random.Random) -> bytes:
    """A few bytes of it are zeros that were none."""
    at = chosen.choice([at for at in range(0, len(whole), 97) if whole[at]])
    return whole[:at] + bytes(16) + whole[at + 16 :]


def of_others(whole: bytes, chosen: random.Random, **fields: Any) -> bytes:
    """Whole, but of something else."""
    head, data = whole.split(b"\n", 1)
    told = {**json.loads(head), **fields}
    del told["crc32"]
    crc = zlib.crc32(data, zlib.crc32(json.dumps(told).encode()))
    return json.dumps({**told, "crc32": crc}).encode() + b"\n" + data


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "a bit of the header": lambda whole, chosen: flipped(whole, whole.index(b"\n"), chosen),
    "a bit": lambda whole, chosen: flipped(whole, len(whole), chosen),
    "cut": lambda whole, chosen: whole[: chosen.randrange(len(whole))],
    "zeros": without,
    "longer": lambda whole, chosen: whole + chosen.randbytes(99),
    "noise": lambda whole, chosen: chosen.randbytes(len(whole)),
    "empty": lambda whole, chosen: b"",
    "another model's": partial(of_others, model="0" * 64),
    "another library's": partial(of_others, library="0.0.1"),
    "of another type": partial(of_others, kv_type="q5_1"),
    "of another format": partial(of_others, ingot_session=2),
    "without tokens": partial(of_others, tokens=None),
    "of fewer tokens": partial(of_others, tokens=list(range(100))),
}
FILES: dict[str, Callable[[Path], Any]] = {
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path),
    "a pipe": lambda path: os.mkfifo(path),
    "larger than the disk": lambda path: path.touch() or os.truncate(path, 2**40),
}


def test_a_system_prompt_is_not_read_again_after_a_restart_unless_its_file_is_damaged(
    model, gguf_file, onnx_folder, saved
):
    with running(model, saved, slots=2) as server:
        ask(server, QUESTIONS[0])
    assert not list(saved.glob("*.prefix"))  # one prompt alone is not saved
    with running(model, saved, slots=2) as server:
        right = [ask(server, question)[0] for question in QUESTIONS]
    path = one_file(saved)
    assert path.stat().st_mode & 0o077 == 0
    whole, chosen = path.read_bytes(), random.Random(5)
    with running(model, saved, slots=2) as server:
        text, cached = ask(server, QUESTIONS[0])
        assert text == right[0]
        assert cached > 100

        def is_not_used(number: int, name: str) -> None:
            server.engine().trim()
            server.pool.prefixes = SavedPrefixes(saved, 10**9, worth_s=0.0)
            assert ask(server, QUESTIONS[number % 3]) == (right[number % 3], 0), name
            assert server.engine().deaths == 0

        chosen_of = list(DAMAGES.items())[:: 1 if gguf_file in model.values() else 3]
        for number, (name, damaged) in enumerate(chosen_of):
            path.write_bytes(damaged(whole, chosen))
            is_not_used(number, name)
        for number, (name, make) in enumerate(FILES.items() if os.name == "posix" else ()):
            path.unlink(missing_ok=True)
            make(path)
            is_not_used(number, name)
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
    path.write_bytes(whole)
    other = onnx_folder if model["pebble"] == gguf_file else gguf_file
    with running({"pebble": other}, saved, slots=2) as server:
        assert ask(server, QUESTIONS[0])[1] == 0
