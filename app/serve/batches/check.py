"""A batch before and after it runs: whether its input can be run, read line by line before any
token; and the files of answers and errors that it leaves."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from app.batch.input.lines import InputStream
from app.batch.input.prompting import Prompting
from app.batch.input.source import IdIndex, Row, Source, open_source
from app.batch.journal.journal import Journal, journal_path
from app.batch.output.publish import answers
from app.batch.output.records import OPENAI, RecordForm, dump_line
from app.batch.spec import InputOptions
from app.openai.request import ENDPOINTS
from app.openai.validation import MOST_TOLD, InputError, as_unicode, check_count
from app.serve.batches.folder import open_plain, require_plain
from app.serve.batches.store import (
    INPUT,
    MOST_MODEL,
    OUT,
    OUTPUT,
    Batch,
    BatchCounts,
    BatchError,
    Files,
)
from app.serve.bodies import SMALL_BYTES, checked_values
from app.serve.errors import HttpError
from app.serve.options import MOST_BODY_BYTES, MOST_IDS
from runtimes.errors import RequestError
from runtimes.request import Priority, SamplingParams

_MOST_ERRORS = 50
_MOST_TEXT = 300
_MOST_LINE = MOST_BODY_BYTES + 2**16
_LONG_S, _REST, _MOST_REST_S = 0.05, 3, 2.0
_error = partial(BatchError.of, most=_MOST_TEXT)


@dataclass(slots=True)
class Checked:
    """Result of a check: ``errors``, or a model and its number of rows."""

    model: str | None = None
    rows: int = 0
    errors: Sequence[BatchError] = ()
    ignored: set[str] = field(default_factory=set)  # what is left out of the rows


@contextmanager
def opened(folder: Path, batch: Batch, sampling: SamplingParams) -> Iterator[Source]:
    """The rows of a batch; interactive requests come before them. Raises RequestError."""
    path = folder / INPUT
    if not require_plain(path, batch.input_file_id):
        raise RequestError(f"the batch's copy of {batch.input_file_id} is gone")
    with InputStream(path, batch.input_file_id) as stream:
        if stream.packing:
            raise RequestError(f"the file is packed with {stream.packing}: upload JSON lines")
    endpoint = ENDPOINTS[batch.endpoint]
    lines = InputOptions(input_format="jsonl")
    prompting = Prompting(
        lines, sampling=sampling, requests=endpoint, strict=False, priority=Priority.LOW
    )
    # A journal is of one batch, and its header says of which model: the rows' keys need not.
    with open_source(str(path), prompting) as source:
        source.name = batch.input_file_id
        yield source


def check(
    folder: Path,
    batch: Batch,
    sampling: SamplingParams,
    models: Collection[str],
    ended: Callable[[], bool],
) -> Checked:
    """Read all of the input, unless ``ended`` comes first."""
    try:
        with opened(folder, batch, sampling) as source:
            if (error := _large(source.path, ended)) is not None:
                return Checked(errors=[error])
            return _check(source, batch, models, ended)
    except RequestError as error:
        return Checked(errors=[_error("invalid_file", str(error))])


def _large(path: Path, ended: Callable[[], bool]) -> BatchError | None:
    """Find the first line that is too long, or has too many values, for the body of a request. The
    line is refused before it is parsed: as values it takes many times its bytes, and no request is
    answered meanwhile."""
    if path.stat().st_size <= SMALL_BYTES:
        return None
    with open_plain(path) as file:
        for number in itertools.count(1):
            line = file.readline(_MOST_LINE + 1)
            if not line or ended():
                return None
            if len(line) <= SMALL_BYTES:
                continue
            if len(line) > _MOST_LINE:
                said = f"the line is longer than {MOST_BODY_BYTES // 2**20} MiB"
                return _error("line_too_long", said, number)
            try:
                checked_values(line, MOST_IDS)
            except HttpError as error:
                return _error("invalid_value", str(error).replace("body", "line"), number)
    return None


def _check(
    source: Source, batch: Batch, models: Collection[str], ended: Callable[[], bool]
) -> Checked:
    found = Checked()
    problems = _problems(source, batch, ended, found)
    errors = list(itertools.islice(problems, _MOST_ERRORS))
    if more := sum(1 for _ in problems):
        errors.append(_error("more_errors", f"{more:,} more lines are not valid"))
    if not found.rows:
        errors.append(_error("empty_file", "the file has no requests: write one a line"))
    if not errors and found.model not in models:
        known = ", ".join(models)
        said = f"there is no model {str(found.model)[:80]!r} here; there is: {known}"
        errors.append(_error("model_not_found", said, 1, "body.model"))
    found.errors = sorted(errors, key=lambda one: one.line or 2**62)
    return found


def _problems(
    source: Source, batch: Batch, ended: Callable[[], bool], found: Checked
) -> Iterator[BatchError]:
    """The errors of the rows; what else these have goes into ``found``."""
    ids, begun = IdIndex(), time.monotonic()
    for row in source.rows():
        if ended():  # a single row may take long
            break
        took = time.monotonic() - begun
        if took > _LONG_S:  # the parser of JSON lets no other thread work
            time.sleep(min(_REST * took, _MOST_REST_S))
        begun = time.monotonic()
        found.rows += 1
        if (error := _problem(row, batch, found.model)) is not None:
            yield error
            continue
        found.model = row.fields["body"]["model"]
        ids.add(row.id, row.line)
        if len(found.ignored) < MOST_TOLD:
            found.ignored.update(row.task.ignored)
    repeats = ids.repeats()
    columns = repeats.lines.tolist(), repeats.first_lines.tolist()
    for line, first in zip(*columns, strict=True):
        said = f"line {first} has the same custom_id"
        yield _error("duplicate_custom_id", said, line, "custom_id")


def _problem(row: Row, batch: Batch, model: str | None) -> BatchError | None:
    """Check a row of a batch for ``model``, which is None for the first row."""
    url, body = row.fields.get("url"), row.fields.get("body")
    if isinstance(url, str) and url in ENDPOINTS and url != batch.endpoint:
        said = f"url is {url}, and the batch is for {batch.endpoint}"
        return _error("mismatched_endpoint", said, row.line, "url")
    if row.problem is not None:
        return _error(row.problem.code, row.problem.message, row.line)
    try:
        _check_model(body.get("model") if isinstance(body, dict) else None, model)
    except InputError as error:
        return _error(error.problem.code, error.problem.message, row.line, "body.model")
    return None


def _check_model(own: Any, model: str | None) -> None:
    if not isinstance(own, str) or not own:
        raise InputError("missing_parameter", "body has no 'model'")
    check_count(len(own), "the model's name", "characters", MOST_MODEL)
    as_unicode(own, "body.model")
    if model is not None and own != model:
        said = f"the model is {own[:80]!r}, and that of the lines before {model[:80]!r}: a batch is"
        raise InputError("mismatched_model", f"{said} for one model")


# The files that a batch leaves: its answers as lines of OpenAI's batch output, and its errors.


def answered(folder: Path) -> BatchCounts | None:
    """The rows that the journal of a batch has, as far as they are known without its input; None
    where there is no journal. Raises RequestError for one that cannot be read."""
    path = journal_path(folder / OUT)
    if not require_plain(path, "the batch's journal"):
        return None
    with Journal(path) as journal:
        entries = journal.entries
        good = {i for i, ok in zip(entries.indexes, entries.answered, strict=True) if ok}
        return BatchCounts(0, len(good), len(set(entries.indexes) - good))


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
        return BatchCounts(total, 0, 0), usage
    form = RecordForm(OPENAI, model=batch.model or "")
    rows: Counter[str] = Counter()
    names = {batch.output_file_id: "output", batch.error_file_id: "errors"}
    with ExitStack() as stack:
        journal = stack.enter_context(Journal(path))
        source = stack.enter_context(opened(folder, batch, sampling))
        new = {}
        for identity in names:
            if identity is not None and identity not in files:
                new[identity] = files.begin(identity)
                stack.callback(new[identity].drop)
        for row, answer in answers(source, journal):
            identity = batch.output_file_id if answer.error is None else batch.error_file_id
            assert identity is not None
            rows[identity] += 1
            usage.update(answer.usage or {})
            if identity in new:
                new[identity].write(dump_line(form.record(row, answer)))
        if batch.ending != "completed" or rows.total() == total:
            for identity, file in new.items():
                if file.bytes:
                    file.keep(f"{batch.id}_{names[identity]}.jsonl", OUTPUT)
    answered, failed = rows[batch.output_file_id or ""], rows[batch.error_file_id or ""]
    return BatchCounts(total, answered, failed), usage
