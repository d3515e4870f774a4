"""Rows for people: the first ones of an input as a job would read them, and one of a job with all
that is known of it. Nothing is read whole."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from app.batch.input.prompting import Prompting
from app.batch.input.source import Row, Source, open_source
from app.batch.settings import JobSettings
from app.batch.spec import BatchSpec
from app.batch.watch.job import WatchedJob
from app.figures import duration, rate
from app.openai.answer import Answer
from quantize.fromjson import GARBLED, from_json
from runtimes.errors import IngotError, RequestError
from runtimes.request import SamplingParams

_MOST_TEXT = 20_000  # characters of a prompt
_SHOWN = (
    *(("prefill", "prefill_tps", rate), ("decode", "decode_tps", rate)),
    *(("first token", "ttft_s", duration), ("total", "total_s", duration)),
)


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row of the input, with its answer if a job has one."""

    index: int
    id: str | int
    where: str
    prompt: str = ""  # with the roles of earlier messages
    history: tuple[tuple[str, str], ...] = ()  # roles and texts
    turns: tuple[str, ...] = ()
    error: str | None = None  # why it asks nothing, or has no answer
    answers: tuple[str, ...] = ()  # one for each turn or sample
    partial: str = ""  # what there was of an answer that failed
    figures: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Preview:
    """The beginning of an input."""

    format: str  # what it was taken for
    rows: tuple[ShownRow, ...]
    more: bool  # whether there are more rows


def preview(asked: BatchSpec, rows: int = 40) -> Preview:
    """Read the beginning of the input, and no more. Raises RequestError."""
    with _open(asked) as source:
        found = list(islice(source.all_rows(), rows + 1))
        return Preview(source.reader.name, tuple(map(_shown, found[:rows])), len(found) > rows)


def open_row(job: WatchedJob, index: int) -> ShownRow:
    """Reads one line of the journal, and the input up to the row: call it in a thread."""
    record = job.journal.record(index)
    settings = _settings(job.journal.settings)
    row, note = _row(job.asked, index, settings)
    shown = ShownRow(index, index, f"row {index}") if row is None else _shown(row)
    if record is None:
        return replace(shown, note=note)
    if row is not None and settings is not None:
        same = row.key.hex() == record["key"]
        note = note if same else "the input has changed: this answer is not to the prompt above"
    answer = Answer.from_json(record["answer"])
    error = None if answer.error is None else f"{answer.error.code}: {answer.error.message}"
    return replace(
        shown,
        error=error,
        answers=tuple(answer.texts),
        partial=answer.partial or "",
        figures=_figures(answer),
        note=note,
    )


def _open(asked: BatchSpec, settings: JobSettings | None = None) -> AbstractContextManager[Source]:
    if asked.input == "-":
        raise RequestError("this job reads standard input, which is not there any more")
    sampling, digest = SamplingParams(), b""
    if settings is not None:
        sampling, digest = settings.sampling, settings.digest()
    labels = asked.constraints.choice
    prompting = Prompting.from_options(asked.rows, sampling, labels=labels, raw=asked.raw)
    return open_source(asked.input, prompting, digest=digest)


def _shown(row: Row) -> ShownRow:
    if row.problem is not None:
        return ShownRow(row.index, row.id, row.where, error=row.problem.message)
    task = row.task.parts[0] if row.task.parts else row.task
    history = tuple((m["role"], _short(m["content"])) for m in task.history)
    turns = tuple(map(_short, task.turns))
    parts = [f"[{role}] {text}" for role, text in history]
    parts += [f"[user] {turn}" if parts or len(turns) > 1 else turn for turn in turns]
    parts += [f"[then] {part.then}" for part in row.task.parts if part.then is not None]
    return ShownRow(row.index, row.id, row.where, _short("\n".join(parts)), history, turns)


def _short(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + " ..."


def _row(
    asked: BatchSpec | None, index: int, settings: JobSettings | None
) -> tuple[Row | None, str]:
    if asked is None:
        return None, "the journal does not say how the job was started: the prompt is not known"
    try:
        with _open(asked, settings) as source:
            row = next(islice(source.all_rows(), index, None), None)
    except (IngotError, OSError) as error:
        return None, f"the prompt is not known: {error}"
    return row, "" if row is not None else "the input has no such row any more"


def _settings(header: Any) -> JobSettings | None:
    """Rebuild the settings of the journal's header; None where they cannot be."""
    try:
        sampling = from_json(SamplingParams, header["sampling"])
        return JobSettings(**{**header, "sampling": sampling})
    except (*GARBLED, IngotError):
        return None


def _figures(answer: Answer) -> str:
    usage, timings = answer.usage, answer.timings
    if usage is None or timings is None:
        return ""
    parts = [f"prompt {usage['prompt_tokens']:,}"]
    if usage.get("cached_tokens"):
        parts[0] += f" ({usage['cached_tokens']:,} cached)"
    parts.append(f"answer {usage['completion_tokens']:,} tokens")
    for name, field, show in _SHOWN:
        if (value := timings.get(field)) is not None:
            parts.append(f"{name} {show(value)}")
    if answer.finish_reason is not None:
        parts.append(f"ended by {answer.finish_reason}")
    return " · ".join(parts)
