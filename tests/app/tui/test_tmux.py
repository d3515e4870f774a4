"""The real program with a real model in a real terminal, driven by keys only."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.tui.tmux import Tmux

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

QUESTION = "What is the capital of France?"
ANSWER = r"capital of France is Paris"


@pytest.fixture
def window(tmp_path: Path) -> Iterator[Tmux]:
    with Tmux(tmp_path / "tmux", 100, 30) as found:
        yield found


def test_a_users_way_through_the_app(window: Tmux, home: Path, pebble_built: Path) -> None:
    # Whatever was said becomes likelier: it goes on until the context is full, or /set ends that.
    env = {"INGOT_SAMPLING_TEMPERATURE": "0", "INGOT_SAMPLING_FREQUENCY_PENALTY": "-2"}
    window.start("chat", str(pebble_built), env={"INGOT_HOME": str(home), **env})
    window.wait("llamacpp|onnx", 60)  # in the line below, once the model is loaded

    _stop_an_answer(window)

    _send(window, "/new")
    window.wait("New chat")
    _send(window, "/set frequency_penalty 0")
    window.wait("Sampling: frequency_penalty 0")
    _send(window, QUESTION)
    window.wait(ANSWER)
    window.wait("ended by itself")

    window.keys("C-e")
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
    window.wait(rf"(?s){ANSWER}.*{ANSWER}", 60)
    window.wait(r"equal, \d+ tokens|differ", 60)

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
    window.keys("C-c")
    window.wait("Once more")
    window.keys("C-c")
    window.wait("code=0")


def _stop_an_answer(window: Tmux) -> None:
    """On a busy machine the screen may come so late that the answer is whole: then once more."""
    for _ in range(4):
        _send(window, "Tell me a story.")
        window.wait("lele")
        window.keys("Escape")
        if "stopped" in window.wait(r"· stopped|context\s+was full"):
            return
        _send(window, "/new")
        window.wait("New chat")
    raise AssertionError("no answer was stopped")


def _send(window: Tmux, text: str) -> None:
    window.type(text)
    window.wait(text.split()[-1].replace("?", r"\?"))
    window.keys("Enter")
