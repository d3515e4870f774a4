"""The files that a batch leaves: its answers as lines of OpenAI's batch output, and its errors."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from app.batch.journal.journal import Journal, journal_path
from app.batch.output.lines import OPENAI
from app.batch.output.publish import answers
from app.batch.output.records import RecordForm
from app.batch.output.wire import dump_line
from app.serve.batches.check import opened
from app.serve.batches.data import require_plain
from app.serve.batches.files import OUTPUT, Files
from app.serve.batches.record import Batch, BatchCounts
from runtimes.request import SamplingParams

OUT = "out.jsonl"


def answered(folder: Path) -> BatchCounts | None:
    """The rows that the journal of a batch has, as far as they are known without its input; None
    where there is no journal. Raises RequestError for one that cannot be read."""
    path = journal_path(folder / OUT)
    if not require_plain(path, "the batch's journal"):
        return None
    with Journal(path) as journal:
        entries = journal.entries
        good = {i for i, ok in zip(entries.indexes, entries.answered, strict=True) if ok}
        return BatchCounts(completed=len(good), failed=len(set(entries.indexes) - good))


def write_results(
    folder: Path, batch: Batch, sampling: SamplingParams, files: Files
) -> tuple[BatchCounts, Counter[str]]:
    """Make the files that ``batch`` names of what its journal holds; a file without a line is none.
    Those that are there already stay. Returns the rows in them, and their tokens. Of a batch that
    is completed nothing is made where rows lack.

    Raises OutOfMemoryError, RequestError, or IngotError for a journal that was damaged meanwhile.
    """
    path = journal_path(folder / OUT)
    usage: Counter[str] = Counter()
    total = batch.counts.total
    if not require_plain(path, "the batch's journal"):
        return BatchCounts(total), usage
    form = RecordForm(OPENAI, model=batch.model or "")
    rows: Counter[str] = Counter()
    with ExitStack() as stack:
        journal = stack.enter_context(Journal(path))
        source = stack.enter_context(opened(folder, batch, sampling))
        new = {}
        for identity in (batch.output_file_id, batch.error_file_id):
            if identity is not None and identity not in files:
                new[identity] = files.begin(identity)
                stack.callback(new[identity].drop)
        for row, answer in answers(source, journal):
            if answer is None:
                continue
            identity = batch.output_file_id if answer.error is None else batch.error_file_id
            assert identity is not None
            rows[identity] += 1
            usage.update(answer.usage or {})
            if identity in new:
                new[identity].write(dump_line(form.record(row, answer)))
        whole = batch.ending != "completed" or sum(rows.values()) == total
        for identity, file in new.items():
            if file.bytes and whole:
                name = "output" if identity == batch.output_file_id else "errors"
                file.keep(f"{batch.id}_{name}.jsonl", OUTPUT)
    answered, failed = rows[batch.output_file_id or ""], rows[batch.error_file_id or ""]
    return BatchCounts(total, answered, failed), usage
