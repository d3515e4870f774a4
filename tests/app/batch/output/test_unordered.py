"""However a growing output was left, it comes to hold each row of the journal exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
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
from tests.support import read_rows, write_rows

ROWS = 6
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


class Job:
    """A journal with answers to some rows, and the output beside it."""

    def __init__(self, folder: Path, format: str, journal: Journal) -> None:
        self.out, self.input, self.journal = folder / "out.jsonl", folder / "in.jsonl", journal
        self.read([f"p{i}" for i in range(ROWS)])
        self.output = UnorderedOutput(self.out, RecordForm(FORMATS[format], "m"), journal)
        journal.begin({"model": "m"})

    def read(self, prompts: list[str]) -> None:
        write_rows(self.input, [{"prompt": text} for text in prompts])
        self.source = Source(self.input, self.input.name, JSONL)

    def finish(self, *indexes: int, ok: bool = True, sync: bool = True) -> None:
        for row in self.source.rows():
            if row.index in indexes:
                said = f"a{row.index}"
                answer = Answer(said, finish_reason="stop", usage=USAGE, timings={}, created=1.0)
                answer = answer if ok else Answer(error=Problem("engine_error", "no"))
                self.journal.append(row.key, row.index, answer)
                if ok:
                    self.output.put(row, answer)
        if sync:
            self.journal.sync()
        self.output.flush()

    def settle(self, *, errors: bool = False) -> Counter[str]:
        """Custom ids or indexes in the file."""
        rows = scan(self.source, self.journal.entries).input_rows
        self.output.settle(self.source, rows, errors=errors)
        return Counter(record.get("custom_id") or str(record["index"]) for record in self.held())

    def held(self) -> list[dict[str, object]]:
        return read_rows(self.out)


@contextmanager
def job_in(folder: Path, *answered: int, format: str = "jsonl") -> Iterator[Job]:
    with Journal(folder / "j") as journal:
        job = Job(folder, format, journal)
        job.finish(*answered)
        yield job


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
    with job_in(tmp_path_factory.mktemp("job"), *answered, format=format) as job:
        whole = job.out.read_bytes() if job.out.exists() else b""
        left = whole[: round(cut * len(whole))] + tail
        job.out.write_bytes(left + left if repeat else left)
        assert job.settle() == Counter(map(str, answered))
        assert sorted(job.out.read_bytes().splitlines()) == sorted(whole.splitlines())


def test_failures_come_at_the_end_and_go_when_they_are_tried_again(tmp_path: Path) -> None:
    with job_in(tmp_path, 0, 1) as job:
        job.finish(3, ok=False)
        for errors, held in ((False, "01"), (True, "013"), (False, "01")):
            assert job.settle(errors=errors) == Counter(held)
        job.finish(3)
        assert job.settle(errors=True) == Counter("013")
        assert '"error"' not in job.out.read_text()


def test_an_edited_input_makes_the_file_anew(tmp_path: Path) -> None:
    with job_in(tmp_path, 0, 1, 2) as job:
        left = job.out.read_bytes() + b'{"id":'
        job.out.write_bytes(left)
        rows = scan(job.source, job.journal.entries).input_rows
        job.read(["new", "p0", "p2"])
        with pytest.raises(RequestError, match="changed while the job ran"):
            job.output.settle(job.source, rows, errors=True)
        assert job.out.read_bytes() == left
        job.settle()  # once it is looked at again
        records = [(record["index"], record["response"]) for record in job.held()]
        assert records == [(1, "a0"), (2, "a2")]
