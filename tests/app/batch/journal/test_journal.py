"""The journal: what was synced survives, what was torn is left out, no byte is ever changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from app.batch.journal.journal import Journal, Matcher, journal_path
from app.batch.journal.lines import sealed_line
from app.openai.answer import Answer
from runtimes.errors import IngotError, RequestError

SETTINGS = {"model": "m", "sampling": {"max_tokens": 3}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "j"


def key(number: int) -> bytes:
    return number.to_bytes(8, "big") + b"\0" * 8


def answers(journal: Journal, count: int) -> list[str | None]:
    matcher = Matcher(journal.entries)
    offsets = [(key(number), matcher.take(key(number))) for number in range(count)]
    return [None if at is None else journal.read(at, one).response for one, at in offsets]


def fill(path: Path, texts: list[str], start: int = 0) -> None:
    with Journal(path) as journal:
        journal.begin(SETTINGS)
        for number, text in enumerate(texts, start):
            journal.append(key(number), number, Answer(response=text))


def test_a_row_is_on_the_disk_when_it_is_said_to_be(path: Path, monkeypatch) -> None:
    """A power cut may come at any moment: what was synced is all that can be tested."""
    safe, fsync = [0], os.fsync

    def synced(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            safe.append(path.stat().st_size)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    with Journal(path) as journal:
        journal.begin(SETTINGS)
        for number in range(3):
            journal.append(key(number), number, Answer(response="a"))
            assert safe[-1] < path.stat().st_size
            assert not journal.synced
            journal.sync()
            assert safe[-1] == path.stat().st_size
            assert journal.synced


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.text(max_size=20), max_size=6),
    cut=st.floats(0, 1),
    tail=st.sampled_from([b"", b"\0\0\0", b"\0\0\n", b'{"key":"', b"{}\n", b"garbage\n", b"\xff"]),
)
def test_a_torn_end_costs_only_what_was_torn(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], cut: float, tail: bytes
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    fill(path, texts)
    whole = path.read_bytes()
    kept = whole[: round(cut * len(whole))]
    # Without a whole header, other text means that the file is not a journal: see below.
    assume(b"\n" in kept or not tail.strip(b"\0"))
    path.write_bytes(kept + tail)
    # A line counts when its newline is there; the first is the header.
    survivors = texts[: max(0, kept.count(b"\n") - 1)]
    expected = survivors + [None] * (len(texts) - len(survivors))
    with Journal(path) as journal:
        assert answers(journal, len(texts)) == expected
        assert bool(journal.damaged) == (bool(tail) or (not kept.endswith(b"\n") and bool(kept)))
        assert path.read_bytes() == kept + tail
        # Nothing of the torn end may run into what is appended next.
        journal.begin(SETTINGS)
        journal.append(key(99), 99, Answer(response="after"))
    assert path.read_bytes().startswith(kept + tail)
    with Journal(path) as journal:
        assert answers(journal, len(texts)) == expected
        assert Matcher(journal.entries).take(key(99)) is not None
        assert journal.settings == SETTINGS
        assert not journal.damaged  # it was told


@pytest.mark.parametrize(
    ("content", "words"),
    [
        *((one, "not a journal") for one in (b"my notes\n", b'{"id":1}\n', b"\nmine", b"mine")),
        *((one, "not a journal") for one in (b'{"ingot":"other"}\n', b'{"ingot":[]}\n')),
        (sealed_line({"ingot": "batch-journal", "version": 9, "settings": {}}), "version"),
    ],
)
def test_a_foreign_file_is_left_alone(path: Path, content: bytes, words: str) -> None:
    path.write_bytes(content)
    with pytest.raises(RequestError, match=words):
        Journal(path)
    assert path.read_bytes() == content


def test_forgetting_waits_for_the_new_header(path: Path) -> None:
    assert journal_path(Path("dir/out.jsonl")) == Path("dir/out.jsonl.journal.jsonl")
    with Journal(path):
        pass
    assert not path.exists(), "one that was not used leaves no file"
    fill(path, ["a"])
    with Journal(path) as journal:
        journal.forget()
        assert answers(journal, 1) == [None]
    with Journal(path) as journal:  # nothing was begun, so nothing is lost
        assert answers(journal, 1) == ["a"]
        journal.forget()
        journal.begin(SETTINGS)
    with Journal(path) as journal:
        assert answers(journal, 1) == [None]


def test_reopening_finds_everything(path: Path) -> None:
    texts = ["a", "é\u2028\n", "", "\ud800 half a pair"]
    fill(path, texts[:2])
    fill(path, texts[2:], start=2)
    assert path.read_text().count("batch-journal") == 1, "the same settings are written once"
    with Journal(path) as journal:
        assert journal.settings == SETTINGS
        journal.begin({"model": "other"})
        with pytest.raises(RequestError, match="another job is writing"):
            Journal(path)
    with Journal(path) as journal:
        assert journal.settings == {"model": "other"}
        assert answers(journal, 5) == [*texts, None]
        offset = Matcher(journal.entries).take(key(0))
        assert offset is not None
        with pytest.raises(IngotError, match="damaged"):  # it is no record of this row
            journal.read(offset, key(0)[:8] + b"\1" * 8)
