"""The real program with a real model in a real terminal, driven by keys only."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    window.wait("What all files are asked")
    window.keys("F2")
    window.wait("Tell me a story")
    window.keys("C-q")
    window.wait("code=0")


def _send(window: Tmux, text: str) -> None:
    window.type(text)
    window.wait(text.split()[-1].replace("?", r"\?"))
    window.keys("Enter")
