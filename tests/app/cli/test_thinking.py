"""`ingot run` and `ingot batch` with a model that thinks: the answer is without the thought."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support import read_rows, write_rows

QUESTION = "What is the capital of France?"


def test_one_prompt(command: Any, pebble_thinks: Path) -> None:
    done = command("run", pebble_thinks, QUESTION, "--thinking", "low")
    assert (done.returncode, done.stdout) == (0, "The capital of France is Paris.\n")
    assert "the chat template knows no effort: low turns thinking on" in done.stderr
    assert "of thinking" in done.stderr
    assert "Let me" not in done.stderr  # which is no terminal here

    def said(*how: str) -> Any:
        return json.loads(command("run", pebble_thinks, QUESTION, "--json", *how).stdout)

    both = said()
    assert both["text"] == "The capital of France is Paris."
    assert both["reasoning"]
    assert 0 < both["usage"]["reasoning_tokens"] < both["usage"]["completion_tokens"]
    assert said("--think-tokens", "3")["reasoning"].endswith("I have to answer now.")
    for off in (("--thinking", "off"), ("--think-tokens", "0")):
        found = said(*off)
        assert found["text"]
        assert "reasoning" not in found


def test_rows_have_a_column_of_their_own(command: Any, pebble_thinks: Path, tmp_path: Path) -> None:
    turns = [QUESTION, "What is the capital of Italy?"]
    given: tuple[dict[str, Any], ...] = ({"prompt": QUESTION}, {"prompt": turns})
    rows, out = write_rows(tmp_path / "rows.jsonl", given), tmp_path / "out.jsonl"
    asked = ("batch", rows, out, "--model", pebble_thinks, "--max-tokens", "200")
    assert command(*asked, "--think-tokens", "12").returncode == 0
    lines = read_rows(out)
    assert lines[0]["reasoning"]
    for line in lines:
        assert "think>" not in json.dumps([line["response"], line.get("responses", [])])
    resumed = command(*asked, "--thinking", "off")
    assert resumed.returncode == 2
    assert "sampling.thinking: none -> " in resumed.stderr
    assert command(*asked, "--thinking", "off", "--fresh").returncode == 0
    first = read_rows(out)[0]
    assert first["response"]
    assert "reasoning" not in first


def test_what_is_scored_stands_behind_a_thought(
    command: Any, pebble_thinks: Path, tmp_path: Path
) -> None:
    row = {"prompt": QUESTION, "continuations": ["The capital of France is Paris.", "<think>"]}
    rows = write_rows(tmp_path / "rows.jsonl", [row])
    done = command("batch", rows, "-", "--task", "score", "--model", pebble_thinks)
    scores = json.loads(done.stdout)["scores"]
    assert scores[0]["logprob"] > -3  # within the thought nothing of the kind would follow
    assert scores[0]["logprob"] > scores[1]["logprob"]
