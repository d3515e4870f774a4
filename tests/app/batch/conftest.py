"""Jobs that leave nothing in the user's folder, and find nothing there."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from app.batch.journal.journal import journal_path
from tests.support import read_rows


@pytest.fixture(autouse=True)
def nothing_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """How soon a beginning is read, and so whether it is saved, depends on the machine."""
    monkeypatch.setenv("INGOT_CHAT_SAVED_MB", "0")


class Batch:
    """`ingot batch` on in.jsonl and out.jsonl of a test's folder. One thread: threads that wait for
    each other crawl where the processor is shared."""

    def __init__(self, command: Any, model: Path, folder: Path) -> None:
        self._command, self.model = command, model
        self.source, self.out = folder / "in.jsonl", folder / "out.jsonl"

    def words(self, *flags: object, out: Path | str = "", model: Path | None = None) -> list[Any]:
        job = ["batch", self.source, out or self.out, "--model", model or self.model]
        return [*job, "--threads", "1", *flags]

    def __call__(
        self, *flags: object, code: int = 0, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end, which must be as wanted."""
        done: subprocess.CompletedProcess[str] = self._command(*self.words(*flags, **more))
        assert done.returncode == code, done.stderr
        return done

    def end(self, *flags: object, **more: Any) -> dict[str, Any]:
        """The figures at the end."""
        event: dict[str, Any] = json.loads(self("--json", *flags, **more).stdout.splitlines()[-1])
        assert event["event"] == "end"
        return event

    @property
    def records(self) -> list[dict[str, Any]]:
        return read_rows(self.out)

    @property
    def computed(self) -> list[int]:
        """The indexes of the rows that the journal has records of, in their order there."""
        return [line["index"] for line in read_rows(journal_path(self.out)) if "index" in line]


@pytest.fixture
def batch(command: Any, gguf_file: Path, tmp_path: Path) -> Batch:
    """In this process, on Pebble."""
    return Batch(command, gguf_file, tmp_path)
