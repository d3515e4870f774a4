"""`ingot chat` where it cannot draw, and what it refuses before it draws."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("streams", ["stdin", "stdout"])
def test_without_a_terminal_it_names_the_command_to_use_instead(streams: str):
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


@pytest.mark.parametrize(
    ("arguments", "env", "says"),
    [
        ([], {"TERM": "dumb"}, "TERM is dumb"),
        (["--resume"], {}, "no chat to resume"),
        (["--chat-template", "chatml", "--raw"], {}, "--raw leaves the chat template out"),
        (["--chat-template", "broken.jinja"], {}, "the chat template does not compile (line 2)"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_drawn(
    home: Path, tmp_path: Path, arguments: list[str], env: dict[str, str], says: str
):
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% for m in messages %}\n{{ m.content }\n{% endfor %}")
    given = [one.replace("broken.jinja", str(broken)) for one in arguments]
    done, told = _on_a_terminal(["chat", *given], **env)
    assert done == 2
    assert says in " ".join(told.split())
    assert "\x1b[?1049h" not in told


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
