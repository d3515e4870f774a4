"""Damage to the journal of a real job: never an answer lost without a word, and no byte changed."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from app.batch.input.readers import JSONL
from app.batch.input.scan import scan
from app.batch.input.source import Source
from app.batch.journal.journal import Journal, Matcher, journal_path
from app.batch.journal.lines import parse_line, read_state, sealed_line
from app.batch.report.figures import status_of
from app.batch.settings import JobSettings, differences
from app.batch.watch.follow import FollowedJournal
from app.batch.watch.rows import Rows, RowState
from app.cli.main import main
from app.openai.answer import Answer
from runtimes.request import SamplingParams
from tests.support import questions, read_rows, write_rows

FILES = Path(__file__).parent / "files"
FLAGS = ["--max-tokens", "12", "--slots", "2", "--threads", "1", "--quiet"]


class Kept:
    """A finished job: its input, its journal, and the answer of each row."""

    def __init__(self, source: Path, out: Path) -> None:
        self.out = out
        self.data = journal_path(out).read_bytes()
        header = json.loads(self.data.splitlines()[0])["settings"]
        sampling = {
            k: tuple(v) if isinstance(v, list) else v for k, v in header["sampling"].items()
        }
        self.settings = JobSettings(**{**header, "sampling": SamplingParams(**sampling)})
        self.source = Source(source, source.name, JSONL, digest=self.settings.digest())
        with Journal(journal_path(out)) as journal:
            self.answers = self.found(journal)

    def found(self, journal: Journal) -> dict[int, Answer]:
        """What the journal has for each row of the input, failures too."""
        matcher = Matcher(journal.entries)
        found = {}
        for row in self.source.rows():
            offset = matcher.take(row.key)
            offset = matcher.failure(row.key) if offset is None else offset
            if offset is not None:
                found[row.index] = journal.read(offset, row.key)
        return found


@pytest.fixture(scope="module")
def kept(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    folder = tmp_path_factory.mktemp("kept")
    more = [{"prompt": ["Hello.", "Who are you?"]}, {"prompt": "word " * 3000}]
    source, out = write_rows(folder / "in.jsonl", [*questions(10), *more]), folder / "out.jsonl"
    assert main(["batch", str(source), str(out), "--model", str(gguf_file), *FLAGS]) == 1
    return Kept(source, out)


def cases(data: bytes) -> list[bytes]:
    """50 single bytes; several bytes; the first and last bytes of the file; whole pages."""
    copies = []
    for seed, (count, bytes_each) in enumerate(((50, 1), (10, 2), (10, 9))):
        chance = random.Random(seed)
        for _ in range(count):
            copy = bytearray(data)
            for at in chance.sample(range(len(data)), bytes_each):
                copy[at] ^= chance.randrange(1, 256)
            copies.append(bytes(copy))
    first = data.index(b"\n")
    copies += [b"\0" + data[1:], data[:-1] + b" ", data[:-2] + b"x\n"]
    copies += [data[:first] + b" " + data[first + 1 :], data[:first] + b"\n" + data[first:]]
    return copies + [data[: 300 * at] + bytes(300) + data[300 * (at + 1) :] for at in range(8)]


def test_no_flipped_byte_loses_an_answer_without_a_word(kept: Kept, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    path = journal_path(out)
    for data in cases(kept.data):
        path.write_bytes(data)
        with Journal(path) as journal:
            assert journal.damaged
            found = kept.found(journal)
            assert all(answer == kept.answers[index] for index, answer in found.items())
            # Where two lines have become one, it is one line that is told.
            flips = sum(a != b for a, b in zip(data, kept.data, strict=False))
            assert len(kept.answers) - len(found) <= min(2 * flips, 2 * len(journal.damaged) + 8)
            assert journal.settings_lost == (journal.settings is None)
            assert path.read_bytes() == data
        # The other readers agree; they wait for the end of a line that has none.
        log, told = read_state(path), FollowedJournal(path, Rows())
        while told.read():
            pass
        notes = [*journal.damaged.values()][: None if data.endswith(b"\n") else -1]
        assert [*log.damaged.values()] == [*told.damaged.values()] == notes
        assert all(note.startswith("line ") for note in notes)
        if log.run is not None:
            assert bool(status_of(out).notes) == bool(log.damaged)
            assert log.done == sum(
                told.rows.state(i) is RowState.DONE for i in range(len(told.rows))
            )
        # Going on appends only, and says it once.
        with Journal(path) as journal:
            journal.begin(kept.settings.as_json())
        assert path.read_bytes().startswith(data)
        with Journal(path) as journal:
            assert not journal.damaged
            assert journal.settings == kept.settings.as_json()
            assert kept.found(journal) == found


def test_the_command_tells_what_is_damaged_and_goes_on(
    command: Any, gguf_file: Path, kept: Kept, tmp_path: Path
) -> None:
    out, lines = tmp_path / "out.jsonl", kept.data.splitlines(keepends=True)
    shutil.copy(kept.out, out)
    answer = next(i for i, line in enumerate(lines) if b'"index":4' in line)
    for number in (0, answer, len(lines) - 1):
        lines[number] = lines[number][:40] + b"\x7f" + lines[number][41:]
    journal_path(out).write_bytes(b"".join(lines))
    told = (
        "the job's settings",
        "the answer of index 4",
        f"line {len(lines)} is damaged",
        "stays in the file",
    )
    assert all(words in "\n".join(status_of(out).lines()) for words in told[:3])
    words = ["batch", kept.source.path, out, "--model", gguf_file, *FLAGS, "--skip-failed"]
    done = command(*words)
    assert done.returncode == 1, done.stderr
    assert all(words in done.stderr for words in told)
    assert journal_path(out).read_bytes().startswith(b"".join(lines))
    before, after = read_rows(kept.out), read_rows(out)
    assert before[4]["response"] == after[4]["response"]  # computed again, with other timings
    assert before[:4] + before[5:] == after[:4] + after[5:]
    assert "damaged" not in command(*words).stderr
    assert not status_of(out).notes


def test_lost_settings_stop_a_job_that_none_of_the_answers_fits(
    command: Any, gguf_file: Path, kept: Kept, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    damaged = kept.data.replace(b'"sampling"', b'"sampl\x7fng"')
    journal_path(out).write_bytes(damaged)
    words = ["batch", kept.source.path, out, "--model", gguf_file, *FLAGS, "--max-tokens", "3"]
    done = command(*words)
    assert done.returncode == 2, done.stderr
    assert "the settings in" in done.stderr
    assert "--force" in done.stderr
    assert journal_path(out).read_bytes() == damaged
    assert command(*words, "--force").returncode == 1
    assert journal_path(out).read_bytes().startswith(damaged)


def test_a_journal_without_seals_goes_on(tmp_path: Path) -> None:
    """Of version 2, as Ingot wrote it before lines had seals."""
    out = tmp_path / "version2"
    path = journal_path(out)
    shutil.copy(FILES / path.name, path)
    old = Kept(FILES / "version2.jsonl", out)
    with Journal(path) as journal:
        assert not journal.damaged
        assert differences(journal.settings, old.settings) == []
        assert sorted(old.found(journal)) == list(range(7))
        found = scan(old.source, journal.entries)
        assert (found.reusable, found.pending) == (6, 1)
        journal.begin(old.settings.as_json())
        journal.append(bytes(16), 6, Answer(response="new"))
    log = read_state(path)
    assert (log.done, log.failed, log.damaged) == (7, 0, {})
    # What was written since has seals; what was there before is as readable as it was.
    data = path.read_bytes()
    for place in (data.rindex(b'"new"') + 2, data.index(b'"key"') + 1):
        path.write_bytes(data[:place] + b"\x7f" + data[place + 1 :])
        with Journal(path) as journal:
            assert (len(journal.damaged), len(journal.entries)) == (1, 7)


@pytest.mark.parametrize(
    ("good", "wrong"), json.loads((FILES / "wrong_lines.json").read_text()), ids=range(5)
)
def test_a_line_with_a_wrong_value_says_nothing(good: dict[str, Any], wrong: Any) -> None:
    assert parse_line(sealed_line(good)) is not None
    for values in wrong:
        assert parse_line(sealed_line(good | values)) is None, values
    deep = json.loads("[" * 300 + "]" * 300)
    assert parse_line(sealed_line(good | {"answer": {"response": "x", "more": deep}})) is None
