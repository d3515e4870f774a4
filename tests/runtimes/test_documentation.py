"""What docs/runtimes.md shows runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT


def test_the_example_runs(pebble_built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "runtimes.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.+?)```", text, re.DOTALL)
    assert example.count("assets/pebble-built/") == 1
    example = example.replace("assets/pebble-built", str(pebble_built))
    exec(compile(example, "docs/runtimes.md", "exec"), {"__name__": "example"})
    said = capsys.readouterr().out
    assert said.count("Paris") >= 4  # streamed, twice in a batch, and from the event loop
    assert "cancelled" in said
    assert "tokens were cached" in said
