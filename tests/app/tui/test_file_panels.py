"""Panels that ask for a file: one that goes with the next message, and one to write the chat to."""

import json
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, OptionList, RadioButton, Static

from app.chat.attachments import with_attachments
from app.chat.conversation import Conversation
from app.chat.store.records import Attachment
from app.tui.screens import files
from app.tui.screens.files import AttachScreen, ExportScreen, FilePanel
from tests.app.documents import pdf
from tests.app.tui.conftest import is_ready
from tests.support import wait_until


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "files"
    found.mkdir()
    (found / "notes.txt").write_text("Milk and bread.\n")
    (found / "novel.md").write_text("# One\n")
    (found / "picture.bin").write_bytes(bytes(range(256)))
    monkeypatch.chdir(found)
    return found


@pytest.fixture
def conversation(services: Any, folder: Path) -> Conversation:
    found = Conversation.new(services.store)
    found.say("What is tin?")
    return found


async def opened(app: Any, panel: FilePanel[Any]) -> tuple[FilePanel[Any], Input]:
    app.ended_with = None
    app.show(panel)
    await wait_until(lambda: panel.is_mounted and panel.query_one(Input).has_focus)
    return panel, panel.query_one(Input)


async def ended(app: Any) -> Any:
    await wait_until(lambda: app.ended_with is not None)
    return app.ended_with


async def refused(pilot: Any, line: Input, path: str, told: str) -> None:
    """Enter a path that cannot be taken."""
    panel = pilot.app.screen
    line.value = path
    await pilot.press("enter")
    await wait_until(lambda: told in str(panel.query_one(".problem", Static).content))
    assert pilot.app.screen is panel


async def test_a_path_is_completed_or_picked(bare: Any, folder: Path) -> None:
    async with bare.run_test(size=(80, 24)) as pilot:
        panel, line = await opened(bare, AttachScreen())
        found = panel.query_one(OptionList)
        await pilot.press("n")
        await wait_until(lambda: found.option_count == 2)
        await pilot.press("tab")
        await wait_until(lambda: line.value == "no")
        await pilot.press("t")
        await wait_until(lambda: found.option_count == 1)
        await pilot.press("tab")
        await wait_until(lambda: line.value == "notes.txt")
        about = panel.query_one("#about", Static)
        await wait_until(lambda: "16 characters" in str(about.content))
        await pilot.press("enter")
        assert await ended(bare) == Attachment("notes.txt", "Milk and bread.\n")

        panel, line = await opened(bare, AttachScreen(".."))
        listed = panel.query_one(OptionList)
        await pilot.press("enter")  # into the folder
        await wait_until(lambda: any("files" in str(o.prompt) for o in listed.options))
        assert line.value == "../"
        line.value = "n"
        await wait_until(lambda: listed.option_count == 2)
        await pilot.press("down", "down", "enter")
        await wait_until(lambda: line.value == "novel.md")
        await pilot.press("enter")
        assert (await ended(bare)).name == "novel.md"

        panel, line = await opened(bare, AttachScreen())
        for path, told in (("picture.bin", "not a text file"), ("nothing", "no such file")):
            await refused(pilot, line, path, told)
        await pilot.press("escape")
        await wait_until(lambda: bare.screen is not panel)
        assert bare.ended_with is None


async def test_what_a_file_takes_of_the_context_is_told(make: Any, folder: Path) -> None:
    app = make()
    async with app.run_test(size=(80, 24)):
        panel = AttachScreen("notes.txt")
        await wait_until(lambda: is_ready(app))
        app.push_screen(panel)
        await wait_until(lambda: panel.is_mounted and panel.query("#about"))
        about = panel.query_one("#about", Static)
        await wait_until(lambda: "tokens of a context of 1,024" in str(about.content))
        engine = app.services.host.engine
        assert engine is not None
        text = with_attachments("", [Attachment("notes.txt", "Milk and bread.\n")])
        assert f"{len(engine.encode(text)):,} tokens" in str(about.content)


async def test_the_format_is_that_of_the_ending(bare: Any, conversation: Conversation) -> None:
    async with bare.run_test(size=(80, 24)) as pilot:
        await opened(bare, ExportScreen(conversation))
        await pilot.press("enter")  # Markdown under the chat's title
        written = await ended(bare)
        assert written.suffix == ".md"
        assert "What is tin?" in written.read_text()

        panel, line = await opened(bare, ExportScreen(conversation))
        for path, dots in (("a.md", "● "), ("a.json", " ●"), ("b.md", "● ")):
            line.value = path
            await pilot.pause()
            assert "".join(str(one.render())[1] for one in panel.query(RadioButton)) == dots
        panel.query_one("#forms").focus()
        await pilot.press("down", "enter")
        await wait_until(lambda: line.value == "b.json")
        await pilot.press("enter")
        assert json.loads((await ended(bare)).read_text())["messages"][0]["text"] == "What is tin?"


async def test_a_file_that_is_there_is_replaced_only_when_one_says_so(
    bare: Any, conversation: Conversation
) -> None:
    there = Path("old.md")
    there.write_text("precious")
    async with bare.run_test(size=(80, 24)) as pilot:
        panel, line = await opened(bare, ExportScreen(conversation))
        for path, told in (("notes.pdf", ".md"), ("no/folder/x.md", "cannot be written")):
            await refused(pilot, line, path, told)
        line.value = "old.md"
        for answer in ("n", "y"):
            assert bare.screen is panel
            assert there.read_text() == "precious"
            await pilot.press("enter")
            await wait_until(lambda: bare.screen is not panel)
            await pilot.pause()
            await pilot.press(answer)
            await wait_until(lambda: bare.screen is panel or bare.ended_with is not None)
        await ended(bare)
    assert "What is tin?" in there.read_text()


@pytest.mark.parametrize("name", ["attach", "export"])
def test_picture(bare: Any, snap: Any, conversation: Conversation, name: str) -> None:
    async def open_it(pilot: Any) -> None:
        made = AttachScreen("no") if name == "attach" else ExportScreen(conversation)
        panel, _ = await opened(bare, made)
        count = 2 if name == "attach" else 0
        await wait_until(lambda: panel.query_one(OptionList).option_count == count)

    assert snap(bare, run_before=open_it)


async def test_a_document_is_read_once(bare: Any, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """How long it takes to read is waited for once; what one was told of is what is sent."""
    pdf(folder / "report.pdf", ["Profits rose.", ""])
    reads, read = [], files.read_attachment

    def noted(path: str) -> Any:
        reads.append(path)
        return read(path)

    monkeypatch.setattr(files, "read_attachment", noted)
    async with bare.run_test(size=(80, 24)) as pilot:
        panel, _ = await opened(bare, AttachScreen("report.pdf"))
        about = panel.query_one("#about", Static)
        await wait_until(lambda: "1 of its 2 pages have no text" in str(about.content))
        await pilot.press("enter")
        assert (await ended(bare)).text == "Profits rose.\n\n[page 2 has no text]"
        assert reads == ["report.pdf"]
