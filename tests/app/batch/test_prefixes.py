"""What the rows of a job begin with, on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.models.prefixes import SavedPrefixes
from tests.app.batch.conftest import Batch
from tests.support import questions, write_rows

SYSTEM = "You answer questions about the cities of the world. " * 12
WORDS = ["--max-tokens", "4", "--quiet", "--system", SYSTEM]


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where jobs of this process save what they read, however soon that is done."""
    folder = tmp_path / "saved"
    monkeypatch.setattr(
        "app.batch.run.shared_prefixes", lambda: SavedPrefixes(folder, 10**9, worth_s=0)
    )
    return folder


def test_it_is_saved_once_and_resuming_uses_it(batch: Batch, saved: Path) -> None:
    def cached() -> list[int]:
        return [record["usage"]["cached_tokens"] for record in batch.records]

    write_rows(batch.source, questions(12))
    # One row, or answers that must not depend on it: nothing is saved.
    for flags in ([*WORDS, "--limit", "1"], [*WORDS, "--reproducible"]):
        batch(*flags, "--fresh")
    assert not saved.exists()
    batch(*WORDS, "--fresh", "--limit", "6")
    [file] = saved.iterdir()
    before = file.stat()
    assert before.st_mode & 0o077 == saved.stat().st_mode & 0o077 == 0
    assert min(cached()) < 64  # one row has read it
    batch(*WORDS)
    assert min(cached()[6:]) > 100
    [same] = saved.iterdir()
    # The rows of the second run may begin alike a token or two longer.
    assert abs(same.stat().st_size - before.st_size) < before.st_size / 20
