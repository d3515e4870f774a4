"""What is written at once into any line stands there: searches, filters, fields, dialogs."""

import random
import string
from pathlib import Path

import pytest
from textual.command import CommandInput
from textual.widgets import Input

from app.tui.help import Commands, Palette
from app.tui.screens.batch import BatchScreen
from app.tui.screens.chats import ChatsScreen
from app.tui.screens.dialogs import AskScreen
from app.tui.screens.find import FindScreen
from app.tui.screens.models import ModelsScreen, ModelTable
from app.tui.widgets.batch_form import BatchForm
from app.tui.widgets.form import Check
from tests.app.tui.bursts import PASTE, burst
from tests.app.tui.chat_app import add_turn
from tests.app.tui.test_find import hub  # noqa: F401
from tests.support import wait_until

BURSTS = 2


@pytest.fixture(autouse=True)
def own_folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are offered from here, and only these models are there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("app.models.catalog._ROOT", tmp_path)


def keys(draw: random.Random) -> list[str]:
    """Words, pastes and keys that edit."""
    kinds = draw.choices(("word", "line", "paste", "cut", "start"), (6, 1, 2, 1, 1), k=8)
    made: list[str] = []
    for kind in kinds:
        word = "".join(draw.choices(string.ascii_letters + ".~/", k=draw.randint(1, 5)))
        match kind:
            case "word":
                made += word
            case "line":
                made.append("ctrl+j")  # a line feed is nothing in a line
            case "paste":
                made.append(f"{PASTE}{word}\n{word[::-1]}")
            case "cut":
                made.append("ctrl+w")
            case _:
                made.append("ctrl+u")
    return made


def written(text: str, typed: list[str]) -> str:
    """What stands in the line then: of a paste the first line; nothing has blanks, so that a word
    is all that there is."""
    for key in typed:
        if key in ("ctrl+w", "ctrl+u"):
            text = ""
        elif key != "ctrl+j":
            text += key.removeprefix(PASTE).partition("\n")[0]
    return text


@pytest.mark.parametrize("kind", ["chats", "palette", "ask"])
async def test_one_line(bare, kind: str):
    draw = random.Random(kind)
    made = {
        "chats": lambda: ChatsScreen(bare.services.store),
        "palette": lambda: Palette(providers=[Commands]),
        "ask": lambda: AskScreen("Name"),
    }[kind]
    async with bare.run_test(size=(100, 30)) as pilot:
        screen = made()
        bare.show(screen)
        await wait_until(lambda: isinstance(bare.focused, Input))
        await pilot.pause()
        line, stands = bare.focused, ""
        for _ in range(BURSTS):
            typed = keys(draw)
            stands = written(stands, typed)
            await burst(pilot, *typed)
            assert line.value == stands, typed
            assert bare.screen is screen
            assert bare.focused is line


async def test_enter_takes_the_model_that_was_typed(bare, pebble_built: Path):
    async with bare.run_test(size=(100, 30)) as pilot:
        screen = ModelsScreen([str(pebble_built)])
        bare.show(screen)
        await wait_until(lambda: screen.query(ModelTable) and screen.query_one(ModelTable).rows)
        await pilot.pause()
        await burst(pilot, *"q8", "enter")
        await wait_until(lambda: bare.ended_with is not None)
        assert [entry.recipe for entry in bare.ended_with] == ["q8_0"]


async def test_enter_opens_the_chat_that_was_typed(bare):
    """Though the search needs a moment, and the list still shows all."""
    ids = {}
    for title in ("one", "two", "three"):
        ids[title] = bare.services.store.new_chat().id
        add_turn(bare.services.store, ids[title], None, "How?", "So.")
        bare.services.store.update_chat(ids[title], title=title)
    async with bare.run_test(size=(100, 30)) as pilot:
        screen = ChatsScreen(bare.services.store)
        bare.show(screen)
        await wait_until(lambda: screen.query("#list") and screen.query_one("#list").option_count)
        await pilot.pause()
        await burst(pilot, *"two", "enter")
        await wait_until(lambda: bare.ended_with is not None)
        assert bare.ended_with.chat.id == ids["two"]


async def test_enter_runs_the_command_that_was_typed(bare):
    async with bare.run_test(size=(100, 30)) as pilot:
        await pilot.press("ctrl+p")
        await wait_until(lambda: isinstance(bare.focused, CommandInput))
        await burst(pilot, *"theme nord", "enter")
        await wait_until(lambda: bare.theme == "nord")


async def test_fields_of_a_form(bare):
    """Enter goes on to the next one, also within a burst."""
    names = ("input", "field", "template", "limit", "model", "system")
    async with bare.run_test(size=(120, 50)) as pilot:
        screen = BatchScreen()
        bare.show(screen)
        await wait_until(lambda: isinstance(bare.focused, Input))
        await pilot.pause()
        await burst(pilot, *(key for name in names for key in (*f"zq{name}", "enter")))
        form = screen.query_one(BatchForm)
        assert [form.text_of(name) for name in names] == [f"zq{name}" for name in names]


async def test_behind_keys_that_lead_elsewhere(bare, hub):  # noqa: F811
    async with bare.run_test(size=(100, 30)) as pilot:
        screen = FindScreen()
        bare.show(screen)
        await wait_until(lambda: isinstance(bare.focused, Input))
        await pilot.pause()
        line, box = bare.focused, screen.query(Check).first()
        await burst(pilot, *"first", "tab", "space", "shift+tab", *"last")
        assert (line.value.removeprefix("first"), box.value) == ("last", False)
        await burst(pilot, "ctrl+u", *"first", "enter", *"last")
        assert line.value == "firstlast"


async def test_paths_key_by_key(bare):
    """No beginning of a path ends the app."""
    async with bare.run_test(size=(120, 50)) as pilot:
        screen = BatchScreen()
        bare.show(screen)
        await wait_until(lambda: isinstance(bare.focused, Input))
        await pilot.pause()
        form = screen.query_one(BatchForm)
        for path in ("~/in.jsonl", "~no-such-user/x", "../in.jsonl"):
            for end in (1, 2, 3, len(path)):
                screen.query_one("#input", Input).value = path[:end]
                await form.look()
            assert form.text_of("input") == path
            assert "input" in form.errors
