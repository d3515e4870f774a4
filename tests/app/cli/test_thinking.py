"""`ingot run` and `ingot batch` with a model that thinks: the answer is without the thought."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

QUESTION = "What is the capital of France?"


def test_stdout_has_the_answer_only(command: Any, home: Path, pebble_thinks: Path) -> None:
    done = command("run", pebble_thinks, QUESTION)
    assert (done.returncode, done.stdout) == (0, "The capital of France is Paris.\n")
    assert "of thinking" in done.stderr
    assert "Let me" not in done.stderr  # which is no terminal here


def test_json_has_both(command: Any, home: Path, pebble_thinks: Path) -> None:
    said = json.loads(command("run", pebble_thinks, QUESTION, "--json").stdout)
    assert said["text"] == "The capital of France is Paris."
    assert said["reasoning"]
    assert 0 < said["usage"]["reasoning_tokens"] < said["usage"]["completion_tokens"]


def test_it_is_bounded_and_turned_off(command: Any, home: Path, pebble_thinks: Path) -> None:
    bound = ("--think-tokens", "3")
    said = json.loads(command("run", pebble_thinks, QUESTION, "--json", *bound).stdout)
    assert said["reasoning"].endswith("I have to answer now.")
    for off in (("--thinking", "off"), ("--think-tokens", "0")):
        said = json.loads(command("run", pebble_thinks, QUESTION, "--json", *off).stdout)
        assert said["text"]
        assert "reasoning" not in said
    done = command("run", pebble_thinks, QUESTION, "--thinking", "low")
    assert "the chat template knows no effort: low turns thinking on" in done.stderr


def test_rows_have_a_column_of_their_own(
    command: Any, home: Path, pebble_thinks: Path, tmp_path: Path
) -> None:
    turns = [QUESTION, "What is the capital of Italy?"]
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows.write_text("".join(json.dumps({"prompt": row}) + "\n" for row in (QUESTION, turns)))
    asked = ("batch", rows, out, "--model", pebble_thinks, "--max-tokens", "200")
    assert command(*asked, "--think-tokens", "12").returncode == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines[0]["reasoning"]
    for line in lines:
        assert "think>" not in json.dumps([line["response"], line.get("responses", [])])
    resumed = command(*asked, "--thinking", "off")
    assert resumed.returncode == 2
    assert "sampling.thinking: none -> " in resumed.stderr
    assert command(*asked, "--thinking", "off", "--fresh").returncode == 0
    first = json.loads(out.read_text().splitlines()[0])
    assert first["response"]
    assert "reasoning" not in first


def test_what_is_scored_stands_behind_a_thought(
    command: Any, home: Path, pebble_thinks: Path, tmp_path: Path
) -> None:
    row = {"prompt": QUESTION, "continuations": ["The capital of France is Paris.", "<think>"]}
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(row))
    done = command("batch", rows, "-", "--task", "score", "--model", pebble_thinks)
    scores = json.loads(done.stdout)["scores"]
    assert scores[0]["logprob"] > -3  # within the thought nothing of the kind would follow
    assert scores[0]["logprob"] > scores[1]["logprob"]
