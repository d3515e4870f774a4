"""`ingot run` and `ingot batch` with a model that thinks: the answer is without the thought."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
