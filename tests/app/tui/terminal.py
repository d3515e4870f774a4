"""The real program on a pseudo-terminal."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

from tests.app.endless import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[3]


class Terminal:
    """`ingot` on a pseudo-terminal; everything that it writes is kept."""

    def __init__(
        self, *arguments: str | Path, env: dict[str, str], folder: Path | None = None
    ) -> None:
        """In ``folder`` as installed, else from the project's own folder."""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        installed = Path(sys.executable).with_name("ingot")
        program = [str(installed)] if folder else [sys.executable, "-m", "app"]
        self.process = subprocess.Popen(
            [*program, *map(str, arguments)],
            cwd=folder or ROOT,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **env},
        )
        os.close(slave)
        self._chunks: list[bytes] = []  # added to one another they would be copied each time
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:
                return
            self._chunks.append(data)

    @property
    def written(self) -> bytes:
        """All that it has written so far."""
        return b"".join(self._chunks)

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

    def ended(self) -> int:
        """Wait for its end, and for all that it has written; its exit code."""
        code = self.process.wait(timeout=120)
        self._reader.join(60)
        return code

    def hang_up(self) -> None:
        """The terminal goes away."""
        os.close(self._master)

    def close(self) -> None:
        """End what still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def answering(one: Terminal) -> None:
    """Ask for a story, and wait for its beginning."""
    one.press("Tell me a story.\r")
    one.wait("lele")


def generating(home: Path, model: Path, **env: str) -> Terminal:
    """A program in the middle of an answer that takes minutes (see ``tests.app.endless``)."""
    one = Terminal("chat", model, env={"INGOT_HOME": str(home), **ENVIRONMENT, **env})
    try:
        one.wait("q8_0")  # in the header as soon as the model is loaded
        answering(one)
    except BaseException:
        one.close()
        raise
    return one
