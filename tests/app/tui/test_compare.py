"""The compare screen: every key of it with Pebble's files, and pictures of a frozen comparison."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import MouseScrollDown
from textual.widgets import Digits, Input, ProgressBar, Static

from app.compare import run
from app.compare.answers import (
    Agreement,
    CompareReport,
    Contender,
    Parting,
    Question,
    Side,
    SideState,
)
from app.models.catalog import ModelEntry, Origin
from app.options import ModelOptions
from app.tui.app import IngotApp
from app.tui.screens.compare import ComparePane, CompareScreen, SameStrip, Speed, body
from app.tui.screens.dialogs import AskScreen
from app.tui.screens.models import ModelsScreen, ModelTable
from tests.app import endless
from tests.app.tui.conftest import SIZES, ask, is_ready
from tests.app.tui.settling import press_only
from tests.support import wait_until

STORY = "Tell me a story about a fox and a tailor in Rome"


@pytest.fixture(autouse=True)
def only_pebble(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endless_built: Path
) -> None:
    """The picker lists Pebble's four files; what is saved goes to an empty folder."""
    from app.models.library import note_loaded

    note_loaded(endless_built)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("app.models.catalog._ROOT", tmp_path)


def panes(screen: CompareScreen) -> list[ComparePane]:
    return list(screen.query(ComparePane))


def text(pane: ComparePane, part: str = ".answer") -> str:
    return str(pane.query_one(part, Static).content)


def agreement(screen: CompareScreen) -> str:
    shown = screen.query(SameStrip) if screen.query_one("#agreement").display else ()
    return "\n".join(str(part.content) for strip in shown for part in strip.query(Static))


async def opened(pilot: Any) -> CompareScreen:
    screen = CompareScreen()
    pilot.app.show(screen)
    await wait_until(lambda: screen.is_mounted and screen.query("#panes"))
    await pilot.pause()
    return screen


async def type_in(pilot: Any, screen: CompareScreen, value: str) -> None:
    """The answer to a question over the screen."""
    app = pilot.app
    await wait_until(lambda: isinstance(app.screen, AskScreen) and app.screen.query("#text"))
    app.screen.query_one(Input).value = value
    await pilot.press("enter")


async def choose(pilot: Any, screen: CompareScreen, *recipes: str) -> None:
    """Through the picker, as a user does."""
    await pilot.press("ctrl+t")
    app = pilot.app
    await wait_until(lambda: isinstance(app.screen, ModelsScreen) and app.screen.query(ModelTable))
    table = app.screen.query_one(ModelTable)
    await wait_until(lambda: len(table.rows) == 4)
    for recipe in recipes:
        table.go_to(next(entry.key for entry in table.rows if entry.recipe == recipe))
        await pilot.press("ctrl+x")
    await pilot.press("enter")
    await wait_until(lambda: len(panes(screen)) == len(recipes))
    await pilot.pause()


async def test_a_whole_comparison(bare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []  # those on the screen go after five seconds, however busy the machine is
    monkeypatch.setattr(CompareScreen, "notify", lambda _, text, **__: said.append(text))
    load, may_load = run.load_engine, threading.Event()

    def late(*given: Any, **named: Any) -> Any:
        may_load.wait(60)
        return load(*given, **named)

    monkeypatch.setattr(run, "load_engine", late)
    async with bare.run_test(size=(120, 40)) as pilot:
        screen = await opened(pilot)
        assert "ctrl+t chooses the files" in str(screen.query_one("#hint", Static).content)
        await choose(pilot, screen, "q4_k_m", "q8_0")
        screen.action_length()
        await type_in(pilot, screen, "48")
        await wait_until(lambda: bare.screen is screen)
        screen.prompt.text = STORY
        screen.prompt.focus()
        await press_only(pilot, "enter")
        await wait_until(lambda: screen.running)
        assert screen.leaving() is not None
        await press_only(pilot, "enter")  # not now
        await wait_until(lambda: any("stops it" in text for text in said))
        may_load.set()
        await wait_until(lambda: not screen.running)
        await pilot.pause()
        assert screen.leaving() is None
        one, other = panes(screen)
        # The place where they part is marked by a sign, in both.
        before, _, after = text(one).partition("▶")
        assert text(other).partition("▶")[0] == before
        assert text(other).partition("▶")[2] != after != ""
        for pane in (one, other):
            for figure in ("first token", "prefill", "MB memory", "48 tokens"):
                assert figure in text(pane, ".figures")
            assert pane.state == "done"
            assert "bits · " in str(pane.border_subtitle)  # of the file
        speeds = [side.decode_tps for side in screen.report.sides]  # type: ignore[union-attr]
        for pane, speed in zip((one, other), speeds, strict=True):
            bar = pane.query_one(Speed).query_one(ProgressBar)
            assert bar.progress == pytest.approx(100 * speed / max(speeds))
        assert text(other, ".unit") == f"tok/s · {speeds[1] / speeds[0]:.2f}x"
        assert "pebble · q8_0\nequal for" in agreement(screen)
        first = screen.report
        for name in ("kept.md", "kept.json"):
            await pilot.press("f9")
            await type_in(pilot, screen, name)
            await wait_until((tmp_path / name).exists)
        assert f"> {STORY}" in (tmp_path / "kept.md").read_text()
        data = json.loads((tmp_path / "kept.json").read_text())
        assert [side["text"] for side in data["files"]] == [side.text for side in first.sides]  # type: ignore[union-attr]
        # Again, for minutes, and stopped: what has come stays.
        room = property(lambda entry: ModelOptions(recipe=entry.picked, context=endless.CONTEXT))
        monkeypatch.setattr(ModelEntry, "options", room)
        screen.params = replace(screen.params, max_tokens=endless.CONTEXT - 1024, ignore_eos=True)
        await press_only(pilot, "ctrl+r")
        await wait_until(lambda: screen.running)
        await wait_until(lambda: any(p.state == "answering ..." for p in panes(screen)))
        await wait_until(lambda: text(panes(screen)[0]))
        await pilot.press("escape")
        await wait_until(lambda: not screen.running)
        await pilot.pause()
        assert [pane.state for pane in panes(screen)] == ["stopped", "stopped"]
        assert text(panes(screen)[0])
        assert not screen.interrupt()


async def test_ways_of_asking(bare):
    async with bare.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot)
        how = screen.query_one("#how", Static)
        await pilot.press("alt+a")
        assert "all at once" in str(how.content)
        await pilot.press("alt+a")
        assert "one after another" in str(how.content)
        screen.take([{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}])
        assert "after 1 message of the chat" in str(how.content)
        assert screen.prompt.text == "Hi"
        await pilot.press("ctrl+o")
        assert any("Nothing was asked" in note.message for note in bare._notifications)
        await pilot.press("ctrl+n")
        assert "of the chat" not in str(how.content)
        assert screen.prompt.text == ""
        await pilot.press("ctrl+s")
        await type_in(pilot, screen, "none")
        problem = bare.screen.query_one(".problem", Static)
        await wait_until(lambda: "whole number" in str(problem.content))
        bare.screen.query_one(Input).value = "1,000"
        await pilot.press("enter")
        await wait_until(lambda: bare.screen is screen and screen.params.max_tokens == 1000)


async def test_the_question_of_the_chat_to_files_of_its_model(chat_app: IngotApp):
    """/compare and ctrl+o take what was asked in the chat; the loaded file is compared with the one
    that has more bits."""
    async with chat_app.run_test(size=(80, 24)) as pilot:
        await wait_until(lambda: is_ready(chat_app))
        await pilot.pause()
        await ask(pilot, "Who are you?")
        await pilot.pause()
        await ask(pilot, "/compare")
        await wait_until(lambda: isinstance(chat_app.screen, CompareScreen))
        screen = chat_app.screen
        assert isinstance(screen, CompareScreen)
        await wait_until(lambda: screen.prompt.text == "Who are you?")
        await wait_until(lambda: len(panes(screen)) == 2)
        assert screen.entries[0].recipe == "q8_0"
        await pilot.press("ctrl+n")
        assert screen.prompt.text == ""
        await pilot.press("ctrl+o")
        await wait_until(lambda: screen.prompt.text == "Who are you?")


FIGURES: dict[str, Any] = {"tokens": 245, "load_s": 1.5, "ttft_s": 0.041, "prefill_tps": 1009.0}
FIGURES |= {"decode_tps": 90.9, "total_s": 2.7, "peak_bytes": 66_408_448, "finish_reason": "stop"}
SAME = 'Once a fox named Rita found a letter. "'


def frozen() -> CompareReport:
    """Three files: one parts from the first, one failed."""
    rest = ("I must find out where this comes from," + " said Rita." * 3, "This is not mine.")
    words = [SAME, rest[0][:1], rest[0][1:]], [SAME, rest[1][:4], rest[1][4:]]
    sides = [
        Side(
            contender=Contender("m"), label=f"pebble · {name}", state=SideState.DONE, file="f",
            runtime="llamacpp", text="".join(parts), token_ids=(1, 2 + number, 3),
            starts=(0, len(parts[0]), len(parts[0] + parts[1])), **FIGURES,
        )
        for number, (name, parts) in enumerate(zip(("q4_k_m", "q8_0"), words, strict=True))
    ]  # fmt: skip
    failed = Side(
        contender=Contender("m"), label="pebble · onnx-int8", state=SideState.FAILED,
        error="it needs 45 MB of memory, 40 MB are free",
    )  # fmt: skip
    parting = Parting(
        1, "I", "This", (len(SAME), len(SAME)), (0.043, 0.015), ((-1.13, -1.18), (-1.19, -1.17))
    )
    found = Agreement("tokens", 64, 245, 161, parting)
    asked = Question(({"role": "user", "content": STORY},))
    return CompareReport(asked, (*sides, failed), (found, None), ended=True)


def test_the_difference_is_marked_and_a_thought_is_dim_up_to_it():
    side = replace(frozen().sides[0], thought="Hm, so.", text="Yes.")
    for mine, at, shown in (
        ("so", 4, "Hm, ▶so.\n\nYes."),
        (None, 13, "Hm, so.\n\nYes.▶the end"),
    ):
        made = body(side, Parting(1, mine, "no", (at, at)), first=True, hue="$hue-1")
        assert made.plain == shown
        mark, _, dim = (made.spans[0], made.spans[-2], made.spans[-1])
        assert (mark.start, mark.style) == (at, "bold reverse $hue-1")
        assert (dim.start, dim.end, dim.style) == (0, min(at, 7), "$text-muted")


def test_picture(bare, snap):
    async def open_it(pilot: Any) -> None:
        screen = await opened(pilot)
        report = frozen()
        entries = [
            ModelEntry(
                "m", "pebble", side.label.split()[-1], Origin.BUILT, Path("f"), picked=side.label
            )
            for side in report.sides
        ]
        await screen.choose(entries)
        screen.prompt.fill(STORY)
        screen.show(report)
        await pilot.pause()

    assert snap(bare, terminal_size=SIZES[1], run_before=open_it)


@pytest.mark.parametrize(("count", "size", "across"), [(4, (120, 24), 2), (7, (60, 16), 1)])
async def test_every_pane_has_its_place(bare, count: int, size: tuple[int, int], across: int):
    """All can be read at once where there is room for that; else they scroll, none too low."""
    async with bare.run_test(size=size) as pilot:
        screen = await opened(pilot)
        names = [f"file {number}" for number in range(count)]
        entries = [ModelEntry(name, name, "", Origin.FILE, Path(name)) for name in names]
        await screen.choose(entries)
        await wait_until(lambda: len({pane.region for pane in panes(screen)}) == count)
        await pilot.pause()
        places = [pane.region for pane in panes(screen)]
        assert len({place.x for place in places}) == across
        assert min(place.height for place in places) >= 9
        room = screen.query_one("#panes").region
        seen = [place for place in places if room.contains_region(place)]
        assert len(seen) == min(count, across * (room.height // 9))
        assert min(place.width for place in seen) > room.width // across - 3


async def test_panes_scroll_in_step_and_large_figures_need_room(bare):
    report = frozen()
    long = "".join(f"line {number}\n\n" for number in range(200))
    sides = tuple(replace(side, text=long) for side in report.sides[:2])
    report = replace(report, sides=sides, agreements=(None,))
    entries = [ModelEntry(n, n, "", Origin.FILE, Path(n)) for n in ("one", "two")]
    async with bare.run_test(size=(120, 40)) as pilot:
        screen = await opened(pilot)
        await screen.choose(entries)
        screen.show(report)
        await pilot.pause()
        one, other = (pane.query_one(VerticalScroll) for pane in panes(screen))
        await wait_until(lambda: one.max_scroll_y > 100)
        for at, moved, follows in ((40, one, other), (7, other, one)):
            moved.scroll_to(y=at, animate=False)
            await wait_until(lambda: moved.scroll_y == follows.scroll_y == at)  # noqa: B023
        await pilot._post_mouse_events([MouseScrollDown], one, (5, 5), button=0)
        await wait_until(lambda: one.scroll_y == other.scroll_y > 7)
        assert all(digits.display for digits in screen.query(Digits))
        await pilot.resize_terminal(80, 24)
        await wait_until(lambda: not any(digits.display for digits in screen.query(Digits)))
        assert len({pane.region.y for pane in panes(screen)}) == 1


async def test_the_state_is_whole_where_there_is_no_room_for_the_rest(bare):
    side = replace(frozen().sides[0], state=SideState.DONE)
    async with bare.run_test(size=(80, 24)) as pilot:
        pane = ComparePane("m", 0, "5.9 MB · 9.0 bits · KL 0.0003")
        await bare.screen.mount(pane)
        pane.show(side, None, first=True, fastest=None, base=None)
        said = []
        for width in (60, 39, 20):
            pane.styles.width = width
            await pilot.pause()
            said.append(Content.from_markup(str(pane.border_subtitle)).plain)
        whole = "5.9 MB · 9.0 bits · KL 0.0003 · done"
        assert said == [whole, "9.0 bits · KL 0.0003 · done", "done"]
