"""Every action has a key and a way by mouse, on all screens; what acts at once is known; and names,
titles, prompts and answers that hold escape sequences and markup are shown there, and nothing of
them reaches the terminal or acts."""

import asyncio
import json
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.style import Style
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets._footer import FooterKey

from app.compare.answers import Contender, Side, SideState
from app.tui.help import commands
from app.tui.keys import TOGETHER, declared
from app.tui.screens.compare import ComparePane
from app.tui.screens.dialogs import KeyHints
from app.tui.services import Start, open_services
from app.tui.widgets.frame import ModeScreen
from tests.app.tui import parsed, settling
from tests.app.tui.conftest import Bare
from tests.app.tui.places import places
from tests.app.tui.test_find import REPO, served
from tests.app.tui.test_hostile import NAMED, WORST
from tests.hostile import harmful
from tests.support import own_home, wait_until

_TRIED = re.compile(r"PWNED|u2028")  # the begin or the end of WORST
# Screens that show no text from elsewhere.
CLEAN = {
    *("an empty chat", "SamplingScreen", "AttachScreen", "ThemeScreen", "OverflowScreen"),
    *("HelpScreen", "Palette", "BatchScreen", "QuantizeScreen with a run", "QuantizeScreen: run"),
}
# Where neither the hints of a dialog nor, on the screens of modes, the list of commands that the
# footer opens have a binding, this is how a mouse does the same.
BY_CLICK = {
    "a click on a row goes to it, the wheel scrolls": """
        chats.up chats.down chats.pageup chats.pagedown chats.home chats.end
        models.up models.down models.pageup models.pagedown models.home models.end
        find.up find.down find.pageup find.pagedown find.home find.end
        table.up table.down table.page_up table.page_down table.first table.last
        palette.first palette.last sidebar.list""",
    "a click on the row under the cursor takes it": "table.select",
    "a click on a line goes to it": "sampling.up sampling.down",
    "its button": "confirm.no confirm.other batch.leave_up batch.leave_down",
    "the hint of esc": "batch.row_back",
    "a click on the box": "check.toggle",
    "a click on a card of the welcome": """
        starter.take starter.left starter.right starter.up starter.down
        starter.first starter.second starter.third starter.fourth""",
}
# These edit what one types, which needs the keys anyway.
EDITING = """
    text.cursor_left text.cursor_right text.word_left text.word_right
    text.cut_word_left text.cut_word_right text.cut_to_blank path.complete"""
# Only what holds in the whole app; a dialog is left by a click first.
BEHIND_DIALOGS = "app."


@dataclass
class Met:
    """Of each binding, the places (screen and focus) where it works, those where a mouse is offered
    it, and those where it is not; and what is around the focus on each screen."""

    works: dict[str, list[str]] = field(default_factory=dict)
    offered: dict[str, list[str]] = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)
    around: dict[str, set[str]] = field(default_factory=dict)
    no_list: list[str] = field(default_factory=list)  # screens of modes without the footer's key
    drawn: dict[str, str] = field(default_factory=dict)  # what each screen shows
    acts: list[object] = field(default_factory=list)  # what of that a terminal would obey

    def read(self, name: str, screen: Screen[Any]) -> None:
        """All that is written to the terminal to draw ``screen``."""
        lines = screen._compositor.render_strips()
        for segment in (one for line in lines for one in line):
            style = segment.style or Style()
            if harmful(segment.text) or style.link or style.meta.get("@click") == "app.quit":
                self.acts.append((name, segment))
        written = screen._compositor.render_full_update().render_segments(screen.app.console)
        if "\x1b]" in written or "\x9b" in written:
            self.acts.append((name, written))
        self.drawn[name] = "\n".join([self.drawn.get(name, ""), *(line.text for line in lines)])

    def look(self, name: str, screen: Screen[Any]) -> None:
        """At all that acts wherever the focus can be."""
        kinds: dict[tuple[type, ...], Widget] = {}
        for widget in screen.focus_chain:
            kinds.setdefault(tuple(type(node) for node in widget.ancestors_with_self), widget)
        for widget in (*kinds.values(), *((None,) if not kinds else ())):
            screen.set_focus(widget)
            place = f"{name}: {type(widget).__name__}"
            offered = self._offered(screen, place)
            for id in _acting(screen):
                self.works.setdefault(id, []).append(place)
                found = self.offered if id in offered else self.missing
                found.setdefault(id, []).append(place)
            nodes = [] if widget is None else list(widget.ancestors_with_self)
            inner = nodes[: nodes.index(screen)] if nodes else []
            line = " ".join(type(node).__name__ for node in reversed(inner) if _has_ids(node))
            self.around.setdefault(type(screen).__name__, set()).add(line)

    def _offered(self, screen: Screen[Any], place: str) -> set[str]:
        if isinstance(screen, ModeScreen):
            keys = (key for key in screen.query(FooterKey) if key.region)
            if not any(key.action == "command_palette" for key in keys):
                self.no_list.append(place)
            return {one.id for one in commands(screen)} | {"app.palette"}
        found = set()
        for hints in screen.query(KeyHints):
            hints._say()
            found |= hints._does.keys()
        return found


def _acting(screen: Screen[Any]) -> set[str]:
    """The bindings that act now, also those whose keys a widget that cannot scroll passes on."""
    active = screen.active_bindings
    return {
        binding.id
        for node, bindings in screen._binding_chain
        for many in bindings.key_to_bindings.values()
        for binding in many
        if binding.id is not None
        and screen.app._check_action_state(binding.action, node)
        and (found := active.get(binding.key)) is not None
        and (found.binding.id == binding.id or found.binding.action.startswith("scroll_"))
    }


def most(lines: Iterable[str]) -> set[str]:
    """Without those that another line has more than."""
    sets = [set(line.split()) for line in lines]
    return {line for line in lines if not any(set(line.split()) < other for other in sets)}


def _has_ids(node: Any) -> bool:
    many = node._bindings.key_to_bindings.values()
    return any(one.id is not None for those in many for one in those)


def hostile_build(built: Path, folder: Path) -> Path:
    """Pebble's files, as somebody else may have named them."""
    folder.mkdir()
    made = json.loads((built / "manifest.json").read_text())
    made["model"]["name"] = made["model"]["architecture"] = WORST
    for entry in list(made["files"]):
        kept = built / entry["path"]
        match entry["recipe"]:
            case "q8_0":  # a manifest may not name such a file
                made["files"].remove(entry)
                entry["path"] = f"{kept.stem}{NAMED}.gguf"
            case "q4_k_m":
                entry["path"] = f"{kept.stem}[@click=app.quit]PWNED[red].gguf"
                entry["recipe"] = f"q4_k_m{WORST}"
        (folder / entry["path"]).symlink_to(kept)
    (folder / "manifest.json").write_text(json.dumps(made))
    return folder


async def compare(screen: Any, pilot: Any, seen: Met) -> None:
    pane = screen.query(ComparePane).first()
    for state in (SideState.DONE, SideState.FAILED):
        side = Side(WORST, WORST, contender=Contender(WORST), label=WORST, state=state)
        pane.show(side, None, first=True, fastest=None, base=None)
        await pilot.pause()
        seen.read("CompareScreen", screen)


@pytest.fixture(scope="module")
def met(pebble_built: Path, tmp_path_factory: pytest.TempPathFactory) -> Met:
    """All screens with hostile texts, looked at once for all tests of this file."""
    folder, seen = tmp_path_factory.mktemp("work"), Met()
    built = hostile_build(pebble_built, folder / "built")

    async def look() -> None:
        with open_services(Start()) as services:
            app = Bare(services)
            async with app.run_test(size=(150, 50)) as pilot:
                async for name, screen in places(pilot, built, said=lambda text: WORST + text):
                    assert app.screen is screen, name
                    if name.startswith("MonitorScreen"):
                        logging.getLogger("app.tui").warning("a model named %s", WORST)
                        screen._tick()
                        await wait_until(lambda screen=screen: not screen._looking)
                    if name == "CompareScreen":
                        await compare(screen, pilot, seen)
                    seen.read(name, screen)
                    if name != "CompareScreen that was asked":  # which goes at once
                        app.notify(WORST, title=WORST)
                        await pilot.pause()
                        seen.read("a notification", screen)
                        app.clear_notifications()
                        await pilot.pause()
                    seen.look(name, screen)
                assert app.return_code is None, app._exception

    with own_home(folder / "home"), pytest.MonkeyPatch.context() as patch, served(patch) as hub:
        # A name with control characters is refused as soon as the hub says it.
        files = {"[@click=app.quit]PWNED[red]-Q4_K_M.gguf": b"GGUF" * 50}
        known = {"total": 200_000, "architecture": WORST, "context_length": 2048}
        tags = ["conversational", f"license:{WORST}"]
        hub.add(REPO, files, downloads=900, gguf=known, tags=tags)
        (folder / f"{NAMED}.jsonl").touch()
        patch.chdir(folder)
        settling.patch(patch)
        parsed.patch(patch)
        asyncio.run(look())
    return seen


def test_no_text_acts_on_any_screen(met: Met):
    assert met.acts == []
    without = {name for name, text in met.drawn.items() if not _TRIED.search(text)}
    assert without <= CLEAN, "nothing hostile was tried there"


@cache
def all_ids() -> frozenset[str]:
    return frozenset(binding.id or "" for _, found in declared() for binding in found)


def test_every_action_has_a_key(met: Met):
    assert all_ids() - met.works.keys() == set()


def test_every_action_has_a_way_by_mouse(met: Met):
    by_click = {id for ids in BY_CLICK.values() for id in ids.split()} | set(EDITING.split())
    assert all_ids() - met.offered.keys() - by_click == set()
    dialogs = {
        id: places
        for id, places in met.missing.items()
        if id not in by_click and not id.startswith(BEHIND_DIALOGS)
    }
    assert dialogs == {}


def test_what_is_done_by_a_click_is_there():
    named = [id for ids in (*BY_CLICK.values(), EDITING) for id in ids.split()]
    assert len(named) == len(set(named))
    assert set(named) <= all_ids()


def test_the_list_of_commands_is_a_click_away_on_every_screen(met: Met):
    assert met.no_list == []


def test_what_is_around_the_focus_is_what_is_compared(met: Met):
    around = {name: most(lines) for name, lines in met.around.items()}
    assert {name: set(lines) for name, lines in TOGETHER.items()} == around


def test_what_is_compared_has_every_screen():
    screens = [owner for owner, _ in declared() if issubclass(owner, Screen)]
    made = {one.__name__ for one in screens if not any(one in two.__bases__ for two in screens)}
    assert made | {"ConfirmScreen"} == set(TOGETHER)
