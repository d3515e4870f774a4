"""Texts that hold escape sequences and markup: what they hold is shown, and nothing of it reaches
the terminal; test_every_action.py looks at that on all screens."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from rich.segment import Segment
from rich.style import Style
from textual.color import Color

from app.tui.textual_patches import ControlFilter
from tests.app.tui.terminal import Terminal
from tests.hostile import HOSTILE, harmful

# Each of the texts in all places would take an hour.
WORST = (
    "PWNED[/x][@click=app.quit]here[/][link=http://evil.test]there[/link]\x1b]2;PWNED\x07\x1b[2J"
    "\x9b31m\u202e\u2028\r\x08\x7f"
)
NAMED = WORST.replace("/", "|")  # as a file can be called


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_line_shows_them_in_its_width(text: str) -> None:
    black = Color(0, 0, 0)
    line = [Segment("│"), Segment(text, Style(link=text)), Segment(" " * 20), Segment("│")]
    made = ControlFilter().apply(line, black)
    assert sum(one.cell_length for one in made) == sum(one.cell_length for one in line)
    assert made[-1] == line[-1]  # the border stays
    assert not any(harmful(one.text) or harmful((one.style or Style()).link or "") for one in made)
    assert "PWNED" in "".join(one.text for one in made).replace("UFdORUQ=", "PWNED")
    plain = [Segment("a"), Segment("é漢字 │", Style(bold=True))]
    assert ControlFilter().apply(plain, black) is plain


def test_the_name_of_a_model_on_a_terminal(pebble_built: Path, home: Path, tmp_path: Path) -> None:
    """In the header, lists, titles and notifications of the real program."""
    model = tmp_path / f"{NAMED}.gguf"
    os.symlink(next(pebble_built.glob("*q8_0*.gguf")), model)
    one = Terminal("chat", model, env={"INGOT_HOME": str(home)})
    try:
        one.wait("PWNED")
        one.press("\x11")
        assert one.ended() == 0
        text = re.sub("\x1b]22;[a-z]+\x07", "", one.written.decode())  # the mouse's pointer
        assert "]2;PWNED" in text
        assert not re.search("\x1b\\]2|\x1b\\[2J|[\x07\x08\x7f-\x9f\u2028\u202e]", text)
    finally:
        one.close()
