"""What holds in the whole app, with a real model where one is needed."""

import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.chat.host import HostState
from app.chat.store.records import Role, State
from app.models import library as models
from app.options import ModelOptions
from app.tui import app as shell
from app.tui.app import IngotApp, TooSmall
from app.tui.screens.models import ModelTable
from app.tui.services import Start, open_services
from tests.app.tui.chat_app import out_of_models
from tests.app.tui.conftest import ask, is_ready
from tests.support import wait_until


async def test_quitting_while_a_model_loads(chat_app: IngotApp, monkeypatch: pytest.MonkeyPatch):
    load, may_load = models.load_engine, threading.Event()

    def late(*given: Any, **named: Any) -> Any:
        may_load.wait(60)
        return load(*given, **named)

    monkeypatch.setattr(models, "load_engine", late)
    before = set(psutil.Process().children())  # of other tests in this process
    async with chat_app.run_test(size=(80, 24)) as pilot:
        await wait_until(lambda: chat_app.services.host.state is HostState.LOADING)
        may_load.set()
        await wait_until(lambda: set(psutil.Process().children()) - before)
        began = time.monotonic()
        await pilot.press("ctrl+q")
    assert time.monotonic() - began < 60
    assert chat_app.services.host.engine is None
    await wait_until(lambda: not set(psutil.Process().children()) - before)


async def test_quitting_while_an_answer_streams_keeps_it_and_ends_the_engine(
    endless_app: IngotApp,
):
    store = endless_app.services.store
    async with endless_app.run_test(size=(80, 24)) as pilot:
        chat: Any = endless_app.screen
        await wait_until(lambda: is_ready(endless_app))
        engine = endless_app.services.host.engine
        pid = engine.pid
        assert pid is not None
        await ask(pilot, "Tell me a long story about a fox, a crow and a bear.")
        await wait_until(lambda: chat.turn is not None and chat.turn.meter.tokens >= 3)
        began = time.monotonic()
        await pilot.press("ctrl+q")
    assert time.monotonic() - began < 60
    assert not psutil.pid_exists(pid)
    [question, answer] = store.messages(store.chats()[0].id)
    assert question.role is Role.USER
    assert answer.state is State.STOPPED
    assert answer.text
    assert endless_app.return_code == 0


async def test_what_was_named_is_offered_though_it_did_not_load(
    services, pebble_built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A folder that has no file of the recipe that was asked for: its others are in the list."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("app.models.catalog._ROOT", tmp_path)
    services.start = Start(str(pebble_built), ModelOptions(recipe="q2_k"))
    app = IngotApp(services)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await wait_until(lambda: services.host.state is HostState.FAILED)
        await pilot.press("ctrl+t")
        await wait_until(lambda: app.screen.query("ModelTable"))
        table = app.screen.query_one(ModelTable)
        await wait_until(lambda: len(table.rows) == 4)


async def test_ctrl_c_puts_away_what_was_typed_and_resuming_brings_it_back(
    services, monkeypatch: pytest.MonkeyPatch
):
    now = 100.0
    monkeypatch.setattr(shell, "_now", lambda: now)
    app = IngotApp(services)
    async with app.run_test(size=(80, 24)) as pilot:
        chat = await out_of_models(pilot)
        await pilot.press("ctrl+c")
        now += 2.1  # too late for the second one
        await pilot.press("ctrl+c", "a", "ctrl+c")  # a key between the two: one stays
        assert app.return_code is None
        await pilot.press(*"long", "ctrl+j", *"draft", "ctrl+c")
        assert chat.prompt.text == ""
        await pilot.press("up")
        assert chat.prompt.text == "long\ndraft"
        await pilot.press("ctrl+c", "ctrl+c")
        await wait_until(lambda: app.return_code == 0)
    services.start = Start(chat=services.store.chats()[0].id)  # as --resume finds it
    again = IngotApp(services)
    async with again.run_test(size=(80, 24)) as pilot:
        chat = await out_of_models(pilot)
        assert chat.prompt.text == "long\ndraft"
        await chat.answer.send("sent")
        assert services.store.draft(chat.session.chat_id) == ""


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            'theme = "nowhere"\nfoo = 1\n[keymap]\n"app.quitt" = "f10"\n',
            ["foo", "did you mean app.quit?", "there is no theme nowhere"],
        ),
        (
            "".join(f"foo{n} = 1\n" for n in range(9)),
            ["foo2", "6 more settings are wrong: `ingot config` lists them all"],
        ),
    ],
)
async def test_what_is_wrong_with_the_settings_is_told(home: Path, wrong: str, says: list[str]):
    settings = home / "config" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(wrong)
    with open_services(Start()) as services:
        app = IngotApp(services)
        async with app.run_test(size=(80, 24), notifications=True):
            await wait_until(lambda: len(_told(app)) >= 3)
            await wait_until(lambda: all(one in _messages(app) for one in says))
            assert len(_told(app)) <= 4


async def test_a_terminal_that_is_too_small_is_told_and_nothing_breaks(bare):
    async with bare.run_test(size=(80, 24)) as pilot:
        assert not bare.screen.query(TooSmall)
        await pilot.resize_terminal(59, 24)
        await wait_until(lambda: bare.screen.query(TooSmall))
        assert "59x24" in str(bare.screen.query_one(TooSmall).content)
        await pilot.press("f1")
        await wait_until(lambda: bare.screen.query(TooSmall) and bare.screen.is_modal)
        await pilot.press("escape")
        await pilot.resize_terminal(60, 16)
        await wait_until(lambda: not bare.screen.query(TooSmall))


def _messages(app: IngotApp) -> str:
    return " ".join(one.message for one in _told(app))


def _told(app: IngotApp) -> list[Any]:
    return list(app._notifications)
