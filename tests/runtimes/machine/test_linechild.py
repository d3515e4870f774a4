"""Children that answer in lines of JSON: those that do not read or end in their middle."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from runtimes.machine.linechild import LineChild, LineChildError

_ECHO = """
from runtimes.machine.linechild import exchange
questions, answer = exchange()
for question in questions:
    answer(len(question))
"""


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "echo_child.py").write_text(_ECHO)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.getcwd()}")
    return "echo_child"


def test_a_child_that_does_not_read_ends_with_its_time(echo: str) -> None:
    with LineChild(echo, name="the child") as child:
        assert child.ask("x" * 10) == 10
        os.kill(child.pid, signal.SIGSTOP)
        with pytest.raises(LineChildError):  # what does not fit into the pipe is not waited for
            child.ask("x" * 2**20, 0.5)
