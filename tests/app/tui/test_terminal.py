"""The real program on a terminal of its own: what it writes, and how it ends."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from app.store.records import State
from app.store.store import Store

ROOT = Path(__file__).resolve().parents[3]
# Parameters of "select graphic rendition" that are colours, defaults and bright ones included.
_COLOURS = {*range(30, 50), *range(90, 108)}
_SGR = re.compile(rb"\x1b\[([0-9;:]*)m")


class Terminal:
    """`ingot` on a pseudo-terminal; everything that it writes is kept."""

    def __init__(self, *arguments: str | Path, env: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app", *map(str, arguments)],
            cwd=ROOT,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **env},
        )
        os.close(slave)
        self.written = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:
                return
            self.written += data

    def press(self, keys: str) -> None:
        """Send what a terminal sends for keys."""
        os.write(self._master, keys.encode())

    def wait(self, text: str, seconds: float = 90.0) -> None:
        """Wait until ``text`` was written."""
        limit = time.monotonic() + seconds
        while text.encode() not in self.written:
            assert time.monotonic() < limit, self.written[-3000:].decode(errors="replace")
            assert self.process.poll() is None, self.written.decode(errors="replace")
            time.sleep(0.02)

    def hang_up(self) -> None:
        """The terminal goes away."""
        os.close(self._master)

    def close(self) -> None:
        """End what still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    started: list[Terminal] = []
    yield started
    for one in started:
        one.close()


def _generating(started: list[Terminal], home: Path, model: Path, **env: str) -> Terminal:
    """A program in the middle of a long answer."""
    # Whatever was said becomes likelier, so that it goes on until the context is full.
    endless = {"INGOT_SAMPLING_TEMPERATURE": "0", "INGOT_SAMPLING_FREQUENCY_PENALTY": "-2"}
    one = Terminal("chat", model, env={"INGOT_HOME": str(home), **endless, **env})
    started.append(one)
    one.wait("llamacpp")  # in the status line as soon as the model is loaded
    one.press("Tell me a story.\r")
    one.wait("lele")
    return one


def _answer(home: Path) -> tuple[State, str]:
    with Store.open(home / "data" / "chats.db") as store:
        [_, answer] = store.messages(store.chats()[0].id)
        return answer.state, answer.text


def test_no_color_means_no_colour_code_at_all(
    terminals: list[Terminal], home: Path, gguf_file: Path
) -> None:
    one = _generating(terminals, home, gguf_file, NO_COLOR="1")
    one.press("\x1bOP")  # F1: Markdown and a table
    one.wait("Help")
    one.press("\x1bOP")
    one.press("\x10")  # ctrl+p: a list with a highlight
    one.wait("Search")
    one.press("\x1b")
    one.press("\x1b[17~")  # F6: gauges and histories
    one.wait("Events")
    one.press("\x11")
    assert one.process.wait(timeout=60) == 0
    codes = [code for found in _SGR.findall(one.written) for code in found.split(b";") if code]
    assert codes, "nothing was drawn"
    assert not {int(code.split(b":")[0]) for code in codes} & _COLOURS
    assert {b"1", b"7"} <= set(codes), "bold and reverse stay"
    assert b"\x1b]1" not in one.written, "no palette either"


def test_an_empty_no_color_means_colours(terminals: list[Terminal], home: Path) -> None:
    one = Terminal("chat", env={"INGOT_HOME": str(home), "NO_COLOR": ""})
    terminals.append(one)
    one.wait("Models")
    one.press("\x11")
    one.process.wait(timeout=60)
    assert re.search(rb"\x1b\[[0-9;]*38;2;\d+;\d+;\d+", one.written)
    triplets = {tuple(map(int, t)) for t in re.findall(rb"8;2;(\d+);(\d+);(\d+)", one.written)}
    assert any(len(set(t)) > 1 for t in triplets), "more than greys"


def test_a_signal_ends_it_in_order_and_the_answer_is_kept(
    terminals: list[Terminal], home: Path, gguf_file: Path
) -> None:
    one = _generating(terminals, home, gguf_file)
    engine = psutil.Process(one.process.pid).children()
    began = time.monotonic()
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(timeout=60) == 128 + signal.SIGTERM
    assert time.monotonic() - began < 10
    assert engine
    assert not any(child.is_running() for child in engine)
    state, text = _answer(home)
    assert state is State.STOPPED
    assert text
    left = one.written[-200:]
    assert b"\x1b[?1049l" in left
    assert b"\x1b[?25h" in left, "the cursor is there again"


def test_when_the_terminal_goes_away_it_ends_and_the_answer_is_kept(
    terminals: list[Terminal], home: Path, gguf_file: Path
) -> None:
    one = _generating(terminals, home, gguf_file)
    began = time.monotonic()
    one.hang_up()
    one.process.send_signal(signal.SIGHUP)  # as the kernel does for a controlling terminal
    one.process.wait(timeout=60)
    assert time.monotonic() - began < 10
    state, text = _answer(home)
    assert state is State.STOPPED
    assert text
