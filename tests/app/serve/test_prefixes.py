"""Beginnings of prompts on disk: used after a restart, and only if they are whole and the model's
own."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from app.serve.prefixes import SavedPrefixes
from tests.app.serve.conftest import Running, running

SYSTEM = "You answer questions about the cities of the world. " * 12
QUESTIONS = ("What is the capital of France?", "What is 12 + 30?", "What is the colour of snow?")


def ask(server: Running, question: str) -> tuple[str, int]:
    """The answer, and how many tokens of the prompt were cached."""
    answer = server.client().chat.completions.create(
        model="pebble",
        messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
        max_tokens=12,
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


def test_a_system_prompt_is_not_read_again_after_a_restart(model, saved):
    with running(model, saved, slots=2) as server:
        before = [ask(server, question)[0] for question in QUESTIONS[:2]]
    assert one_file(saved).stat().st_mode & 0o077 == 0
    with running(model, saved, slots=2) as server:
        text, cached = ask(server, QUESTIONS[0])
        assert text == before[0]
        assert cached > 100
        assert ask(server, QUESTIONS[2])[1] > 100


def test_one_prompt_alone_is_not_saved(gguf_file, saved):
    with running({"pebble": gguf_file}, saved, slots=2) as server:
        ask(server, QUESTIONS[0])
    assert not list(saved.glob("*.prefix"))


def test_without_room_nothing_stays(gguf_file, saved):
    with running({"pebble": gguf_file}, saved, slots=2, saved_mb=0) as server:
        for question in QUESTIONS:
            ask(server, question)
    assert not list(saved.glob("*.prefix"))


def test_another_model_does_not_use_it(gguf_file, onnx_folder, saved):
    with running({"pebble": gguf_file}, saved, slots=2) as server:
        for question in QUESTIONS:
            ask(server, question)
    assert list(saved.glob("*.prefix"))
    with running({"pebble": onnx_folder}, saved, slots=2) as server:
        assert ask(server, QUESTIONS[0])[1] == 0


def test_damaged_files_are_never_used_and_go(gguf_file, saved):
    with running({"pebble": gguf_file}, saved, slots=2) as server:
        right = [ask(server, question)[0] for question in QUESTIONS]
    path = one_file(saved)
    whole = path.read_bytes()
    header = whole.index(b"\n")
    chosen = random.Random(5)
    with running({"pebble": gguf_file}, saved, slots=2) as server:
        ask(server, QUESTIONS[0])
        [served] = server.pool.loaded().values()
        for number in range(40):
            damaged = bytearray(whole)
            at = chosen.randrange(header) if number % 2 else chosen.randrange(len(whole))
            damaged[at] ^= 1 << chosen.randrange(8)
            cut = len(damaged) if number % 4 else chosen.randrange(len(damaged))
            path.write_bytes(damaged[:cut])
            served.engine.trim()
            server.generator.prefixes = SavedPrefixes(saved, 10**9, worth_s=0.0)
            text, cached = ask(server, QUESTIONS[number % 3])
            assert text == right[number % 3]
            assert cached == 0
