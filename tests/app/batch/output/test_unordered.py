"""However a growing output was left, it comes to hold each row of the journal exactly once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.batch.input.readers import JSONL
from app.batch.input.scan import scan
from app.batch.input.source import Source
from app.batch.journal.journal import Journal
from app.batch.output.publish import UnorderedOutput
from app.batch.output.records import FORMATS, RecordForm
from app.openai.answer import Answer
from app.openai.validation import Problem
from runtimes.errors import RequestError

ROWS = 6
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def answer(text: str) -> Answer:
    return Answer(text, finish_reason="stop", usage=USAGE, timings={}, created=1.0)


def source_of(path: Path, prompts: list[str]) -> Source:
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))
    return Source(path, path.name, JSONL)


class Job:
    """A journal with answers to some rows, and the output beside it."""

    def __init__(self, folder: Path, format: str, answered: list[int]) -> None:
        self.out = folder / "out.jsonl"
        self.source = source_of(folder / "in.jsonl", [f"p{i}" for i in range(ROWS)])
        self.journal = Journal(folder / "j")
        self.journal.begin({"model": "m"})
        self.output = UnorderedOutput(self.out, RecordForm(FORMATS[format], "m"), self.journal)
        self.finish(answered)
        self.journal.sync()
        self.output.flush()

    def finish(self, indexes: list[int], ok: bool = True) -> None:
        for row in self.source.rows():
            if row.index in indexes:
                error = Answer(error=Problem("engine_error", "no"))
                result = answer(f"a{row.index}") if ok else error
                self.journal.append(row.key, row.index, result)
                if ok:
                    self.output.put(row, result)

    def settle(self, *, errors: bool = False) -> Counter[str]:
        """The custom ids or prompts in the file."""
        found = scan(self.source, self.journal.entries)
        self.output.settle(self.source, found.input_rows, errors=errors)
        return self.held()

    def held(self) -> Counter[str]:
        records = map(json.loads, self.out.read_text().splitlines())
        return Counter(record.get("custom_id") or str(record["index"]) for record in records)


@settings(max_examples=60, deadline=None)
@given(
    answered=st.lists(st.integers(0, ROWS - 1), unique=True),
    cut=st.floats(0, 1),
    tail=st.sampled_from([b"", b'{"id":', b"\0\0", b"{}\n", b"\xff\n", b'{"index":99}\n']),
    repeat=st.booleans(),
    format=st.sampled_from(["jsonl", "openai"]),
)
def test_any_end_is_mended(
    tmp_path_factory: pytest.TempPathFactory,
    answered: list[int],
    cut: float,
    tail: bytes,
    repeat: bool,
    format: str,
) -> None:
    job = Job(tmp_path_factory.mktemp("job"), format, answered)
    whole = job.out.read_bytes() if job.out.exists() else b""
    left = whole[: round(cut * len(whole))] + tail
    job.out.write_bytes(left + left if repeat else left)
    expected = Counter(map(str, answered))
    assert job.settle() == expected
    assert sorted(job.out.read_bytes().splitlines()) == sorted(whole.splitlines())
    job.journal.close()


def test_what_was_read_already_stays_in_its_place(tmp_path: Path) -> None:
    job = Job(tmp_path, "jsonl", [1, 4])
    first, second = job.out.read_bytes().splitlines(keepends=True)
    job.out.write_bytes(first + second[:5])
    job.finish([5, 0])
    job.settle()
    assert job.out.read_bytes().startswith(first)
    assert [json.loads(line)["index"] for line in job.out.read_text().splitlines()] == [1, 0, 4, 5]
    job.journal.close()


def test_nothing_is_written_before_the_journal_has_it(tmp_path: Path) -> None:
    job = Job(tmp_path, "jsonl", [])
    job.finish([2])
    job.output.flush()
    assert not job.out.exists()
    job.journal.sync()
    job.output.flush()
    assert job.held() == Counter(["2"])
    job.journal.close()


def test_failures_come_at_the_end_and_go_when_they_are_tried_again(tmp_path: Path) -> None:
    job = Job(tmp_path, "jsonl", [0, 1])
    job.finish([3], ok=False)
    assert job.settle() == Counter("01")
    assert job.settle(errors=True) == Counter("013")
    assert job.settle(errors=False) == Counter("01")
    job.finish([3])
    assert job.settle(errors=True) == Counter("013")
    assert '"error"' not in job.out.read_text()
    job.journal.close()


def test_an_edited_input_makes_the_file_anew(tmp_path: Path) -> None:
    job = Job(tmp_path, "jsonl", [0, 1, 2])
    job.source = source_of(tmp_path / "in.jsonl", ["new", "p0", "p2"])
    job.settle()
    records = [json.loads(line) for line in job.out.read_text().splitlines()]
    assert [(r["index"], r["response"]) for r in records] == [(1, "a0"), (2, "a2")]
    job.journal.close()


def test_a_changed_input_is_told_before_the_file_is_touched(tmp_path: Path) -> None:
    job = Job(tmp_path, "jsonl", [0, 1, 2])
    left = job.out.read_bytes() + b'{"id":'
    job.out.write_bytes(left)
    found = scan(job.source, job.journal.entries)
    job.source = source_of(tmp_path / "in.jsonl", ["p0", "another", "p2"])
    with pytest.raises(RequestError, match="changed while the job ran"):
        job.output.settle(job.source, found.input_rows, errors=True)
    assert job.out.read_bytes() == left
    job.journal.close()
