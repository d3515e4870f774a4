"""How long a job may take, by the speeds of an earlier one with the same model and slots."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.batch.watch.follow import FileTail, event_of
from app.batch.watch.records import records

_END = 1 << 16  # bytes of a log that has its last event


@dataclass(frozen=True, slots=True)
class TimeLike:
    """At most so long, if it is as fast as the job of ``output`` was."""

    seconds: float
    output: Path


def time_like(found: dict[str, Any]) -> TimeLike | None:
    """``found`` is what a dry run tells: prompts one after another, answers of all slots together.
    None when no such job was started here. Reads files: call it in a thread."""
    for record in records():
        end = _end(record.events)
        fits = all(end.get(name) == found[name] for name in ("model", "slots"))
        if fits and not end.get("engines") and end["prefill_tps"] > 0 and end["decode_tps"] > 0:
            seconds = found["prompt_tokens"] / end["prefill_tps"]
            seconds += found["most_answer_tokens"] / end["decode_tps"]
            return TimeLike(seconds, record.output)
    return None


def _end(events: Path) -> dict[str, Any]:
    """The last event of a run that told how it ended; empty if it did not."""
    tail, last = FileTail(events, last=_END), b""
    while lines := tail.read()[1]:
        last = lines[-1][1]
    event = event_of(last)
    return event if event.get("event") == "end" else {}
