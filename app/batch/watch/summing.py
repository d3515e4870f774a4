"""From what is known of a job to what is shown of it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from app.batch.journal.lines import LOST, told
from app.batch.report.summary import Summary
from app.batch.report.time_left import Left, left_of
from app.batch.watch.view import JobView, Phase
from app.figures import duration, rate

if TYPE_CHECKING:
    from app.batch.watch.job import Job

_KEPT = "every finished row is kept, and resuming computes none of them again"


def view_of(job: Job, phase: Phase, now: float) -> JobView:
    """``now`` is in Unix seconds."""
    journal, events = job.journal, job.events
    run = journal.run
    if run is not None and job.own and not events.of_this_run(run) and events.end is None:
        run = None  # the journal still tells of the run before
    view = JobView(str(job.output), phase, job.own, part_read=journal.part_read)
    # What its own process told is not said twice.
    damaged = () if events.begin else told(journal.path, journal.damaged, LOST)
    notes = (*events.notes, *damaged)
    values: dict[str, Any] = {"lines": tuple(_lines(job, phase)), "notes": notes}
    if run is not None:
        begun = float(run["at"])
        until = now if phase.active else max(journal.last, begun)
        elapsed = max(until - begun, 1e-3)
        failed = int(run["invalid"]) + journal.failed
        done = int(run["reused"]) + journal.done + failed
        values |= {
            "rows": int(run["rows"]),
            "done": done,
            "failed": failed,
            "cached": int(run["reused"]),
            "elapsed_s": elapsed,
            "prompt_tokens": journal.prompt_tokens,
            "output_tokens": journal.output_tokens,
            "speeds": journal.speeds.points(),
            "decode": journal.output_tokens / elapsed,
            "decode_now": journal.output_tps(now) if phase.active else None,
        }
    elif events.begin is not None:
        begin = events.begin
        done = begin["cached"] + begin["failed"]
        values |= {"rows": begin["rows"], "done": done}
        values |= {"failed": begin["failed"], "cached": begin["cached"]}
    values["left"] = _left(job, now) if phase.active else None
    if job.own and events.progress is not None:
        values |= _measured(events.progress, phase)
        values["speeds"] = events.speeds.points()
    if job.own and events.end is not None:
        values |= {"prefill": events.end["prefill_tps"], "decode": events.end["decode_tps"]}
    return replace(view, **values)


def _left(job: Job, now: float) -> Left | None:
    """By the last event of its own process, else by the last note in the journal."""
    told, note = job.events.progress, job.journal.left
    if job.own:
        return None if told is None else left_of(told)
    if note is None or (left := left_of(note)) is None:
        return None
    return left.after(now - note["at"])


def _measured(progress: dict[str, Any], phase: Phase) -> dict[str, Any]:
    """What only the process itself knows."""
    running = phase.active
    return {
        "running": progress["running"] if running else 0,
        "slots": progress["slots"],
        "prefill_now": progress["prefill_tps_now"] if running else None,
        "prefill": progress["prefill_tps"],
        "decode_now": progress["decode_tps_now"] if running else None,
        "decode": progress["decode_tps"],
        "kv_tokens": progress["kv_tokens"] if running else 0,
        "kv_capacity": progress["kv_capacity"],
        "memory": progress["memory_bytes"] if running else None,
    }


def _lines(job: Job, phase: Phase) -> list[str]:
    match phase:
        case Phase.FAILED:
            said = job.last_words() or f"it ended with exit code {job.exit_code}"
            return said.splitlines()
        case Phase.DIED:
            code = job.exit_code
            how = f"by signal {-code}" if code is not None and code < 0 else "or its machine was"
            return [f"its process was killed ({how}); {_KEPT}"]
        case Phase.STOPPED | Phase.PAUSED | Phase.DONE if job.events.end is not None:
            return _summary(job.events.end).lines()
        case Phase.DONE:
            return _totals(job)
        case Phase.ELSEWHERE:
            run = job.journal.run or {}
            return [f"started on {run.get('host')}; whether it still runs is not known here"]
        case _:
            return []


def _summary(end: dict[str, Any]) -> Summary:
    names = {field.name for field in fields(Summary)}
    return Summary(**{name: value for name, value in end.items() if name in names})


def _totals(job: Job) -> list[str]:
    journal = job.journal
    run = journal.run or {"at": 0.0}
    elapsed = max(journal.last - run["at"], 1e-3)
    return [
        f"{journal.prompt_tokens:,} prompt and {journal.output_tokens:,} answer tokens in "
        f"{duration(elapsed)}: {rate(journal.output_tokens / elapsed)} overall"
    ]
