from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, RadioButton, Static

from app.chat.conversation import Conversation
from app.tui.screens.files import ExportScreen
from tests.app.tui.conftest import SIZES
from tests.support import wait_until


@pytest.fixture
def conversation(services: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Conversation:
    """A chat of one question, in a working folder of its own."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    found = Conversation.new(services.store)
    found.say("What is tin?")
    return found


async def test_markdown_under_the_chats_title_unless_something_else_is_wanted(
    bare: Any, conversation: Conversation
) -> None:
    async with bare.run_test(size=(80, 24)) as pilot:
        bare.show(ExportScreen(conversation))
        await pilot.pause()
        await pilot.press("enter")
        await wait_until(lambda: bare.ended_with is not None)
    written = bare.ended_with
    assert written.suffix == ".md"
    assert "What is tin?" in written.read_text()


async def test_choosing_the_format_changes_the_ending(
    bare: Any, conversation: Conversation
) -> None:
    async with bare.run_test(size=(80, 24)) as pilot:
        panel = ExportScreen(conversation)
        bare.show(panel)
        await pilot.pause()
        panel.query_one("#json").focus()
        panel.query_one("#forms").focus()
        await pilot.press("down", "enter")
        await wait_until(lambda: panel.query_one(Input).value.endswith(".json"))
        panel.query_one(Input).focus()
        await pilot.press("enter")
        await wait_until(lambda: bare.ended_with is not None)
    assert json.loads(bare.ended_with.read_text())["messages"][0]["text"] == "What is tin?"


async def test_the_chosen_format_can_be_told_without_colour(
    bare: Any, conversation: Conversation
) -> None:
    async with bare.run_test(size=(80, 24)) as pilot:
        panel = ExportScreen(conversation)
        bare.show(panel)
        await pilot.pause()
        for path, dots in (("a.md", "● "), ("a.json", " ●"), ("b.md", "● ")):
            panel.query_one(Input).value = path
            await pilot.pause()
            assert "".join(str(one.render())[1] for one in panel.query(RadioButton)) == dots


async def test_a_file_that_is_there_is_replaced_only_when_one_says_so(
    bare: Any, conversation: Conversation
) -> None:
    there = Path("old.md")
    there.write_text("precious")
    async with bare.run_test(size=(80, 24)) as pilot:
        panel = ExportScreen(conversation, "old.md")
        bare.show(panel)
        await pilot.pause()
        await pilot.press("enter")
        await wait_until(lambda: bare.screen is not panel)
        await pilot.pause()
        await pilot.press("n")
        await wait_until(lambda: bare.screen is panel)
        assert there.read_text() == "precious"
        await pilot.press("enter")
        await wait_until(lambda: bare.screen is not panel)
        await pilot.pause()
        await pilot.press("y")
        await wait_until(lambda: bare.ended_with is not None)
    assert "What is tin?" in there.read_text()


@pytest.mark.parametrize(
    ("path", "told"), [("notes.pdf", ".md"), ("no/such/folder/x.md", "cannot be written")]
)
async def test_what_cannot_be_written_is_told(
    bare: Any, conversation: Conversation, path: str, told: str
) -> None:
    async with bare.run_test(size=(80, 24)) as pilot:
        panel = ExportScreen(conversation, path)
        bare.show(panel)
        await pilot.pause()
        await pilot.press("enter")
        about = panel.query_one(".problem", Static)
        await wait_until(lambda: told in str(about.content))
        assert bare.screen is panel


@pytest.mark.parametrize("size", SIZES)
def test_picture(bare: Any, snap: Any, conversation: Conversation, size: tuple[int, int]) -> None:
    async def open_it(pilot: Any) -> None:
        bare.show(ExportScreen(conversation))
        await pilot.pause()

    assert snap(bare, terminal_size=size, run_before=open_it)
