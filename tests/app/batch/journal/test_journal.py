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


def key(number: int) -> bytes:
    return number.to_bytes(8, "big") + b"\0" * 8


def answers(journal: Journal, count: int) -> list[str | None]:
    matcher = Matcher(journal.entries)
    found = []
    for number in range(count):
        offset = matcher.take(key(number))
        found.append(None if offset is None else journal.read(offset, key(number)).response)
    return found


def fill(path: Path, texts: list[str], start: int = 0) -> None:
    with Journal(path) as journal:
        journal.begin(SETTINGS)
        for number, text in enumerate(texts, start):
            journal.append(key(number), number, Answer(response=text))


def test_journal_lies_beside_the_output() -> None:
    assert journal_path(Path("dir/out.jsonl")) == Path("dir/out.jsonl.journal.jsonl")


def test_reopening_finds_everything(tmp_path: Path) -> None:
    path = tmp_path / "j"
    texts = ["a", "é\u2028\n", "", "\ud800 half a pair"]
    fill(path, texts)
    with Journal(path) as journal:
        assert journal.settings == SETTINGS
        assert answers(journal, 5) == [*texts, None]


def test_a_row_is_on_the_disk_when_it_is_said_to_be(tmp_path: Path, monkeypatch) -> None:
    """A power cut may come at any moment: what was synced is all that can be tested."""
    path, safe, fsync = tmp_path / "j", [0], os.fsync

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


def test_the_same_settings_are_written_once(tmp_path: Path) -> None:
    path = tmp_path / "j"
    fill(path, ["a"])
    fill(path, ["b"], start=1)
    assert path.read_text().count("batch-journal") == 1
    with Journal(path) as journal:
        journal.begin({"model": "other"})
    with Journal(path) as journal:
        assert journal.settings == {"model": "other"}
        assert answers(journal, 2) == ["a", "b"]


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
    torn = bool(tail) or (not kept.endswith(b"\n") and bool(kept))

    with Journal(path) as journal:
        assert answers(journal, len(texts)) == survivors + [None] * (len(texts) - len(survivors))
        assert bool(journal.damaged) == torn
        assert path.read_bytes() == kept + tail
        # Nothing of the torn end may run into what is appended next.
        journal.begin(SETTINGS)
        journal.append(key(99), 99, Answer(response="after"))
    assert path.read_bytes().startswith(kept + tail)
    with Journal(path) as journal:
        expected = survivors + [None] * (len(texts) - len(survivors))
        assert answers(journal, len(texts)) == expected
        assert Matcher(journal.entries).take(key(99)) is not None
        assert journal.settings == SETTINGS
        assert not journal.damaged  # it was told


def test_a_damaged_line_in_the_middle_costs_its_row_only(tmp_path: Path) -> None:
    path = tmp_path / "j"
    fill(path, ["a", "b", "c"])
    lines = path.read_bytes().splitlines(keepends=True)
    for damaged in (b"\0" * (len(lines[2]) - 1) + b"\n", lines[2].replace(b'"b"', b'"B"')):
        path.write_bytes(b"".join([*lines[:2], damaged, lines[3]]))
        with Journal(path) as journal:
            assert answers(journal, 3) == ["a", None, "c"]
            (found,) = journal.damaged
            seems = " (it seems to be the answer of index 1)"
            assert str(found) == "line 3 is damaged" + seems * (b"index" in damaged)


@pytest.mark.parametrize(
    "content",
    [b"my notes\n", b'{"id":1}\n', b'{"ingot":"other"}\n', b'{"ingot":[]}\n', b"\nmine", b"mine"],
)
def test_a_foreign_file_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "j"
    path.write_bytes(content)
    with pytest.raises(RequestError, match="not a journal"):
        Journal(path)
    assert path.read_bytes() == content


def test_a_journal_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "j"
    fill(path, ["a"])
    content = sealed_line({"ingot": "batch-journal", "version": 9, "settings": {}})
    path.write_bytes(content)
    with pytest.raises(RequestError, match="version"):
        Journal(path)
    assert path.read_bytes() == content


def test_one_job_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path), pytest.raises(RequestError, match="another job is writing"):
        Journal(path)
    with Journal(path):
        pass


def test_an_unused_journal_leaves_no_file(tmp_path: Path) -> None:
    with Journal(tmp_path / "j"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_forgetting_waits_for_the_new_header(tmp_path: Path) -> None:
    path = tmp_path / "j"
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


def test_a_record_of_another_row_is_never_handed_out(tmp_path: Path) -> None:
    path = tmp_path / "j"
    fill(path, ["a"])
    with Journal(path) as journal:
        offset = Matcher(journal.entries).take(key(0))
        assert offset is not None
        with pytest.raises(IngotError, match="damaged"):
            journal.read(offset, key(0)[:8] + b"\1" * 8)
