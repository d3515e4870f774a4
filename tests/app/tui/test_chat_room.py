"""What does not fit into the context, and what is sent before there is one."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.chat.host import EngineHost
from app.chat.store.records import Attachment, State
from app.models import library as models
from app.tui.app import IngotApp
from app.tui.screens.dialogs import OverflowScreen
from tests.app.tui.chat_app import add_turn, chatting
from tests.support import wait_until


async def test_more_of_an_answer_that_filled_the_context_is_asked_about(make, host: EngineHost):
    app = make()
    store, engine = app.services.store, host.engine
    long = "the river"
    while len(engine.encode(long)) < 0.6 * engine.context:
        long += " was wide and the river"
    chat = store.new_chat().id
    first = add_turn(store, chat, None, "One", long)
    asked = store.add_message(chat, first, "Two")
    cut = store.begin_answer(chat, asked.id).id
    store.end_answer(
        replace(store.message(cut), text=long, token_ids=engine.encode(long), state=State.CUT)
    )
    async with chatting(app, chat) as (pilot, screen):
        await pilot.press("ctrl+g")
        await wait_until(lambda: isinstance(app.screen, OverflowScreen))
        await pilot.press("escape")
        await wait_until(lambda: app.screen is screen)
        assert not screen.busy
        assert store.message(cut).text == long
        await pilot.press("ctrl+g")
        await wait_until(lambda: isinstance(app.screen, OverflowScreen))
        await pilot.press("enter")  # without the oldest turn
        await wait_until(lambda: not screen.busy and len(store.message(cut).text) > len(long))
        assert screen.path[0].dropped
        assert store.message(cut).id == screen.path[-1].id


@pytest.fixture
def may_load(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No model is loaded before this is set."""
    load, go = models.load_engine, threading.Event()

    def late(*arguments: Any, **options: Any) -> Any:
        go.wait()
        return load(*arguments, **options)

    monkeypatch.setattr(models, "load_engine", late)
    yield go
    go.set()


async def test_what_was_sent_while_the_model_loads_and_does_not_fit_is_a_draft_again(
    chat_app: IngotApp, may_load: threading.Event, tmp_path: Path
):
    store, chat = chat_app.services.store, chat_app.services.store.new_chat().id
    edited = store.message(add_turn(store, chat, None, "One", "an answer")).parent
    notes = Attachment("notes.txt", "A mill by the river.")
    long = "the river was wide " * 400
    async with chatting(chat_app, chat) as (pilot, screen):
        await pilot.press(*"next", "alt+e")
        screen.session.attached.append(notes)
        screen.prompt.fill(long)
        await pilot.press("enter")
        await wait_until(lambda: len(screen.path) == 1)
        await wait_until(lambda: "Waits for the model" in str(screen.notice.visual))
        may_load.set()
        await wait_until(lambda: isinstance(chat_app.screen, OverflowScreen))
        await pilot.press("escape")
        await pilot.pause()
        assert [message.text for message in screen.path] == ["One", "an answer"]
        assert [message.text for message in store.messages(chat)] == ["One", "an answer"]
        assert store.chat(chat).leaf == screen.path[-1].id
        assert screen.prompt.text == long
        assert screen.session.editing == edited
        assert screen.session.attached == [notes]
        assert not screen.busy
        await pilot.press("escape")
        assert screen.prompt.text == "next"
