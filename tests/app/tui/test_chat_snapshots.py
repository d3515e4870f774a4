"""Pictures of the chat screen."""

import asyncio
from typing import Any

import pytest

from app.chat.figures import StatusFigures
from app.chat.store.records import State
from app.chat.store.store import ChatStore
from app.config.settings import Config
from app.monitor.monitor import Monitor
from app.tools.calls import CallState, ToolCall
from app.tui.app import IngotApp
from app.tui.measure import RecordedEngine, RecordedHost
from app.tui.screens.chat import ChatScreen
from app.tui.services import Services, Start
from app.tui.widgets.call_lines import CallLine
from app.tui.widgets.markdown import AnswerMarkdown
from app.tui.widgets.prose import CodeBlock
from tests.app.tui.chat_app import ANSWER, add_turn, shown
from tests.app.tui.conftest import SIZES
from tests.support import wait_until

FIGURES = StatusFigures(decode_tps=42.5, ttft_s=0.135, used=3188, context=4096)
MODEL = "pebble · q8_0"


def made(home: Any) -> IngotApp:
    host = RecordedHost(RecordedEngine([], 1))
    host._label, host.details = MODEL, "llamacpp · 2 threads"
    return IngotApp(Services(Config(), ChatStore.open(), host, Monitor(host), Start("recorded")))


async def freeze(screen: ChatScreen, figures: StatusFigures) -> None:
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
        await asyncio.sleep(0.1)
        sizes.append(screen.transcript.virtual_size.height)
    bar.window_virtual_size = screen.transcript.virtual_size.height
    bar.position = screen.transcript.scroll_offset.y
    bar.refresh()


@pytest.mark.parametrize("size", SIZES)
def test_empty(home, snap, size: tuple[int, int]):
    async def before(pilot: Any) -> None:
        screen = await shown(pilot.app)
        await freeze(screen, StatusFigures(used=0, context=4096))

    assert snap(made(home), terminal_size=size, run_before=before)


@pytest.mark.parametrize("size", SIZES)
def test_conversation(home, snap, size: tuple[int, int]):
    app = made(home)
    store = app.services.store
    chat = store.new_chat().id
    first = add_turn(store, chat, None, "Tell me of the river", "<think>\nA boat.\n</think>\nYes.")
    store.add_message(chat, first, "Longer")
    add_turn(store, chat, first, "Longer, with code", ANSWER, state=State.STOPPED)

    async def before(pilot: Any) -> None:
        screen = await shown(pilot.app)
        await screen.open_chat(chat)
        await pilot.pause()
        await freeze(screen, FIGURES)

    assert snap(app, terminal_size=size, run_before=before)


@pytest.mark.parametrize("size", SIZES)
def test_calls(home, snap, size: tuple[int, int]):
    app = made(home)
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
        await freeze(screen, FIGURES)

    assert snap(app, terminal_size=size, run_before=before)


@pytest.mark.parametrize("size", SIZES)
def test_streaming(home, snap, size: tuple[int, int]):
    app = made(home)
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
        await freeze(screen, FIGURES)

    assert snap(app, terminal_size=size, run_before=before)
