"""The form of load settings in the picker, with keys and with the mouse, and a real model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, Static

from app.chat.load_settings import LoadSettings, remember, remembered
from app.tui.app import IngotApp
from app.tui.screens.models import LoadForm, LoadScreen, ModelsScreen, ModelTable
from tests.app.tui.chat_app import shown
from tests.app.tui.conftest import is_ready
from tests.support import wait_until


@pytest.fixture(autouse=True)
def nothing_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Only what a test names is there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("app.models.catalog._ROOT", tmp_path)


async def form_of(pilot: Any, recipe: str) -> LoadForm:
    """The form of this file, opened by its key in the picker."""
    await wait_until(lambda: isinstance(pilot.app.screen, ModelsScreen))
    picker = pilot.app.screen
    await wait_until(lambda: any(e.recipe == recipe for e in picker.query_one(ModelTable).rows))
    picker.query_one("#filter", Input).value = recipe
    await pilot.pause()
    await pilot.press("ctrl+s")
    return await ready(pilot)


async def ready(pilot: Any) -> LoadForm:
    await wait_until(lambda: isinstance(pilot.app.screen, LoadScreen))
    await wait_until(lambda: pilot.app.screen.query("#load-memory"))
    await wait_until(lambda: "needs" in memory(pilot.app.screen.query_one(LoadForm)))
    return pilot.app.screen.query_one(LoadForm)


def memory(form: LoadForm) -> str:
    return str(form.query_one("#load-memory", Static).content)


async def test_a_file_is_loaded_as_was_said(chat_app: IngotApp, gguf_file: Path) -> None:
    app = chat_app
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_until(lambda: is_ready(app))
        screen = await shown(app)
        recipe = screen.host.label.split(" · ")[1]
        await pilot.press("ctrl+t")
        form = await form_of(pilot, recipe)
        assert "usual" in form.query_one("#threads", Input).placeholder
        before = memory(form)
        await pilot.press(*"128", "tab", "0")
        await wait_until(lambda: "threads" in form.errors)
        await pilot.press("ctrl+s")  # refused, and the cursor is where it is wrong
        assert isinstance(app.screen, LoadScreen)
        assert form.query_one("#threads", Input).has_focus
        await pilot.press("backspace", "1")
        await wait_until(lambda: memory(form) not in ("", before))
        await pilot.press("ctrl+s")
        await wait_until(lambda: is_ready(app) and screen.host.engine.context == 128)
        assert screen.host.details.endswith("1 thread")
        assert remembered(gguf_file) == LoadSettings(context=128, threads=1)


async def test_with_the_mouse(chat_app: IngotApp, gguf_file: Path) -> None:
    remember(gguf_file, LoadSettings(context=256, kv_type="q8_0"))
    app = chat_app
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_until(lambda: is_ready(app))
        screen = await shown(app)
        assert screen.host.engine is not None
        assert screen.host.engine.context == 256
        await pilot.press("ctrl+t")
        await wait_until(lambda: isinstance(app.screen, ModelsScreen))
        picker = app.screen
        await wait_until(lambda: picker.query_one(ModelTable).record is not None)
        await wait_until(lambda: picker.query_one(ModelTable).record.path == gguf_file.resolve()
                         or picker.query_one(ModelTable).record.path == gguf_file)  # fmt: skip
        await pilot.click("#load")
        form = await ready(pilot)
        assert form.text_of("context") == "256"
        await pilot.click("#load-reset")
        assert form.text_of("context") == form.text_of("kv_type") == ""
        await pilot.click("#load-use")
        await wait_until(lambda: is_ready(app) and screen.host.engine.context > 256)
        assert remembered(gguf_file) == LoadSettings()


async def test_esc_changes_nothing(chat_app: IngotApp, gguf_file: Path) -> None:
    app = chat_app
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_until(lambda: is_ready(app))
        screen = await shown(app)
        await pilot.press("ctrl+t")
        await form_of(pilot, screen.host.label.split(" · ")[1])
        await pilot.press(*"128", "escape")
        await wait_until(lambda: isinstance(app.screen, ModelsScreen))
        assert remembered(gguf_file) == LoadSettings()
