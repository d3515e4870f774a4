"""`ingot chat` where it cannot draw, and what it refuses before it draws."""

import io
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli.main import main

ROOT = Path(__file__).resolve().parents[3]
Run = Callable[..., tuple[int, str]]


class OnTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`ingot` in this process: its exit code and all that it wrote."""

    def made(
        *arguments: str, terminals: tuple[str, ...] = ("stdin", "stdout"), term: str = "xterm"
    ) -> tuple[int, str]:
        monkeypatch.setenv("TERM", term)
        capsys.readouterr()
        streams = {
            name: (OnTerminal if name in terminals else io.StringIO)()
            for name in ("stdin", "stdout")
        }
        with monkeypatch.context() as patch:
            for name, stream in streams.items():
                patch.setattr(sys, name, stream)
            code = main([*arguments])
        return code, streams["stdout"].getvalue() + capsys.readouterr().err

    return made


@pytest.mark.parametrize("stream", ["stdin", "stdout"])
def test_without_a_terminal_it_names_the_command_to_use_instead(run: Run, stream: str):
    code, told = run("chat", "some-model", terminals=(stream,))
    assert code == 2
    missing = "stdin" if stream == "stdout" else "stdout"
    assert f"{missing} is not a terminal" in told
    assert "ingot run some-model" in told
    assert "ingot batch IN OUT --model some-model" in told


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--resume"], "no chat to resume"),
        (["--chat-template", "chatml", "--raw"], "--raw leaves the chat template out"),
        (["--chat-template", "broken.jinja"], "the chat template does not compile (line 2)"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_drawn(
    run: Run, home: Path, tmp_path: Path, arguments: list[str], says: str
):
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% for m in messages %}\n{{ m.content }\n{% endfor %}")
    given = [one.replace("broken.jinja", str(broken)) for one in arguments]
    code, told = run("chat", *given)
    assert code == 2
    assert says in " ".join(told.split())
    assert "\x1b[?1049h" not in told


def test_a_dumb_terminal_is_refused(home: Path):
    """In a process of its own, where every stream is a terminal."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "chat"],
        cwd=ROOT,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "dumb"},
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
    assert process.wait(timeout=120) == 2
    assert b"TERM is dumb" in written
    assert b"\x1b[?1049h" not in written
