"""The real program on a terminal of its own: what it writes, and how it ends."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.chat.store.records import Message, State
from app.chat.store.store import ChatStore
from tests.app.endless import ENVIRONMENT
from tests.app.tui.chat_app import chatting, text_of
from tests.app.tui.held import recorded
from tests.app.tui.terminal import Terminal, answering, generating
from tests.support import wait_until

# What the keys F3 to F6 send, and a word that only their screens have.
MODES = {"\x1bOR": "after", "\x1bOS": "Template", "\x1b[15~": "q4_k_m", "\x1b[17~": "TTFT"}
TYPED = "a long thought that nobody has sent"
# Parameters of "select graphic rendition" that are colours, defaults and bright ones included.
_COLOURS = {*range(30, 50), *range(90, 108)}
_SGR = re.compile(rb"\x1b\[([0-9;:]*)m")


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    started: list[Terminal] = []
    yield started
    for one in started:
        one.close()


def _answer(home: Path) -> tuple[State, str]:
    with ChatStore.open(home / "data" / "chats.db") as store:
        [_, answer] = store.messages(store.chats()[0].id)
        return answer.state, answer.text


def test_no_color_means_no_colour_code_and_a_signal_ends_it_in_order(
    terminals: list[Terminal], home: Path, endless_gguf: Path
) -> None:
    env = {"INGOT_HOME": str(home), **ENVIRONMENT, "NO_COLOR": "1"}
    one = Terminal("chat", endless_gguf, env=env)
    terminals.append(one)
    one.wait("q8_0")
    one.press("\x1bOP")  # F1: Markdown and a table
    one.wait("Help")
    one.press("\x1bOP")
    one.press("\x10")  # ctrl+p: a list with a highlight
    one.wait("Search")
    one.press("\x1b")
    for keys, word in MODES.items():
        one.press(keys)
        one.wait(word)
    one.press("\x1bOQ")
    answering(one)
    engine = psutil.Process(one.process.pid).children()
    one.process.send_signal(signal.SIGTERM)
    assert one.ended() == 128 + signal.SIGTERM  # the answer would have taken minutes
    assert engine
    assert not any(child.is_running() for child in engine)
    state, text = _answer(home)
    assert state is State.STOPPED
    assert text
    left = one.written[-200:]
    assert b"\x1b[?1049l" in left
    assert b"\x1b[?25h" in left, "the cursor is there again"
    codes = [code for found in _SGR.findall(one.written) for code in found.split(b";") if code]
    assert not {int(code.split(b":")[0]) for code in codes} & _COLOURS
    assert {b"1", b"7"} <= set(codes), "bold and reverse stay"
    assert b"\x1b]1" not in one.written, "no palette either"


def test_a_terminal_of_sixteen_colours_gets_its_own(terminals: list[Terminal], home: Path) -> None:
    env = {"INGOT_HOME": str(home), "TERM": "xterm-16color", "COLORTERM": "", "NO_COLOR": ""}
    one = Terminal("chat", env=env)
    terminals.append(one)
    one.wait("Models")
    one.press("\x1b[17~")  # F6: gauges and histories
    one.wait("Memory")
    one.press("\x11")
    one.ended()
    assert not re.search(rb"\x1b\[[0-9;]*[34]8;[25];", one.written), "more than sixteen"
    assert re.search(rb"\x1b\[[0-9;]*93", one.written), "bright yellow for what is active"


def test_when_the_terminal_goes_away_it_ends_and_the_answer_is_kept(
    terminals: list[Terminal], home: Path, endless_gguf: Path
) -> None:
    one = generating(home, endless_gguf)
    terminals.append(one)
    one.hang_up()
    one.process.send_signal(signal.SIGHUP)  # as the kernel does for a controlling terminal
    one.process.wait(timeout=120)  # the answer would have taken minutes
    state, text = _answer(home)
    assert state is State.STOPPED
    assert text


async def test_what_had_come_before_a_kill_is_there_again(home: Path, endless_gguf: Path):
    with ChatStore.open() as store:
        store.add_message(store.new_chat().id, None, "An older chat.")
    terminal = generating(home, endless_gguf)
    try:
        await wait_until(lambda: len(streamed().text) > 30)
        saved = streamed()
        assert saved.state is State.STREAMING
        terminal.press(TYPED)
        await wait_until(lambda: draft(saved.chat) == TYPED)
    finally:
        terminal.close()
    with ChatStore.open() as store:
        lost = store.message(saved.id)
        assert lost.state is State.LOST
        assert len(lost.text) >= len(saved.text)
        assert lost.figures.completion_tokens > 0
        assert store.messages(lost.chat)[0].text == "Tell me a story."
        again, _ = recorded(home)
        async with chatting(again, lost.chat) as (pilot, screen):
            await pilot.pause()
            view: Any = screen.transcript.view_of(saved.id)
            assert view.body.text.strip() == lost.text.strip()
            assert "Ingot ended while this was being written" in text_of(view, "state")
            assert "tokens" in text_of(view, "foot")
            assert screen.prompt.text == TYPED
    resumed = Terminal("chat", "--resume", env={"INGOT_HOME": str(home), **ENVIRONMENT})
    try:
        resumed.wait(TYPED)
    finally:
        resumed.close()


def draft(chat: int) -> str:
    """Return what was typed and not sent, as it is saved by now."""
    with ChatStore.open() as store:
        return store.draft(chat)


def streamed() -> Message:
    """The answer as it is saved by now."""
    with ChatStore.open() as store:
        [_, answer] = store.messages(store.chats()[0].id)
        return answer
