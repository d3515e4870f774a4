"""`ingot batch --reproducible`: the same answers however a job is run and stopped."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

ROWS = 20


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    begin = "The following is a list of numbers and what people say of them. " * 12
    lines = (
        json.dumps({"id": i, "turns": [f"{begin if i % 3 else ''}Number {i}?", f"Why {i}?"]})
        for i in range(ROWS)
    )
    path.write_text("\n".join(lines) + "\n")
    return path


def answers(out: Path) -> list[Any]:
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["id"] for record in records] == list(range(ROWS))
    return [(record["responses"], record["logprobs"]) for record in records]


@pytest.mark.parametrize("name", ["pebble-q4_k_m.gguf", "onnx-int4"])
def test_the_same_answers_to_the_last_bit(
    ingot: Any, pebble_built: Path, rows: Path, tmp_path: Path, name: str
) -> None:
    """Two turns a row; slots, order and temperature differ, and one job is killed and resumed."""
    command = ["batch", rows, "--model", pebble_built / name, "--field", "turns"]
    command += ["--reproducible", "--max-tokens", "8", "--logprobs", "--context", "512"]
    command += ["-t", "0.7", "--seed", "1", "--threads", "1", "-q"]
    calm, killed = tmp_path / "calm.jsonl", tmp_path / "killed.jsonl"
    assert ingot(*command[:2], calm, *command[2:], "--slots", "1").returncode == 0

    journal = killed.with_name(killed.name + ".journal.jsonl")
    for finished in (3, 9):
        process = ingot.start(*command[:2], killed, *command[2:], "--slots", "6")
        while process.poll() is None:
            if journal.exists() and journal.read_bytes().count(b'"ok":true') >= finished:
                process.kill()
                break
            time.sleep(0.01)
        process.communicate()
    done = ingot(*command[:2], killed, *command[2:], "--slots", "3")
    assert done.returncode == 0, done.stderr
    assert answers(killed) == answers(calm)
    assert killed.read_bytes() == calm.read_bytes()


def test_what_would_change_answers_is_told(
    command: Any, pebble_built: Path, rows: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    words = ["batch", rows, out, "--model", pebble_built / "pebble-q8_0.gguf", "--limit", "2"]
    words += ["--field", "turns", "--max-tokens", "2", "--reproducible", "-q"]
    assert command(*words, "--threads", "1").returncode == 0
    other = command(*words, "--threads", "2")
    assert other.returncode == 2
    assert "threads: 1 -> 2" in other.stderr
    shared = command(*words, "--unified-kv")
    assert shared.returncode == 2
    assert "--reproducible" in shared.stderr


def test_one_prompt(command: Any, pebble_built: Path) -> None:
    words = ["run", pebble_built / "pebble-q4_k_m.gguf", "What is the capital of France?", "-q"]
    found = {command(*words, "--reproducible", "--max-tokens", "8").stdout for _ in range(2)}
    assert len(found) == 1
    assert found.pop()


@pytest.mark.parametrize("form", ["openai", "csv"])
def test_an_output_of_any_form_is_the_same_byte_for_byte(
    command: Any, gguf_file: Path, rows: Path, tmp_path: Path, form: str
) -> None:
    words = ["batch", rows, "--model", gguf_file, "--field", "turns", "--reproducible", "-q"]
    words += ["--max-tokens", "2", "--context", "512", "--format", form]
    outs = [tmp_path / f"{slots}.out" for slots in (1, 4)]
    for out, slots in zip(outs, (1, 4), strict=True):
        assert command(*words[:2], out, *words[2:], "--slots", slots).returncode == 0
    first, second = (out.read_bytes() for out in outs)
    assert len(first.splitlines()) >= ROWS
    assert first == second
