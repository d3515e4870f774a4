"""Dialogs, lists and commands with the mouse alone: opened, chosen from, left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, OptionList
from textual.widgets._footer import FooterKey

from app.batch.watch import form as presets
from app.batch.watch.form import JobForm
from app.batch.watch.records import KnownJob
from app.chat import slash
from app.chat.budget import TokenBudget, Way, WayOut
from app.chat.conversation import Conversation
from app.chat.presets import find
from app.tui.app import IngotApp
from app.tui.help import HelpScreen
from app.tui.screens import batch_panels
from app.tui.screens.answering import SamplingScreen, SystemScreen
from app.tui.screens.batch_panels import (
    BatchFilesScreen,
    BatchJobsScreen,
    BatchLeaveScreen,
    BatchPresetsScreen,
    BatchRowScreen,
    PresetTable,
)
from app.tui.screens.chat import ChatScreen
from app.tui.screens.chats import ChatChoice, ChatsScreen
from app.tui.screens.dialogs import (
    AskScreen,
    ConfirmScreen,
    CopyChoice,
    KeyHints,
    OverflowScreen,
    Panel,
    ThemeScreen,
)
from app.tui.screens.files import AttachScreen, ExportScreen
from app.tui.widgets.chat_sidebar import ChatList
from app.tui.widgets.message_view import MessageView
from app.tui.widgets.prompt import SlashMenu
from tests.app.tui.chat_app import add_turn
from tests.app.tui.test_batch_snapshots import frozen
from tests.app.tui.test_dialogs import place
from tests.support import wait_until

OPEN = object()
WAYS = [
    WayOut(Way.SHORTER, "allow a short answer only", TokenBudget(1900, 148, 2048)),
    WayOut(Way.DROP_TURNS, "leave the oldest turn out", TokenBudget(900, 512, 2048), (1,)),
]


@pytest.fixture(autouse=True)
def own_folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing else is in it."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "notes.txt").write_text("Some notes.")
    (folder / "questions.jsonl").write_text('{"prompt": "What?"}\n' * 48)
    return folder


async def show(bare: Any, panel: Panel[Any]) -> None:
    bare.ended_with = OPEN
    bare.show(panel)
    await wait_until(lambda: panel.query(KeyHints))


async def hint(pilot: Any, words: str) -> None:
    """Click a key at the bottom of a dialog, once it is told there."""
    await wait_until(lambda: words in " ".join(map(_text, pilot.app.screen.query(KeyHints))))
    await pilot.pause()
    assert await pilot.click(KeyHints, offset=place(pilot.app, words))


def _text(one: KeyHints) -> str:
    return str(one.visual)


async def option(pilot: Any, text: str, listed: str = "OptionList") -> None:
    """Click a line of a list."""
    found = pilot.app.screen.query_one(listed, OptionList)
    await wait_until(lambda: any(text in str(one.prompt) for one in found.options))
    await pilot.pause()
    lines = [found.render_line(y).text for y in range(found.size.height)]
    [y] = [y for y, line in enumerate(lines) if text in line]
    assert await pilot.click(found, offset=(3, y))


async def ended(bare: Any) -> Any:
    await wait_until(lambda: bare.ended_with is not OPEN)
    return bare.ended_with


async def test_every_dialog_is_left_by_a_click(bare: Any, own_folder: Path) -> None:
    async with bare.run_test(size=(100, 40)) as pilot:
        chat = bare.services.store.new_chat().id
        dialogs: list[Panel[Any]] = [
            SystemScreen(None, {}),
            SamplingScreen({}),
            AttachScreen(),
            ExportScreen(Conversation.open(bare.services.store, chat)),
            CopyChoice([("all", "So.")]),
            ThemeScreen(sorted(bare.available_themes), bare.theme),
            OverflowScreen(TokenBudget(2100, 512, 2048), WAYS),
            AskScreen("Name"),
            ConfirmScreen("Go?", "Go"),
            BatchFilesScreen(own_folder),
            BatchPresetsScreen(),
            BatchJobsScreen(),
            BatchRowScreen(frozen(), 12),
            BatchLeaveScreen("out.jsonl", lambda: None),
            ChatsScreen(bare.services.store),
            HelpScreen(bare.screen),
        ]
        for dialog in dialogs:
            await show(bare, dialog)
            await hint(pilot, "esc Back")
            assert not await ended(bare)
            assert not isinstance(bare.screen, Panel)


async def test_one_of_a_list(bare: Any) -> None:
    async with bare.run_test(size=(100, 40)) as pilot:
        for panel, line, result in (
            (CopyChoice([("all", "So."), ("code", "row()")]), "code", "row()"),
            (ThemeScreen(["ingot", "ingot-light"], "ingot"), "ingot-light", "ingot-light"),
            (OverflowScreen(TokenBudget(2100, 512, 2048), WAYS), "Leave the oldest", WAYS[1]),
        ):
            await show(bare, panel)
            await option(pilot, line)
            assert await ended(bare) == result


async def test_a_line_and_a_question(bare: Any) -> None:
    async with bare.run_test(size=(100, 40)) as pilot:
        await show(bare, AskScreen("Name", "old"))
        await hint(pilot, "enter OK")
        assert await ended(bare) == "old"
        for button, said in (("#yes", True), ("#no", False)):
            await show(bare, ConfirmScreen("Go?", "Go"))
            await pilot.pause()
            await pilot.click(button)
            assert await ended(bare) is said
        paused: list[bool] = []
        for button, leave in (("#run", True), ("#pause", True), ("#stay", False)):
            await show(bare, BatchLeaveScreen("out.jsonl", lambda: paused.append(True)))
            await pilot.pause()
            await pilot.click(button)
            assert await ended(bare) is leave
        assert paused == [True]


async def test_a_system_message_and_its_presets(bare: Any) -> None:
    async with bare.run_test(size=(100, 40)) as pilot:
        panel = SystemScreen("Rhyme.", {})
        await show(bare, panel)
        await hint(pilot, "F9 Save as preset")
        await wait_until(lambda: isinstance(bare.screen, AskScreen) and bare.screen.query("#text"))
        bare.screen.query_one(Input).value = "poet"
        await hint(pilot, "enter OK")
        await wait_until(lambda: any(one.name == "poet" for one in bare.services.config.presets))
        await wait_until(lambda: bare.screen is panel)
        await option(pilot, "coder", "#presets")
        assert panel._area.text == "Rhyme.", "the first click goes there"
        await option(pilot, "coder", "#presets")
        coder = find(bare.services.config, "coder")
        await wait_until(lambda: panel._area.text == coder.system)
        await option(pilot, "poet", "#presets")
        await hint(pilot, "delete Delete preset")
        await wait_until(lambda: isinstance(bare.screen, ConfirmScreen))
        await pilot.pause()
        await pilot.click("#yes")
        await wait_until(lambda: not bare.services.config.presets)
        await wait_until(lambda: bare.screen is panel)
        await hint(pilot, "ctrl+s Use")
        assert await ended(bare) == {"system": coder.system, "sampling": dict(coder.sampling)}


async def test_sampling(bare: Any) -> None:
    async with bare.run_test(size=(100, 40)) as pilot:
        panel = SamplingScreen({"temperature": 0.5, "top_k": 7})
        await show(bare, panel)
        await pilot.pause()
        await pilot.click("#top_k")
        await hint(pilot, "alt+l Reset line")
        assert panel.query_one("#temperature", Input).value == "0.5"
        await hint(pilot, "Use")
        assert await ended(bare) == {"temperature": 0.5}
        await show(bare, SamplingScreen({"temperature": 0.5}))
        await hint(pilot, "alt+r Reset all")
        await hint(pilot, "Use")
        assert await ended(bare) == {}


async def test_files(bare: Any, own_folder: Path) -> None:
    async with bare.run_test(size=(100, 40)) as pilot:
        await show(bare, AttachScreen())
        bare.screen.query_one("#path-line", Input).value = "no"
        await option(pilot, "notes.txt")
        await hint(pilot, "enter Take it")
        assert (await ended(bare)).text == "Some notes."
        chat = bare.services.store.new_chat().id
        add_turn(bare.services.store, chat, None, "How?", "So.")
        await show(bare, ExportScreen(Conversation.open(bare.services.store, chat), "chat.md"))
        await pilot.pause()
        await pilot.click("#json")
        await hint(pilot, "enter Take it")
        assert (await ended(bare)).name == "chat.json"
        (own_folder / "texts").mkdir()
        for clicks, result in (
            ([(10, 2)], own_folder / "chat.json"),
            ([(10, 1), "Take the folder"], own_folder / "texts"),
        ):
            await show(bare, BatchFilesScreen(own_folder))
            tree = bare.screen.query_one("_Tree")
            await wait_until(lambda tree=tree: len(tree.root.children) == 4)  # type: ignore[misc]
            await pilot.pause()
            for click in clicks:
                if isinstance(click, str):
                    await hint(pilot, click)
                else:
                    await pilot.click(tree, offset=click)
            assert await ended(bare) == result
        await show(bare, BatchFilesScreen(own_folder))
        await hint(pilot, "backspace Folder above")
        assert bare.screen.query_one("_Tree").path == own_folder.parent


async def test_what_a_batch_begins_with(
    bare: Any, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    presets.save("mine", JobForm(model="pebble.gguf"), own_folder)
    async with bare.run_test(size=(100, 40)) as pilot:
        for taken in (True, False):
            await show(bare, BatchPresetsScreen())
            table = bare.screen.query_one(PresetTable)
            await wait_until(lambda table=table: len(table.rows) == 2)  # type: ignore[misc]
            await pilot.pause()
            await pilot.click(table, offset=(4, 2))
            if taken:
                await pilot.click(table, offset=(4, 2))
                assert (await ended(bare)).model == "pebble.gguf"
            else:
                await hint(pilot, "Forget")
                await wait_until(lambda table=table: len(table.rows) == 1)  # type: ignore[misc]
                await hint(pilot, "esc Back")
        looked: list[int] = []

        def jobs() -> list[KnownJob]:
            looked.append(1)
            return [KnownJob(Path(f"{n}.jsonl"), "stopped", 1.0, 2, False, 1) for n in (1, 2)]

        monkeypatch.setattr(batch_panels, "known_jobs", jobs)
        await show(bare, BatchJobsScreen())
        await wait_until(lambda: looked)
        await hint(pilot, "ctrl+r Look again")
        await wait_until(lambda: len(looked) == 2)
        await pilot.pause()
        for _ in range(2):
            await pilot.click("#jobs-list", offset=(4, 2))
        assert await ended(bare) == Path("2.jsonl")
        await show(bare, BatchRowScreen(frozen(), 12))
        await wait_until(lambda: bare.screen.row)
        await hint(pilot, "Copy the answer")
        assert bare.clipboard == "12 plus 13 is 25."


async def test_chats(bare: Any) -> None:
    store = bare.services.store
    ids = {}
    for title in ("one", "two", "three"):
        ids[title] = store.new_chat().id
        add_turn(store, ids[title], None, "How?", "So.")
        store.update_chat(ids[title], title=title)
    async with bare.run_test(size=(100, 40)) as pilot:
        await show(bare, ChatsScreen(store))
        await option(pilot, "two")
        assert bare.screen.query_one(ChatList).chosen.chat.id == ids["two"]
        await hint(pilot, "ctrl+l Rename")
        await wait_until(lambda: isinstance(bare.screen, AskScreen) and bare.screen.query("#text"))
        bare.screen.query_one(Input).value = "second"
        await hint(pilot, "enter OK")
        await wait_until(lambda: store.chat(ids["two"]).title == "second")
        await option(pilot, "one")
        await hint(pilot, "delete Delete")
        await wait_until(lambda: len(store.chats()) == 2)
        await hint(pilot, "ctrl+z Undo")
        await wait_until(lambda: len(store.chats()) == 3)
        await option(pilot, "three")
        await hint(pilot, "delete Delete")
        await hint(pilot, "F10 Deleted")
        await wait_until(lambda: "30 days" in str(bare.screen.query_one("#said").content))
        await hint(pilot, "enter Open")
        await wait_until(lambda: len(store.chats()) == 3)
        await hint(pilot, "esc Back")
        await option(pilot, "second")
        await option(pilot, "second")
        assert (await ended(bare)).chat.id == ids["two"]
        await show(bare, ChatsScreen(store))
        await hint(pilot, "ctrl+n New")
        assert await ended(bare) == ChatChoice(None)


async def test_what_stands_in_the_footer(app: IngotApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_until(lambda: isinstance(app.screen, Panel))
        await hint(pilot, "esc Back")
        await wait_until(lambda: isinstance(app.screen, ChatScreen))
        chat = app.screen
        assert isinstance(chat, ChatScreen)
        one = app.services.store.new_chat().id
        add_turn(app.services.store, one, None, "How?", "So.")
        await chat.open_chat(one)
        await pilot.pause()
        await pilot.click(next(iter(chat.query(MessageView))))
        await wait_until(lambda: any(k.action == "screen.drop" for k in chat.query(FooterKey)))
        for action, there in (
            ("app.help", lambda: isinstance(app.screen, HelpScreen)),
            ("screen.drop", lambda: chat.path[0].dropped),
            ("screen.edit", lambda: chat.session.editing is not None),
        ):
            await pilot.pause()
            key = next(k for k in chat.query(FooterKey) if k.action.endswith(action[4:]))
            assert await pilot.click(key)
            await wait_until(there)
            if app.screen is not chat:
                await hint(pilot, "esc Back")
                await wait_until(lambda: app.screen is chat)


async def test_a_click_on_an_offered_command(app: IngotApp, monkeypatch: Any) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_until(lambda: isinstance(app.screen, Panel))
        await hint(pilot, "esc Back")
        await wait_until(lambda: isinstance(app.screen, ChatScreen))
        chat = app.screen
        assert isinstance(chat, ChatScreen)
        actions, did, run = {spec.action for spec in slash.SPECS}, list[str](), app.run_action

        async def noted(action: Any, *more: Any) -> bool:
            if action not in actions:
                return await run(action, *more)
            did.append(action)
            return True

        monkeypatch.setattr(app, "run_action", noted)
        for number, spec in enumerate(slash.SPECS):
            chat.prompt.fill("/")
            await wait_until(lambda: chat.menu.has_class("-shown"))
            await pilot.pause()
            for _ in range(len(slash.SPECS)):  # up to the top
                chat.menu.on_mouse_scroll_up()
            for _ in range(number):
                chat.menu.on_mouse_scroll_down()
            await pilot.pause()
            line = next(
                at
                for at, one in enumerate(str(chat.menu.visual).splitlines())
                if one.split()[0] == f"/{spec.name}"
            )
            did.clear()
            assert await pilot.click(SlashMenu, offset=(4, line))
            await pilot.pause()
            if spec.arguments:
                assert chat.prompt.text == f"/{spec.name} "
                await pilot.click(next(k for k in chat.query(FooterKey) if k.action == "send"))
            await wait_until(lambda: did)
            assert did == [spec.action]
