"""Names, titles, prompts and answers that hold escape sequences and markup, on every screen: what
they hold is shown, and nothing of it reaches the terminal or acts."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.screen import Screen

from app.compare.answers import Contender, Side, SideState
from app.tui.screens.compare import ComparePane
from app.tui.services import Start, open_services
from app.tui.textual_patches import ControlFilter
from tests.app.tui import parsed, settling
from tests.app.tui.conftest import Bare
from tests.app.tui.places import places
from tests.app.tui.terminal import Terminal
from tests.app.tui.test_find import REPO, served
from tests.app.tui.test_terminal import MODES
from tests.hostile import HOSTILE, harmful

# Each of the texts in all places would take an hour.
WORST = (
    "PWNED[/x][@click=app.quit]here[/][link=http://evil.test]there[/link]\x1b]2;PWNED\x07\x1b[2J"
    "\x9b31m\u202e\u2028\r\x08\x7f"
)
_TRIED = re.compile(r"PWNED|u2028")  # its begin or its end
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


def drawn(screen: Screen[Any]) -> str:
    """All that is written to the terminal to draw ``screen``; no text of it acts."""
    lines = screen._compositor.render_strips()
    for segment in (one for line in lines for one in line):
        assert not harmful(segment.text), segment
        style = segment.style or Style()
        assert style.link is None, segment
        assert style.meta.get("@click") != "app.quit", segment
    update = screen._compositor.render_full_update()
    written = update.render_segments(screen.app.console)
    assert "\x1b]" not in written
    assert "\x9b" not in written
    return "\n".join(line.text for line in lines)


@pytest.fixture
def built(pebble_built: Path, tmp_path: Path) -> Path:
    """Pebble's files, as somebody else may have named them."""
    folder = tmp_path / "built"
    folder.mkdir()
    made = json.loads((pebble_built / "manifest.json").read_text())
    made["model"]["name"] = made["model"]["architecture"] = WORST
    for entry in list(made["files"]):
        kept = pebble_built / entry["path"]
        match entry["recipe"]:
            case "q8_0":  # a manifest may not name such a file
                made["files"].remove(entry)
                entry["path"] = f"{kept.stem}{NAMED}.gguf"
            case "q4_k_m":
                entry["path"] = f"{kept.stem}[@click=app.quit]PWNED[red].gguf"
                entry["recipe"] = f"q4_k_m{WORST}"
        os.symlink(kept, folder / entry["path"])
    (folder / "manifest.json").write_text(json.dumps(made))
    return folder


def test_no_text_acts_on_any_screen(
    built: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: dict[str, str] = {}

    async def look() -> None:
        with open_services(Start()) as services:
            app = Bare(services)
            async with app.run_test(size=(150, 50)) as pilot:
                async for name, screen in places(pilot, built, said=lambda text: WORST + text):
                    if name.startswith("MonitorScreen"):
                        logging.getLogger("app.tui").warning("a model named %s", WORST)
                        await pilot.pause(1.2)
                    if name == "CompareScreen":
                        await compare(screen, pilot)
                    met[name] = drawn(screen)
                    if name == "CompareScreen that was asked":  # which goes at once
                        continue
                    app.notify(WORST, title=WORST)
                    await pilot.pause()
                    drawn(screen)
                    app.clear_notifications()
                assert app.return_code is None, app._exception

    async def compare(screen: Any, pilot: Any) -> None:
        pane = screen.query(ComparePane).first()
        for state in (SideState.DONE, SideState.FAILED):
            side = Side(WORST, WORST, contender=Contender(WORST), label=WORST, state=state)
            pane.show(side, None, first=True, fastest=None, base=None)
            await pilot.pause()
            assert "PWNED" in drawn(screen)

    folder = tmp_path / "work"
    folder.mkdir()
    (folder / f"{NAMED}.jsonl").touch()
    with served(monkeypatch) as hub:
        # A name with control characters is refused as soon as the hub says it.
        files = {"[@click=app.quit]PWNED[red]-Q4_K_M.gguf": b"GGUF" * 50}
        known = {"total": 200_000, "architecture": WORST, "context_length": 2048}
        tags = ["conversational", f"license:{WORST}"]
        hub.add(REPO, files, downloads=900, gguf=known, tags=tags)
        monkeypatch.chdir(folder)
        settling.patch(monkeypatch)
        parsed.patch(monkeypatch)
        asyncio.run(look())
    without = {name for name, text in met.items() if not _TRIED.search(text)}
    assert without <= CLEAN, "nothing hostile was tried there"


# Screens that show no text from elsewhere.
CLEAN = {
    "an empty chat",
    "SamplingScreen",
    "AttachScreen",
    "ThemeScreen",
    "OverflowScreen",
    "HelpScreen",
    "Palette",
    "BatchScreen",
    "QuantizeScreen with a run",
    "QuantizeScreen: run",
}


def test_the_name_of_a_model_on_a_terminal(pebble_built: Path, home: Path, tmp_path: Path) -> None:
    """In the header, lists, titles and notifications of the real program."""
    model = tmp_path / f"{NAMED}.gguf"
    os.symlink(next(pebble_built.glob("*q8_0*.gguf")), model)
    one = Terminal("chat", model, env={"INGOT_HOME": str(home)})
    try:
        one.wait("PWNED")
        for keys, there in MODES.items():
            one.press(keys)
            one.wait(there)
        one.press("\x11")
        assert one.ended() == 0
        text = re.sub("\x1b]22;[a-z]+\x07", "", one.written.decode())  # the mouse's pointer
        assert "]2;PWNED" in text
        assert not re.search("\x1b\\]2|\x1b\\[2J|[\x07\x08\x7f-\x9f\u2028\u202e]", text)
    finally:
        one.close()
