"""A real terminal for the real program: a tmux server of its own."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


class Tmux:
    """One session of one window; a context manager that ends the server."""

    def __init__(self, socket: Path, width: int = 80, height: int = 24) -> None:
        self._socket = socket
        self._size = ("-x", str(width), "-y", str(height))

    def start(self, *arguments: str, env: dict[str, str]) -> None:
        """Run `ingot` with ``arguments``; its exit code is shown when it ends."""
        command = shlex.join([sys.executable, "-m", "app", *arguments])
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        named = [f"{name}={value}" for name, value in {**kept, **env}.items()]
        named += ["TERM=tmux-256color", "LANG=C.UTF-8"]
        shown = f"{command}; echo code=$?; sleep 60"
        run = shlex.join(["env", "-i", *named, "sh", "-c", shown])
        self._tmux("-f", "/dev/null", "new-session", "-d", *self._size, "-c", str(ROOT), run)

    def keys(self, *names: str) -> None:
        """Press keys by tmux's names, such as Enter, F3 or C-q."""
        self._tmux("send-keys", *names)

    def type(self, text: str) -> None:
        """Type ``text`` as it is."""
        self._tmux("send-keys", "-l", text)

    def screen(self) -> str:
        """What is shown."""
        return self._tmux("capture-pane", "-p")

    def wait(self, pattern: str, seconds: float = 90.0, *, gone: bool = False) -> str:
        """Wait until the screen matches (or, ``gone``, no longer does); the screen."""
        limit = time.monotonic() + seconds
        while True:
            shown = self.screen()
            if bool(re.search(pattern, shown)) is not gone:
                return shown
            assert time.monotonic() < limit, f"waited for {pattern!r}:\n{shown}"
            time.sleep(0.05)

    def __enter__(self) -> "Tmux":
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(self._command("kill-server"), capture_output=True, check=False)

    def _command(self, *arguments: str) -> list[str]:
        program = shutil.which("tmux")
        assert program is not None
        return [program, "-S", str(self._socket), *arguments]

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            self._command(*arguments), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
