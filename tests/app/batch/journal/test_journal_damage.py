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
from app.openai.answer import Answer
from runtimes.request import SamplingParams

FILES = Path(__file__).parent / "files"
ROWS = 12
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
    from app.cli.main import main

    folder = tmp_path_factory.mktemp("kept")
    rows: list[dict[str, Any]] = [
        {"id": f"r{i}", "prompt": f"What is {i} + {i}?"} for i in range(ROWS - 2)
    ]
    rows += [{"id": "talk", "prompt": ["Hello.", "Who are you?"]}]
    rows += [{"id": "long", "prompt": "word " * 3000}]
    source, out = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["batch", str(source), str(out), "--model", str(gguf_file), *FLAGS]) == 1
    return Kept(source, out)


def damaged_copies(data: bytes, count: int, bytes_each: int, seed: int) -> list[bytes]:
    chance = random.Random(seed)
    copies = []
    for _ in range(count):
        copy = bytearray(data)
        for at in chance.sample(range(len(data)), bytes_each):
            copy[at] ^= chance.randrange(1, 256)
        copies.append(bytes(copy))
    return copies


def cases(data: bytes) -> list[bytes]:
    """100 single bytes; the first and last bytes of the file; several bytes; whole pages."""
    edges = [b"\0" + data[1:], data[:-1] + b" ", data[:-2] + b"x\n"]
    first = data.index(b"\n")
    edges += [data[:first] + b" " + data[first + 1 :], data[:first] + b"\n" + data[first:]]
    edges += [data[: 300 * at] + bytes(300) + data[300 * (at + 1) :] for at in range(8)]
    return [
        *damaged_copies(data, 100, 1, seed=12),
        *damaged_copies(data, 20, 2, seed=13),
        *damaged_copies(data, 20, 9, seed=14),
        *edges,
    ]


def test_no_flipped_byte_loses_an_answer_without_a_word(kept: Kept, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    path = journal_path(out)
    for data in cases(kept.data):
        path.write_bytes(data)
        with Journal(path) as journal:
            assert journal.damaged
            assert all(str(one).startswith(f"line {one.number} is ") for one in journal.damaged)
            found = kept.found(journal)
            assert all(answer == kept.answers[index] for index, answer in found.items())
            # Where two lines have become one, it is one line that is told.
            flips = sum(a != b for a, b in zip(data, kept.data, strict=False))
            assert len(kept.answers) - len(found) <= min(2 * flips, 2 * len(journal.damaged) + 8)
            settings_lost, notes = journal.settings_lost, [one.number for one in journal.damaged]
            assert settings_lost == (journal.settings is None)
            assert path.read_bytes() == data
        # The other readers agree.
        log, told = read_state(path), FollowedJournal(path, Rows())
        while told.read():
            pass
        ended = data.endswith(b"\n")
        assert [one.number for one in log.damaged] == notes[: None if ended else -1]
        assert [one.number for one in told.damaged] == notes[: None if ended else -1]
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


def test_a_journal_cut_anywhere_keeps_its_whole_lines(kept: Kept, tmp_path: Path) -> None:
    path = tmp_path / "j"
    for end in range(0, len(kept.data), 37):
        path.write_bytes(kept.data[:end])
        with Journal(path) as journal:
            lines = kept.data[:end].count(b"\n")
            assert len(journal.entries) == max(0, lines - 2)
            assert bool(journal.damaged) == (end > 0 and kept.data[end - 1 : end] != b"\n")
        assert not end or path.read_bytes() == kept.data[:end]


def test_the_command_tells_what_is_damaged_and_goes_on(
    command: Any, gguf_file: Path, kept: Kept, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    shutil.copy(kept.source.path, source)
    before = [json.loads(line) for line in kept.out.read_text().splitlines()]
    lines = kept.data.splitlines(keepends=True)
    answer = next(i for i, line in enumerate(lines) if b'"index":4' in line)
    for number, told in (
        (0, "the job's settings"),
        (answer, "the answer of index 4"),
        (len(lines) - 1, f"line {len(lines)} is damaged"),
    ):
        out = tmp_path / f"out{number}.jsonl"
        shutil.copy(kept.out, out)
        damaged = [*lines]
        damaged[number] = lines[number][:40] + b"\x7f" + lines[number][41:]
        journal_path(out).write_bytes(b"".join(damaged))
        assert told in "\n".join(status_of(out).lines())
        done = command("batch", source, out, "--model", gguf_file, *FLAGS, "--skip-failed")
        assert done.returncode == 1, done.stderr
        assert told in done.stderr
        assert "stays in the file" in done.stderr
        assert journal_path(out).read_bytes().startswith(b"".join(damaged))
        after = [json.loads(line) for line in out.read_text().splitlines()]
        for row, (old, new) in enumerate(zip(before, after, strict=True)):
            if row == 4:  # computed again, with other timings
                assert (old["id"], old["response"]) == (new["id"], new["response"])
            else:
                assert old == new
        again = command("batch", source, out, "--model", gguf_file, *FLAGS, "--skip-failed")
        assert "damaged" not in again.stderr
        assert not status_of(out).notes


def test_lost_settings_stop_a_job_that_none_of_the_answers_fits(
    command: Any, gguf_file: Path, kept: Kept, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    damaged = kept.data.replace(b'"sampling"', b'"sampl\x7fng"')
    journal_path(out).write_bytes(damaged)
    other = [*FLAGS, "--max-tokens", "3"]
    words = ["batch", kept.source.path, out, "--model", gguf_file]
    done = command(*words, *other)
    assert done.returncode == 2, done.stderr
    assert "the settings in" in done.stderr
    assert "--force" in done.stderr
    assert journal_path(out).read_bytes() == damaged
    assert command(*words, *other, "--force").returncode == 1
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
    assert (log.done, log.failed, log.damaged) == (7, 0, [])
    # What was written since has seals; what was there before is as readable as it was.
    data = path.read_bytes()
    for place, lost in ((data.rindex(b'"new"') + 2, 1), (data.index(b'"key"') + 1, 1)):
        path.write_bytes(data[:place] + b"\x7f" + data[place + 1 :])
        with Journal(path) as journal:
            assert len(journal.damaged) == lost
            assert len(journal.entries) == 7


ROW = {"key": "ab" * 16, "index": 0, "ok": True, "answer": {"response": "x"}}
NOTE = {"ingot": "batch-run", "at": 5.0, "rows": 1, "invalid": 0, "reused": 0}


@pytest.mark.parametrize(
    ("good", "wrong"),
    [
        *[(ROW, {"index": one}) for one in (-1, 2**70, True, 1.5, "0")],
        *[
            (ROW, {"answer": one})
            for one in (
                {"response": 5}, {"error": "no"}, {"error": {"code": 1}}, {"usage": []},
                {"usage": {"completion_tokens": "7"}}, {"usage": {"completion_tokens": 2**40}},
                {"created": 10**400}, {"created": []}, {"timings": {"decode_tps": "x"}},
                {"logprobs": [[]]}, {"choices": {}}, {"responses": [None]}, {"best": 3},
                {"embedding": ["x"]}, {"embeddings": [5]}, {"probabilities": {"a": {}}},
            )
        ],
        *[(NOTE, {"rows": one}) for one in (-1, "5", 2**70, None)],
        *[(NOTE, {"at": one}) for one in ("x", 1e300, [])],
        *[(NOTE, {"command": one}) for one in ("batch", ["batch", 5], {})],
        (NOTE, {"folder": 5}), (NOTE, {"pid": "1"}), (NOTE, {"born": []}), (NOTE, {"shard": {}}),
        ({"ingot": "batch-damage", "offsets": [5]}, {"offsets": [[]]}),
        ({"ingot": "batch-left", "at": 5.0, "left_s": 1.0}, {"left_s": "1"}),
        ({"ingot": "batch-journal", "settings": {}}, {"settings": {"sampling": 5}}),
        ({"ingot": "batch-journal", "settings": {}}, {"version": [3]}),
    ],
)  # fmt: skip
def test_a_line_with_a_wrong_value_says_nothing(good: Any, wrong: Any) -> None:
    assert parse_line(sealed_line(good)) is not None
    assert parse_line(sealed_line(good | wrong)) is None


def test_a_line_of_lists_within_lists_says_nothing() -> None:
    deep = json.loads("[" * 300 + "]" * 300)
    assert parse_line(sealed_line(ROW | {"answer": {"response": "x", "more": deep}})) is None
