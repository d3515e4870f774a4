"""Chats for tests of the chat screen, and what its widgets show."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from textual.widgets import Label, Static

from app.chat.store.records import AnswerFigures, Message, State
from app.chat.store.store import ChatStore
from app.tui.app import IngotApp
from app.tui.screens.chat import ChatScreen
from app.tui.widgets.message_view import MessageView
from app.tui.widgets.transcript import Transcript
from tests.support import wait_until

FIGURES = AnswerFigures(120, 20, 248, 0.135, 1250.0, 42.5, 6.0, "stop")
ANSWER = """Long ago, a **small boat** went down the river.

1. It passed the mill.
2. It passed the old bridge.

```python
def row(boat, strokes):
    return boat.speed * strokes  # metres
```

That was *all*.
"""


def chat_of(app: IngotApp) -> ChatScreen:
    assert isinstance(app.screen, ChatScreen)
    return app.screen


async def shown(app: IngotApp) -> ChatScreen:
    """The chat screen, once one can type."""
    await wait_until(lambda: isinstance(app.screen, ChatScreen) and chat_of(app).prompt.has_focus)
    return chat_of(app)


async def out_of_models(pilot: Any) -> ChatScreen:
    """The chat, without the list of models that an app without a model begins with."""
    await wait_until(lambda: type(pilot.app.screen).__name__ == "ModelsScreen")
    await pilot.press("escape")
    return await shown(pilot.app)


@asynccontextmanager
async def chatting(
    app: IngotApp, chat: int | None = None, *, size: tuple[int, int] = (100, 30), **options: Any
) -> AsyncIterator[tuple[Any, ChatScreen]]:
    """The app with its chat screen, in which ``chat`` is shown, once one can type."""
    async with app.run_test(size=size, **options) as pilot:
        screen = await shown(app)
        if chat is not None:
            await screen.open_chat(chat)
        yield pilot, screen


async def answered(screen: ChatScreen, messages: int) -> Message:
    """The last message, once there are so many and the last is written."""
    await wait_until(lambda: len(screen.path) >= messages and not screen.busy)
    await wait_until(lambda: len(screen.transcript.entries) == len(screen.path))
    return screen.path[-1]


def at_end(transcript: Transcript) -> bool:
    """Whether the last line is in view, and there is more than fits."""
    return 0 < transcript.max_scroll_y == transcript.scroll_offset.y


def text_of(view: MessageView, part: str) -> str:
    """The foot, the state line or what it waits for, with single spaces; empty before it is
    there."""
    if part == "foot":
        return re.sub(r"\s+", " ", view.foot.render().plain).strip() if view.foot.display else ""
    if part == "waiting":
        parts = (str(one.visual) for one in view.query("Waiting Label").results(Label))
        return " ".join(filter(None, parts))
    widget = next(iter(view.query(f".{part}").results(Static)), None)
    return re.sub(r"\s+", " ", str(widget.visual)) if widget and widget.display else ""


def add_turn(
    store: ChatStore, chat: int, parent: int | None, question: str, answer: str, **end: Any
) -> int:
    """A question with its answer; the answer's number."""
    asked = store.add_message(chat, parent, question)
    begun = store.begin_answer(
        chat, asked.id, model="pebble · q8_0", file="/models/pebble-q8_0.gguf", runtime="llamacpp"
    )
    values = {"state": State.DONE, "figures": FIGURES} | end
    store.end_answer(replace(begun, text=answer, token_ids=(1, 2, 3), **values))
    return begun.id
