"""The working folder is deleted while the app runs: nothing ends, and whole paths still work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from app.chat.conversation import Conversation
from app.models.catalog import entry_of
from app.tui.screens.batch_panels import BatchFilesScreen
from app.tui.screens.compare_prompts import ComparePromptsScreen
from app.tui.screens.dialogs import AskScreen
from app.tui.screens.files import AttachScreen, ExportScreen
from app.tui.screens.models import ModelsScreen, ModelTable
from app.tui.screens.quantize import QuantizeScreen
from app.tui.widgets.quantize_form import QuantizeForm
from quantize.build import preflight
from tests.app.tui.chat_app import add_turn
from tests.app.tui.places import judged
from tests.support import wait_until


@pytest.fixture(autouse=True)
def nowhere(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that was deleted is the working folder; what is given back is there."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(FileNotFoundError):
        Path.cwd()
    return tmp_path


async def test_compare(bare: Any, pebble_built: Path, nowhere: Path) -> None:
    entries = [entry_of(pebble_built / name) for name in ("pebble-q8_0.gguf", "pebble-q4_k_m.gguf")]
    async with bare.run_test(size=(120, 40)) as pilot:
        screen = ComparePromptsScreen(entries)
        bare.show(screen)
        await wait_until(lambda: screen.query("#prompts-list"))
        await pilot.pause()
        screen.query_one("#prompts", Input).value = "prompts.jsonl"
        await pilot.press("ctrl+g")
        form = screen.query_one("#prompts-form")
        assert "no such file" in form.errors["prompts"]  # type: ignore[attr-defined]
        screen.results = judged(2)
        for name, there in (("kept.md", False), (str(nowhere / "kept.md"), True)):
            await pilot.press("f9")
            await wait_until(
                lambda: isinstance(bare.screen, AskScreen) and bare.screen.query("#text")
            )
            bare.screen.query_one(Input).value = name
            await pilot.press("enter")
            await wait_until(lambda: bare.screen is screen)
            told = "Saved" if there else "no such folder"
            await wait_until(lambda told=told: any(told in n.message for n in bare._notifications))  # type: ignore[misc]
        assert (nowhere / "kept.md").exists()


async def test_quantize(bare: Any, pebble: Path) -> None:
    preflight._known.cache_clear()  # a child of this folder has to find the sizes
    async with bare.run_test(size=(120, 40)) as pilot:
        screen = QuantizeScreen()
        bare.show(screen)
        await wait_until(lambda: screen.query("#model"))
        await pilot.pause()
        form = screen.query_one(QuantizeForm)
        for model, wrong in (("nothing-here", True), (str(pebble), False)):
            screen.query_one("#model", Input).value = model
            await wait_until(lambda wrong=wrong: bool(form.errors) is wrong)  # type: ignore[misc]
            await wait_until(lambda wrong=wrong: (form._forecast is None) is wrong)  # type: ignore[misc]
            assert "Errno" not in str(form.errors)


async def test_files(bare: Any, nowhere: Path) -> None:
    store = bare.services.store
    chat = store.new_chat().id
    add_turn(store, chat, None, "How?", "So.")
    async with bare.run_test(size=(120, 40)) as pilot:
        bare.show(BatchFilesScreen(Path()))
        await pilot.pause()
        await pilot.press("backspace")
        await pilot.pause()
        assert isinstance(bare.screen, BatchFilesScreen)
        await pilot.press("escape")
        bare.show(AttachScreen())
        await wait_until(lambda: isinstance(bare.screen, AttachScreen) and bare.focused)
        await pilot.press(*"x.txt", "enter")
        problem = bare.screen.query_one(".problem")
        await wait_until(lambda: "x.txt" in str(problem.content))
        await pilot.press("escape", "escape")
        for path, there in (("chat.md", False), (str(nowhere / "chat.md"), True)):
            bare.ended_with = None
            panel = ExportScreen(Conversation.open(store, chat), path)
            bare.show(panel)
            await wait_until(lambda panel=panel: bare.screen is panel and bare.focused)  # type: ignore[misc]
            await pilot.press("enter")
            if there:
                await wait_until(lambda: bare.ended_with)
            else:
                problem = panel.query_one(".problem")
                await wait_until(lambda problem=problem: str(problem.content))  # type: ignore[misc]
                await pilot.press("escape")
        assert (nowhere / "chat.md").exists()


async def test_models(bare: Any, pebble_built: Path) -> None:
    """One that is named by a path that was of the folder is not there any more."""
    async with bare.run_test(size=(120, 40)) as pilot:
        screen = ModelsScreen(["gone.gguf", str(pebble_built)], current="gone.gguf")
        bare.show(screen)
        await wait_until(lambda: screen.query(ModelTable))
        table = screen.query_one(ModelTable)
        await wait_until(lambda: len(table.rows) > 4)
        await pilot.pause()
        assert [one.path.name for one in table.rows if one.broken] == ["gone.gguf"]
