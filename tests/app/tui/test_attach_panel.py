import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, OptionList, Static

from app.chat.attachments import with_attachments
from app.chat.store.records import Attachment
from app.tui.app import IngotApp
from app.tui.screens import files
from app.tui.screens.files import AttachScreen
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


async def opened(app: Any, path: str = "") -> AttachScreen:
    panel = AttachScreen(path)
    app.show(panel)
    await wait_until(lambda: panel.is_mounted and panel.query_one(Input).has_focus)
    return panel


async def attached(app: Any, panel: AttachScreen) -> Attachment:
    await wait_until(lambda: app.screen is not panel)
    found = app.ended_with
    assert isinstance(found, Attachment)
    return found


async def test_a_path_is_completed_or_picked(bare: Any, folder: Path) -> None:
    async with bare.run_test(size=(80, 24)) as pilot:
        panel = await opened(bare)
        line, found = panel.query_one(Input), panel.query_one(OptionList)
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
        assert await attached(bare, panel) == Attachment("notes.txt", "Milk and bread.\n")

        panel = await opened(bare, "..")
        line, found = panel.query_one(Input), panel.query_one(OptionList)
        await pilot.press("enter")  # into the folder
        await wait_until(lambda: any("files" in str(o.prompt) for o in found.options))
        assert line.value == "../"
        line.value = "n"
        await wait_until(lambda: found.option_count == 2)
        await pilot.press("down", "down", "enter")
        await wait_until(lambda: line.value == "novel.md")
        await pilot.press("enter")
        assert (await attached(bare, panel)).name == "novel.md"


async def test_a_look_that_comes_late_does_not_end_the_reading(
    bare: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, go = files.read_attachment, threading.Event()

    def late(path: str) -> Any:
        go.wait(30)
        return read(path)

    monkeypatch.setattr(files, "read_attachment", late)
    async with bare.run_test(size=(80, 24)) as pilot:
        panel = await opened(bare, "novel.md")
        panel.query_one(Input).value = "novel.m"
        panel.query_one(Input).value = "novel.md"
        await pilot.press("enter")
        await asyncio.sleep(0.3)  # the look would begin after 0.2
        go.set()
        assert (await attached(bare, panel)).name == "novel.md"


async def test_what_cannot_be_attached_is_told(bare: Any, folder: Path) -> None:
    async with bare.run_test(size=(80, 24)) as pilot:
        panel = await opened(bare)
        problem = panel.query_one(".problem", Static)
        for path, told in (("picture.bin", "not a text file"), ("nothing", "no such file")):
            panel.query_one(Input).value = path
            await pilot.press("enter")
            await wait_until(lambda told=told: told in str(problem.content))
            assert bare.screen is panel
        await pilot.press("escape")
        await wait_until(lambda: bare.screen is not panel)
    assert bare.ended_with is None


def test_picture(bare: Any, snap: Any, folder: Path) -> None:
    async def open_it(pilot: Any) -> None:
        panel = await opened(bare, "no")
        await wait_until(lambda: panel.query_one(OptionList).option_count == 2)

    assert snap(bare, run_before=open_it)


async def test_what_a_file_takes_of_the_context_is_told(chat_app: IngotApp, folder: Path) -> None:
    async with chat_app.run_test(size=(80, 24)):
        panel = AttachScreen("notes.txt")
        await wait_until(lambda: is_ready(chat_app))
        chat_app.push_screen(panel)
        await wait_until(lambda: panel.is_mounted and panel.query("#about"))
        about = panel.query_one("#about", Static)
        await wait_until(lambda: "tokens of a context of 1,024" in str(about.content))
        engine = chat_app.services.host.engine
        assert engine is not None
        text = with_attachments("", [Attachment("notes.txt", "Milk and bread.\n")])
        assert f"{len(engine.encode(text)):,} tokens" in str(about.content)
