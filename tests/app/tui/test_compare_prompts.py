"""A file of prompts in the compare mode: run, stopped, looked at, voted on, saved; by key and by
mouse, with Pebble's files."""

import json
from pathlib import Path
from typing import Any

import psutil
import pytest
from textual.widgets import Button, Input, Static

from app.compare.answers import Told
from app.compare.results import Ballot, FileResult, PromptResult, Results, pair_of
from app.models.catalog import ModelEntry, entry_of
from app.tui.screens.compare import AnswersScreen, ComparePane, CompareScreen
from app.tui.screens.compare_prompts import BlindScreen, ComparePromptsScreen, RowTable
from app.tui.screens.dialogs import AskScreen
from tests.app import stopping
from tests.app.tui.conftest import cells_of
from tests.support import wait_until

ROWS = [
    {"prompt": "What is the capital of France?", "expected": "The capital of France is Paris."},
    {"prompt": "Tell me a story about a fox and a tailor in Rome"},
    {"prompt": "Tell me a story about a fox"},
    *({"prompt": f"Tell me a story about the number {number}"} for number in range(97)),
]


@pytest.fixture(autouse=True)
def own_folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Relative paths, of prompts and reports, are here."""
    monkeypatch.chdir(tmp_path)
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    (tmp_path / "prompts.jsonl").write_text(text)
    return tmp_path


def entries(built: Path) -> list[ModelEntry]:
    return [entry_of(built / name) for name in ("pebble-q8_0.gguf", "pebble-q4_k_m.gguf")]


async def opened(pilot: Any, built: Path) -> ComparePromptsScreen:
    """By the key of the compare mode."""
    base = CompareScreen()
    pilot.app.show(base)
    await wait_until(lambda: base.is_mounted and base.query("#panes"))
    await pilot.pause()
    await pilot.press("f8")
    await wait_until(lambda: any("Choose two" in n.message for n in pilot.app._notifications))
    await base.choose(entries(built))
    await pilot.press("f8")
    await wait_until(lambda: isinstance(pilot.app.screen, ComparePromptsScreen))
    screen: ComparePromptsScreen = pilot.app.screen
    await wait_until(lambda: screen.query("#prompts-list"))
    await pilot.pause()
    return screen


def text(screen: Any, name: str) -> str:
    return str(screen.query_one(name, Static).content)


async def finished(pilot: Any, screen: ComparePromptsScreen) -> Results:
    await wait_until(lambda: screen.results is not None)
    await pilot.pause()
    assert screen.results is not None
    return screen.results


async def test_a_stopped_run_goes_on_and_is_looked_at_voted_on_and_saved(
    bare, pebble_built: Path, own_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    async with bare.run_test(size=(120, 40)) as pilot:
        screen = await opened(pilot, pebble_built)
        form = screen.query_one("#prompts-form")
        await pilot.click("#start")  # nothing is named yet
        await pilot.pause()
        assert "prompts" in form.errors  # type: ignore[attr-defined]
        screen.query_one("#prompts", Input).value = "prompts.jsonl"
        screen.query_one("#length", Input).value = "no"
        await pilot.pause()
        await pilot.press("ctrl+g")
        await pilot.pause()
        assert list(form.errors) == ["length"]  # type: ignore[attr-defined]
        screen.query_one("#length", Input).value = "24"
        await pilot.pause()
        with monkeypatch.context() as held:
            for name, value in stopping.after_rows(own_folder / "held", 6).items():
                held.setenv(name, value)
            await pilot.press("ctrl+g")
            await wait_until(lambda: screen.process is not None)
        assert screen.leaving()
        command = psutil.Process(screen.process._process.pid)  # type: ignore[union-attr]
        await wait_until(lambda: command.status() == psutil.STATUS_STOPPED)
        await wait_until(lambda: "left" in text(screen, "#prompts-said"))
        assert f"of {2 * len(ROWS)} answers" in text(screen, "#prompts-said")
        await pilot.press("escape")
        command.resume()
        await wait_until(lambda: "Stopped" in text(screen, "#prompts-said"))
        assert screen.results is None
        (journal,) = own_folder.glob("home/state/compare/*/answers.jsonl.journal.jsonl")
        answered = journal.read_bytes().count(b'"ok":true')
        assert 6 <= answered < len(ROWS)
        screen.query_one("#limit", Input).value = str(answered)
        await pilot.pause()
        await pilot.press("ctrl+g")
        results = await finished(pilot, screen)
        assert screen.leaving() is None
        assert [file.answered for file in results.files] == [answered, answered]
        table = screen.query_one(RowTable)
        assert [row.prompt for row in table.rows] == [row["prompt"] for row in ROWS[:answered]]
        cells = [cells_of(table, row) for row in table.rows]
        for row, cell in zip(results.rows, cells, strict=True):
            assert cell[1].startswith("=" if row.same(1) else "≠"), cell
        differ = next(row.index for row in results.rows[1:-1] if row.same(1) is False)
        # Open one by a click on the line under the cursor.
        table.go_to(differ)
        await pilot.pause()
        await pilot.click(RowTable, offset=(20, differ + 1))
        await wait_until(lambda: isinstance(bare.screen, AnswersScreen))
        await wait_until(lambda: len(bare.screen.query(ComparePane)) == 2)
        await pilot.pause()
        row = results.rows[differ]
        for pane, told in zip(bare.screen.query(ComparePane), row.answers, strict=True):
            shown = str(pane.query_one(".answer", Static).content)
            assert shown.replace("▶", "") == told.text
            assert shown.index("▶") == row.places[0]
        await pilot.press("right")
        asked = bare.screen.query_one(".asked")
        assert f"Prompt {differ + 2} of {answered}" in str(asked.border_title)
        await pilot.press("left", "left")
        assert f"Prompt {differ} of {answered}" in str(asked.border_title)
        await pilot.press("escape")
        await wait_until(lambda: bare.screen is screen)
        await pilot.pause()
        await pilot.click("#save")
        await wait_until(lambda: isinstance(bare.screen, AskScreen))
        await wait_until(lambda: bare.screen.query("#text"))
        bare.screen.query_one(Input).value = "kept.md"
        await pilot.press("enter")
        await wait_until((own_folder / "kept.md").exists)
        await wait_until(lambda: bare.screen is screen)
        assert "| pebble · q4\\_k\\_m |" in (own_folder / "kept.md").read_text()
        await pilot.press("alt+v")
        await wait_until(lambda: isinstance(bare.screen, BlindScreen))
        await pilot.pause()
        await pilot.press("left" if bare.screen.pair.swapped else "right", "escape")
        await wait_until(lambda: screen.results.votes)  # type: ignore[union-attr]
        (votes,) = screen.results.votes  # type: ignore[union-attr]
        assert (votes.wins, votes.losses) == (1, 0)
        await pilot.press("ctrl+n")
        await wait_until(lambda: screen.results is None)
        assert form.display
        screen.query_one("#prompts", Input).value = "none.jsonl"
        await pilot.pause()
        await pilot.press("ctrl+g")
        await pilot.pause()
        assert "no such file" in form.errors["prompts"]  # type: ignore[attr-defined]
        (own_folder / "none.jsonl").write_text("\n")
        await pilot.press("ctrl+g")
        await wait_until(lambda: "has no rows" in text(screen, "#prompts-said"))
        await wait_until(lambda: screen.process is None)
        await pilot.press("escape")
        await wait_until(lambda: isinstance(bare.screen, CompareScreen))


def judged(count: int) -> Results:
    """File 1 says "better", file 0 "worse"."""
    rows = tuple(
        PromptResult(
            n, str(n), f"prompt {n}", (Told(f"worse {n}"), Told(f"better {n}")), (0,), (0,)
        )
        for n in range(count)
    )
    files = tuple(FileResult(name, name, "llamacpp") for name in ("one", "two"))
    return Results("p.txt", files, (pair_of(rows, 1, "tokens"),), rows)


async def test_votes_are_counted_right_though_sides_are_swapped(bare, own_folder: Path):
    ballot = Ballot(judged(8), own_folder / "votes" / "votes.jsonl")
    assert {pair.swapped for pair in ballot.pairs} == {True, False}
    async with bare.run_test(size=(80, 24)) as pilot:
        screen = BlindScreen(ballot)
        await bare.push_screen(screen)
        await pilot.pause()

        async def vote(number: int, wanted: str) -> None:
            shown = [text(screen, f"#blind-{side} .answer") for side in ("left", "right")]
            assert sorted(one.split()[0] for one in shown) == ["better", "worse"]
            drawn = "".join(str(w.content) for w in screen.query(Static) if w.region)
            assert "one" not in drawn.replace("None", "")
            assert "two" not in drawn
            assert f"{number} of 8" in text(screen, "#blind-said")
            said = wanted
            if wanted not in ("tie", "skip"):
                said = "left" if shown[0].startswith(wanted) else "right"
            key = {"tie": "equals_sign", "skip": "k"}.get(said, said)
            await (pilot.press(key) if number % 2 else pilot.click(f"#vote-{said}"))
            await pilot.pause()

        for number, wanted in enumerate(["tie", "skip", *["better"] * 4]):
            await vote(number, wanted)
        await pilot.press("ctrl+z")  # taken back, and said the other way round
        await pilot.pause()
        for number, wanted in ((5, "worse"), (6, "better"), (7, "better")):
            await vote(number, wanted)
        assert text(screen, "#blind-votes").startswith("two against one: preferred 5 of 6 times")
        assert "1 tied, 1 skipped" in text(screen, "#blind-votes")
        assert not any(button.region for button in screen.query(Button))
        # Another screen goes on where this one ended.
        await pilot.press("escape")
        again = BlindScreen(Ballot(judged(9), own_folder / "votes" / "votes.jsonl"))
        await bare.push_screen(again)
        await pilot.pause()
        assert "8 of 9" in text(again, "#blind-said")
