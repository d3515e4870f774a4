"""The form of load settings in the picker, with keys and with the mouse, and a real model."""

from __future__ import annotations

from pathlib import Path

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


async def form_of(app: IngotApp) -> LoadForm:
    await wait_until(lambda: isinstance(app.screen, LoadScreen))
    await wait_until(lambda: app.screen.query("#load-memory"))
    await wait_until(lambda: "needs" in memory(app.screen.query_one(LoadForm)))
    return app.screen.query_one(LoadForm)


def memory(form: LoadForm) -> str:
    return str(form.query_one("#load-memory", Static).content)


async def test_a_file_is_loaded_as_was_said(chat_app: IngotApp, gguf_file: Path) -> None:
    remember(gguf_file, LoadSettings(context=256, kv_type="q8_0"))
    app = chat_app
    async with app.run_test(size=(120, 40)) as pilot:

        async def loaded(context: int) -> None:
            await wait_until(
                lambda: is_ready(app) and app.services.host.engine.context == context  # type: ignore[union-attr]
            )

        async def picked() -> None:
            """The list, with the cursor on the loaded file."""
            await pilot.press("ctrl+t")
            await wait_until(lambda: isinstance(app.screen, ModelsScreen))
            table = app.screen.query_one(ModelTable)
            await wait_until(lambda: table.record and table.record.key == table.current)

        await loaded(256)
        await shown(app)
        await picked()
        await pilot.press("ctrl+s")
        form = await form_of(app)
        assert form.text_of("context") == "256"
        await pilot.click("#load-reset")
        assert form.text_of("context") == form.text_of("kv_type") == ""
        assert "usual" in form.query_one("#threads", Input).placeholder
        await pilot.press("escape", "escape")  # which changes nothing
        assert remembered(gguf_file) == LoadSettings(context=256, kv_type="q8_0")
        await picked()
        await pilot.click("#load")
        form = await form_of(app)
        before = memory(form)
        await pilot.click("#load-reset")
        form.query_one("#context").focus()
        await pilot.press(*"128", "tab", "0")
        await wait_until(lambda: "threads" in form.errors)
        await pilot.press("ctrl+s")  # refused, and the cursor is where it is wrong
        assert isinstance(app.screen, LoadScreen)
        assert form.query_one("#threads", Input).has_focus
        await pilot.press("backspace", "1")
        await wait_until(lambda: memory(form) not in ("", before))
        await pilot.click("#load-use")
        await loaded(128)
        assert app.services.host.details.endswith("1 thread")
        assert remembered(gguf_file) == LoadSettings(context=128, threads=1)
