"""What `ingot` and `quantize` say: their help, their refusals, their settings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.golden.shapes import shape

FILES = {
    "noise.gguf": "no model",
    "bad.json": '{"type": ',
    "bad.j2": "{{ prompt",
    "good.j2": "{{ prompt }}",
    "empty.jsonl": "",
    "rows.jsonl": '{"prompt":"What is 1 + 1?"}\n{"prompt":7}\n',
}


def lines(name: str) -> list[str]:
    """Command lines, from a file of this folder."""
    return (Path(__file__).parent / "lines" / f"{name}.txt").read_text().splitlines()


def transcript(said: list[dict[str, Any]]) -> str:
    """As a terminal shows it, without times, and without the spaces that panels end with."""
    whole = "\n".join(f"$ {one['line']}\n{one['out']}{one['err']}[{one['code']}]\n" for one in said)
    whole = re.sub(r'"time": [\d.]+', '"time": 0.0', whole)
    waits = re.compile(r".*(\(\d+ s\)|\d+ s so far)$")  # said on a slow machine
    kept = (line.rstrip() for line in whole.splitlines() if not waits.match(line))
    return "".join(f"{line}\n" for line in kept)


@pytest.mark.usefixtures("drawn")
def test_help(commands: Any, golden: Any) -> None:
    assert transcript(commands(*lines("help"))) == golden


@pytest.mark.usefixtures("drawn")
def test_refusals(commands: Any, folder: Path, pebble_built: Path, golden: Any) -> None:
    (folder / "cut.gguf").write_bytes((pebble_built / "pebble-q8_0.gguf").read_bytes()[:100_000])
    for name, text in FILES.items():
        (folder / name).write_text(text)
    assert transcript(commands(*lines("refusals"))) == golden
    assert not (folder / "out.jsonl").exists()


def test_settings(commands: Any, folder: Path, golden: Any) -> None:
    *said, last = commands(*lines("settings"))
    file = (folder / "home" / "config" / "config.toml").read_text()
    assert transcript(said) + file + shape(json.loads(last["out"])) == golden


def test_lists(commands: Any, golden: Any) -> None:
    assert transcript(commands(*lines("lists"))) == golden
