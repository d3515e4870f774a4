"""One row of a job with all that is known of it, found without reading the files whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from app.batch.input.source import Row
from app.batch.input.tasks import Task
from app.batch.settings import JobSettings, row_key
from app.batch.watch.command import Asked
from app.batch.watch.job import Job
from app.batch.watch.preview import PreviewRow, open_asked, preview_row
from app.figures import duration, rate
from runtimes.errors import IngotError
from runtimes.request import SamplingParams

_UNKNOWN = PreviewRow(0, "", 0, "")


@dataclass(frozen=True, slots=True)
class OpenedRow:
    """``prompt`` is empty when the input cannot be read any more, which ``note`` then says.
    ``answers`` has one text for each turn or sample; ``figures`` is a line for people; ``error`` is
    why there is no answer, ``partial`` what there was of it."""

    index: int
    id: str | int
    where: str
    prompt: str
    answers: tuple[str, ...] = ()
    figures: str = ""
    error: str | None = None
    partial: str = ""
    note: str = ""


def open_row(job: Job, index: int) -> OpenedRow:
    """Reads one line of the journal, and the input up to the row: call it in a thread."""
    record = job.journal.record(index)
    settings = _settings(job.journal.settings)
    row, note = _row(job.asked, index, settings)
    found = _UNKNOWN if row is None else preview_row(row)
    if record is not None and row is not None and settings is not None:
        task = row.task
        same = isinstance(task, Task) and row_key(settings.digest(), task).hex() == record["key"]
        note = note if same else "the input has changed: this answer is not to the prompt above"
    answer: Mapping[str, Any] = {} if record is None else record["answer"]
    error = found.problem
    if "error" in answer:
        error = f"{answer['error']['code']}: {answer['error']['message']}"
    elif answer:
        error = None
    return OpenedRow(
        index=index,
        id=index if row is None else found.id,
        where=found.where or f"row {index}",
        prompt=found.prompt,
        answers=_texts(answer),
        figures=_figures(answer),
        error=error,
        partial=str(answer.get("partial", "")),
        note=note,
    )


def _row(asked: Asked | None, index: int, settings: JobSettings | None) -> tuple[Row | None, str]:
    if asked is None:
        return None, "the journal does not say how the job was started: the prompt is not known"
    try:
        with open_asked(asked, None if settings is None else settings.sampling) as source:
            row = next(islice(source.all_rows(), index, None), None)
    except (IngotError, OSError) as error:
        return None, f"the prompt is not known: {error}"
    return row, "" if row is not None else "the input has no such row any more"


def _settings(header: Mapping[str, Any]) -> JobSettings | None:
    """Those of the journal's header; None for what is not rebuilt here."""
    try:
        if header["sampling"].get("constraint") is not None:
            return None
        told = {name: _frozen(value) for name, value in header["sampling"].items()}
        return JobSettings(**{**header, "sampling": SamplingParams(**told)})
    except (KeyError, TypeError, IngotError):
        return None


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _texts(answer: Mapping[str, Any]) -> tuple[str, ...]:
    if "choices" in answer:
        return tuple(str(choice["text"]) for choice in answer["choices"])
    if "responses" in answer:
        return tuple(map(str, answer["responses"]))
    return (str(answer["response"]),) if "response" in answer else ()


def _figures(answer: Mapping[str, Any]) -> str:
    if "usage" not in answer:
        return ""
    usage, timings = answer["usage"], answer["timings"]
    parts = [f"prompt {usage['prompt_tokens']:,}"]
    if usage.get("cached_tokens"):
        parts[0] += f" ({usage['cached_tokens']:,} cached)"
    parts.append(f"answer {usage['completion_tokens']:,} tokens")
    if timings.get("prefill_tps") is not None:
        parts.append(f"prefill {rate(timings['prefill_tps'])}")
    if timings.get("decode_tps") is not None:
        parts.append(f"decode {rate(timings['decode_tps'])}")
    parts.append(f"first token {duration(timings['ttft_s'])}")
    parts.append(f"total {duration(timings['total_s'])}")
    parts.append(f"ended by {answer.get('finish_reason')}")
    return " · ".join(parts)
