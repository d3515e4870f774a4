import json
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, RadioButton, Static

from app.chat.conversation import Conversation
from app.tui.screens.files import ExportScreen
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


async def opened(app: Any, conversation: Conversation, path: str = "") -> ExportScreen:
    panel = ExportScreen(conversation, path)
    app.ended_with = None
    app.show(panel)
    await wait_until(lambda: panel.is_mounted and panel.query_one(Input).has_focus)
    return panel


async def test_the_format_is_that_of_the_ending(bare: Any, conversation: Conversation) -> None:
    async with bare.run_test(size=(80, 24)) as pilot:
        await opened(bare, conversation)
        await pilot.press("enter")  # Markdown under the chat's title
        await wait_until(lambda: bare.ended_with is not None)
        assert bare.ended_with.suffix == ".md"
        assert "What is tin?" in bare.ended_with.read_text()

        panel = await opened(bare, conversation)
        line = panel.query_one(Input)
        for path, dots in (("a.md", "● "), ("a.json", " ●"), ("b.md", "● ")):
            line.value = path
            await pilot.pause()
            assert "".join(str(one.render())[1] for one in panel.query(RadioButton)) == dots
        panel.query_one("#forms").focus()
        await pilot.press("down", "enter")
        await wait_until(lambda: line.value == "b.json")
        await pilot.press("enter")
        await wait_until(lambda: bare.ended_with is not None)
        assert json.loads(bare.ended_with.read_text())["messages"][0]["text"] == "What is tin?"


async def test_a_file_that_is_there_is_replaced_only_when_one_says_so(
    bare: Any, conversation: Conversation
) -> None:
    there = Path("old.md")
    there.write_text("precious")
    async with bare.run_test(size=(80, 24)) as pilot:
        panel = await opened(bare, conversation)
        problem = panel.query_one(".problem", Static)
        for path, told in (("notes.pdf", ".md"), ("no/folder/x.md", "cannot be written")):
            panel.query_one(Input).value = path
            await pilot.press("enter")
            await wait_until(lambda told=told: told in str(problem.content))
        panel.query_one(Input).value = "old.md"
        for answer in ("n", "y"):
            assert bare.screen is panel
            assert there.read_text() == "precious"
            await pilot.press("enter")
            await wait_until(lambda: bare.screen is not panel)
            await pilot.pause()
            await pilot.press(answer)
            await wait_until(lambda: bare.screen is panel or bare.ended_with is not None)
        await wait_until(lambda: bare.ended_with is not None)
    assert "What is tin?" in there.read_text()


def test_picture(bare: Any, snap: Any, conversation: Conversation) -> None:
    async def open_it(pilot: Any) -> None:
        await opened(bare, conversation)

    assert snap(bare, run_before=open_it)
