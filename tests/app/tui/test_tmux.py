"""The real program with a real model in a real terminal, driven by keys only."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.chat.store.store import ChatStore
from tests.app.endless import ENVIRONMENT
from tests.app.tui.tmux import Tmux

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

QUESTION = "What is the capital of France?"
ANSWER = r"capital of France is Paris"


@pytest.fixture
def window(tmp_path: Path) -> Iterator[Tmux]:
    with Tmux(tmp_path / "tmux", 100, 30) as found:
        yield found


def test_a_users_way_through_the_app(window: Tmux, home: Path, endless_built: Path) -> None:
    window.start("chat", str(endless_built), env={"INGOT_HOME": str(home), **ENVIRONMENT})
    window.wait("pebble ·")  # in the header, once the model is loaded

    _send(window, "Tell me a story.")  # its answer takes minutes, until /set below ends that
    window.wait("lele")
    window.keys("Escape")
    window.wait("stopped")

    _send(window, "/new")
    window.wait("Explain an idea")  # of an empty chat
    _send(window, "/set frequency_penalty 0")
    window.wait("Sampling: frequency_penalty 0")
    _send(window, QUESTION)
    window.wait(ANSWER)
    window.wait(r"· stop\s")

    window.keys("M-e")
    window.wait("Editing")
    window.keys("C-a")
    window.type("Please tell me: ")
    window.keys("Enter")
    window.wait(r"2/2")
    window.wait("Please tell me")
    window.keys("M-Left")
    window.wait(r"1/2")
    window.wait("Please tell me", gone=True)
    window.wait(ANSWER)

    window.keys("C-o")
    window.wait("Search in all chats")
    window.type("story")
    window.wait(r" 1 ─╯")  # one chat of the two has the word
    window.keys("Enter")
    window.wait("Tell me a story")

    window.keys("F3")
    window.wait("What all files are asked")  # two of the model's files are there already
    _send(window, QUESTION)
    window.wait(rf"(?s){ANSWER}.*{ANSWER}")
    window.wait(r"equal, \d+ tokens|differ")

    window.keys("F2")
    window.wait("Tell me a story")
    window.keys("C-q")
    window.wait("code=0")


def test_the_window_may_change_its_size(window: Tmux, home: Path) -> None:
    window.start("chat", "--no-mouse", env={"INGOT_HOME": str(home)})
    window.wait("Models")
    window.keys("Escape")
    window.resize(50, 12)
    window.wait("50x12")
    window.resize(200, 60)
    window.wait(r"[^\n]{150}")  # the prompt's border among others
    window.wait("Write a message")
    window.type("a")
    window.wait("│ *a *│")
    window.keys("C-c")
    window.wait("│ *a *│", gone=True)  # put away
    window.type("x")  # a key between them: it is the first time again
    window.wait("│ *x *│")
    window.send(b"\x03\x03")  # at once: within two seconds on a busy machine too
    window.wait("code=0")


def test_bytes_that_come_at_once_keep_their_order(window: Tmux, home: Path) -> None:
    window.start("chat", "--no-mouse", env={"INGOT_HOME": str(home)})
    window.wait("Models")
    window.keys("Escape")
    window.wait("Write a message")
    window.send(b"ABC\r/new\rxyz")
    window.wait(r"│\s*xyz *│")
    window.wait("Waits for a model")
    window.keys("Escape")  # else a second message would be refused
    window.wait("Waits for a model", gone=True)
    window.send(b"\x7f\x7f\x7fone\x0atwo\x1b\rthree")  # backspaces, ctrl+j, alt+enter
    window.wait(r"│\s*one *│\n[^\n]*two *│\n[^\n]*three *│")
    window.keys("C-q")
    window.wait("code=0")
    with ChatStore.open(home / "data" / "chats.db") as store:
        draft, sent = store.chats()
        assert store.draft(draft.id) == "one\ntwo\nthree"
        assert [one.text for one in store.messages(sent.id)] == ["ABC"]


def _send(window: Tmux, text: str) -> None:
    window.type(text)
    window.wait(text.split()[-1].replace("?", r"\?"))
    window.keys("Enter")
