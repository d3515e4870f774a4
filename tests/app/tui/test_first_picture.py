"""What first pictures are made of: what is imported, and style sheets that are parsed once."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from textual.css import stylesheet

from app.tui import modes
from app.tui.screens.dialogs import ConfirmScreen
from app.tui.textual_patches import SteadyCompositor
from tests.app.tui.chat_app import shown
from tests.app.tui.held import recorded
from tests.app.tui.parsed import parse_rules
from tests.support import wait_until

# What another screen, a message or a loaded model needs.
LATER = {"numpy", "torch", "huggingface_hub", "pydantic", "httpx", "markdown_it"}
LATER |= {"pygments", "llama_cpp", "onnxruntime", "tokenizers"}
OURS_LATER = {mode.module for mode in modes.MODES if mode is not modes.CHAT}
OURS_LATER |= {"app.tui.help", "app.tui.widgets.message_view"}
OURS_LATER |= {"app.models.planning", "app.models.catalog", "app.tui.screens.dialogs"}

DRAWN = """
import sys
from app.cli.main import main
assert main(["chat", sys.argv[1], "--resume", "--raw", "--system", "x"]) == 2
from app.tui.app import IngotApp
from app.tui.textual_patches import SteadyCompositor
from app.tui.services import Start, open_services
names = []
class Drawn(IngotApp):
    async def _begin(self):
        names.extend(sys.modules)
        self.exit()
with open_services(Start(sys.argv[1])) as services:
    Drawn(services).run(headless=True)
print(*names)
"""


def test_the_first_picture_imports_only_what_it_shows(home: Path, gguf_file: Path):
    done = subprocess.run(
        [sys.executable, "-c", DRAWN, str(gguf_file)], capture_output=True, text=True, check=True
    )
    names = set(done.stdout.split())
    assert "app.tui.screens.chat" in names
    assert not LATER & names
    assert not OURS_LATER & names


async def test_each_style_sheet_is_parsed_once(home: Path, monkeypatch: pytest.MonkeyPatch):
    app, _ = recorded(home)
    parsed: Counter[tuple[Any, ...]] = Counter()
    theirs = stylesheet.parse

    def parse(scope: str, css: str, read_from: Any, *rest: Any, **named: Any) -> Any:
        variables = named.pop("variable_tokens")
        parsed[scope, css, read_from, *sorted(named.items())] += 1
        return theirs(scope, css, read_from, *rest, variable_tokens=variables, **named)

    monkeypatch.setattr(stylesheet, "parse", parse)
    monkeypatch.setattr(stylesheet.Stylesheet, "_parse_rules", parse_rules)  # not of other tests
    async with app.run_test() as pilot:
        for mode in modes.MODES:
            await app.switch_mode(mode.name)
            await pilot.pause()
    assert set(parsed.values()) == {1}


async def test_a_screen_is_restyled_by_a_theme_that_changed_while_it_was_away(home: Path):
    app, _ = recorded(home)
    async with app.run_test() as pilot:
        first = app.screen.styles.background
        app.push_screen(ConfirmScreen("Sure?", "Yes"))
        await wait_until(lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.pause()
        panel = app.screen
        box = panel.query_one(".box").styles.background
        await pilot.press("f6")
        await wait_until(lambda: app.current_mode == "monitor")
        app.theme = "ingot-light"
        await pilot.pause()
        light = app.screen.styles.background
        assert light != first
        await pilot.press("f2")
        await wait_until(lambda: app.screen is panel)
        await wait_until(lambda: panel.query_one(".box").styles.background != box)
        panel.dismiss(False)
        await wait_until(lambda: app.screen is not panel)
        await wait_until(lambda: app.screen.styles.background == light)


async def test_in_a_batch_of_changes_nothing_is_drawn_until_it_ends(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    app, _ = recorded(home)
    drawn: list[int] = []
    draw = SteadyCompositor.render_update

    def drawing(self: SteadyCompositor, *args: Any, **options: Any) -> Any:
        drawn.append(len(self._dirty_regions))
        return draw(self, *args, **options)

    async with app.run_test(size=(100, 30)) as pilot:
        screen: Any = await shown(app)
        await pilot.pause()
        monkeypatch.setattr(SteadyCompositor, "render_update", drawing)
        with app.batch_update():
            screen.query_one("#brand").styles.display = "none"
            await pilot.pause()
            screen._refresh_layout()
            await pilot.pause()
            assert not drawn
            assert screen._compositor._dirty_regions
        await wait_until(lambda: any(drawn) and not screen._compositor._dirty_regions)
