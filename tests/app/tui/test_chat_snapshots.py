"""Pictures of the chat screen."""

import asyncio
from typing import Any

from app.chat.figures import StatusFigures
from app.chat.store.records import State
from app.tools.calls import CallState, ToolCall
from app.tui.screens.chat import ChatScreen
from app.tui.widgets.markdown import AnswerMarkdown
from app.tui.widgets.message_view import CallLine
from app.tui.widgets.prose import CodeBlock
from tests.app.tui.chat_app import ANSWER, add_turn, shown
from tests.app.tui.conftest import SIZES
from tests.app.tui.held import recorded
from tests.support import wait_until

FIGURES = StatusFigures(decode_tps=42.5, ttft_s=0.135, used=3188, context=4096)
MODEL = "pebble · q8_0"


async def freeze(pilot: Any, screen: ChatScreen, figures: StatusFigures) -> None:
    """The gauge as it is given from now on; Markdown there, and code highlighted."""
    screen.workers.cancel_group(screen, "measure")
    screen.box.show_context(figures)
    screen.box.show_context = lambda *a, **k: None  # type: ignore[method-assign]
    for view in screen.transcript.views:
        for block in view.query(CodeBlock):
            await wait_until(lambda block=block: block.line_content(0).spans)
    for page in screen.query(AnswerMarkdown):  # which is read in a thread
        await wait_until(
            lambda page=page: page.children or not (page._initial_markdown or page.source)
        )
    bar, sizes = screen.transcript.vertical_scrollbar, [0.0, 1.0]
    while sizes[-1] != sizes[-2]:  # what grew a moment ago has been laid out
        await asyncio.sleep(0.02)
        await pilot.pause()
        sizes.append(screen.transcript.virtual_size.height)
    bar.window_virtual_size = screen.transcript.virtual_size.height
    bar.position = screen.transcript.scroll_offset.y
    bar.refresh()


def test_empty(home, snap):
    async def before(pilot: Any) -> None:
        screen = await shown(pilot.app)
        await freeze(pilot, screen, StatusFigures(used=0, context=4096))

    assert snap(recorded(home)[0], run_before=before)


def test_conversation(home, snap):
    app, _ = recorded(home)
    store = app.services.store
    chat = store.new_chat().id
    first = add_turn(store, chat, None, "Tell me of the river", "<think>\nA boat.\n</think>\nYes.")
    store.add_message(chat, first, "Longer")
    add_turn(store, chat, first, "Longer, with code", ANSWER, state=State.STOPPED)

    async def before(pilot: Any) -> None:
        screen = await shown(pilot.app)
        await screen.open_chat(chat)
        await pilot.pause()
        await freeze(pilot, screen, FIGURES)

    assert snap(app, terminal_size=SIZES[1], run_before=before)


def test_calls(home, snap):
    app, _ = recorded(home)
    store = app.services.store
    chat = store.new_chat().id
    time = ToolCall("a", "get_current_time", '{"timezone": "Europe/Oslo"}')
    read = ToolCall("b", "read_text_file", '{"path": "/home/me/notes/todo.txt", "head": 20}')
    calls = (
        time.ended(CallState.DONE, '{\n  "datetime": "2026-11-28T10:43:37+01:00"\n}', 0.21),
        read.ended(CallState.FAILED, "ENOENT: no such file or directory", 0.04),
        read.ended(CallState.REFUSED, "the user did not allow it"),
        read,
    )
    add_turn(store, chat, None, "What is there to do today?", "Let me see.", calls=calls)

    async def before(pilot: Any) -> None:
        screen = await shown(pilot.app)
        await screen.open_chat(chat)
        await wait_until(lambda: len(screen.query(CallLine)) == 4)
        screen.query(CallLine).first().toggle(True)
        await pilot.pause()
        await freeze(pilot, screen, FIGURES)

    assert snap(app, run_before=before)


def test_streaming(home, snap):
    app, _ = recorded(home)
    store = app.services.store
    chat = store.new_chat().id
    asked = store.add_message(chat, None, "Tell me of the river")
    begun = store.begin_answer(
        chat, asked.id, model=MODEL, file="pebble-q8_0.gguf", runtime="llamacpp"
    )
    store.save_answer(begun.id, ANSWER + "\nAnd **then** it went *further*, past the `mill`", (1,))

    async def before(pilot: Any) -> None:
        screen = await shown(pilot.app)
        await screen.open_chat(chat)
        screen.prompt.fill("/s")
        await pilot.pause()
        await freeze(pilot, screen, FIGURES)

    assert snap(app, run_before=before)
