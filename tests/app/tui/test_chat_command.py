"""`ingot chat` where it cannot draw, and what it refuses before it draws."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("streams", ["stdin", "stdout"])
def test_without_a_terminal_it_names_the_command_to_use_instead(streams: str) -> None:
    master, slave = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "app", "chat", "some-model"],
            cwd=ROOT,
            stdin=slave if streams == "stdin" else subprocess.DEVNULL,
            stdout=slave if streams == "stdout" else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "TERM": "xterm"},
            timeout=120,
        )
    finally:
        os.close(master)
        os.close(slave)
    told = done.stderr.decode()
    assert done.returncode == 2
    missing = "stdin" if streams == "stdout" else "stdout"
    assert f"{missing} is not a terminal" in told
    assert "ingot run some-model" in told
    assert "ingot batch IN OUT --model some-model" in told


def test_a_terminal_that_cannot_move_its_cursor_is_refused(home: Path) -> None:
    done, told = _on_a_terminal(["chat"], TERM="dumb")
    assert done == 2
    assert "TERM is dumb" in told


def test_there_may_be_no_chat_to_resume(home: Path) -> None:
    done, told = _on_a_terminal(["chat", "--resume"])
    assert done == 2
    assert "no chat to resume" in told


def test_a_chat_that_does_not_exist_is_named_before_anything_is_drawn(home: Path) -> None:
    done, told = _on_a_terminal(["chat", "--chat", "41"])
    assert done != 0
    assert "41" in told
    assert "\x1b[?1049h" not in told


def test_one_chat_only(ingot: Any) -> None:
    done = ingot("chat", "--resume", "--chat", "3")
    assert done.returncode == 2
    assert "give one of them" in done.stderr


def test_a_template_that_cannot_be_used_is_told_before_anything_is_drawn(
    ingot: Any, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% for m in messages %}\n{{ m.content }\n{% endfor %}")
    done = ingot("chat", "--chat-template", str(broken))
    assert done.returncode == 2
    assert f"{broken}: the chat template does not compile (line 2)" in done.stderr
    done = ingot("chat", "--chat-template", "chatml", "--raw")
    assert done.returncode == 2
    assert "--raw leaves the chat template out" in done.stderr


def _on_a_terminal(arguments: list[str], **env: str) -> tuple[int, str]:
    """The exit code of `ingot` and all that it wrote, where every stream is a terminal."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "app", *arguments],
        cwd=ROOT,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", **env},
    )
    os.close(slave)
    written = b""
    try:
        while True:
            written += os.read(master, 4096)
    except OSError:  # how Linux says that the other end is closed
        pass
    finally:
        os.close(master)
    return process.wait(timeout=120), written.decode(errors="replace")
