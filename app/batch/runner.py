"""A whole job: look at input and journal, answer what is missing, put the output in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.batch.answering import Plan, Run, answer
from app.batch.checks import check_out, check_settings
from app.batch.job import Work
from app.batch.journal import Entries, Journal, journal_path
from app.batch.matching import Matcher
from app.batch.ordered import OrderedOutput
from app.batch.progress import Progress
from app.batch.publish import Published, publish
from app.batch.records import failure_of
from app.batch.settings import row_key
from app.batch.source import Source
from app.batch.summary import Summary
from app.batch.survey import Survey, survey
from app.batch.tasks import RowProblem


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures, and whether a signal ended the run before its time."""

    summary: Summary
    interrupted: bool = False


def run_to_file(plan: Plan, out: Path, progress: Progress) -> Outcome:
    """Answer what the journal of ``out`` lacks, then publish ``out``.

    Raises RequestError (input, output, changed settings), ModelError, OutOfMemoryError (also for a
    full disk) or JournalBusyError. In each case what was answered is in the journal.
    """
    check_out(out, plan.source, replace=plan.fresh or plan.force)
    digest = plan.settings.digest()
    settings = plan.settings.as_json()
    with Journal(journal_path(out)) as journal:
        if plan.fresh:
            journal.forget()
        elif not plan.force:
            check_settings(out, journal, plan.settings)
        found = survey(plan.source, Matcher(journal.entries), digest)
        _tell(found, plan.source, progress)
        run = None
        if found.pending:

            def deliver(work: Work, result: dict[str, Any], answered: bool) -> None:
                journal.append(work.key, work.row.index, result, answered=answered)

            run = answer(
                plan,
                found,
                _missing(plan.source, Matcher(journal.entries), digest),
                deliver,
                progress,
                loaded=lambda: journal.begin(settings),
                idle=journal.sync_if_due,
            )
            journal.sync()
        if run is not None and not run.finished:
            return Outcome(_summary(plan, found, run, _so_far(found, run)), interrupted=True)
        journal.begin(settings)
        published = publish(plan.source, found.stamp, journal, digest, out)
        return Outcome(_summary(plan, found, run, published))


def run_to_stdout(plan: Plan, progress: Progress, write: Callable[[bytes], None]) -> Outcome:
    """Answer every row and ``write`` the records in the order of the input, each as soon as those
    before it are written. Keeps no journal."""
    digest = plan.settings.digest()
    found = survey(plan.source, Matcher(Entries()), digest)
    _tell(found, plan.source, progress)
    output = OrderedOutput(write)

    def valid_rows() -> Iterator[Work]:
        for row in plan.source.rows():
            if isinstance(row.task, RowProblem):
                output.put(row, failure_of(row.task))
            else:
                yield Work(row, row.task, row_key(digest, row.task))

    def deliver(work: Work, result: dict[str, Any], answered: bool) -> None:
        output.put(work.row, result)

    def nothing() -> None:
        return

    if not found.pending:
        list(valid_rows())
        return Outcome(_summary(plan, found, None, Published(failed=found.invalid)))
    run = answer(plan, found, valid_rows(), deliver, progress, loaded=nothing, idle=nothing)
    return Outcome(_summary(plan, found, run, _so_far(found, run)), interrupted=not run.finished)


def _missing(source: Source, matcher: Matcher, digest: bytes) -> Iterator[Work]:
    for row in source.rows():
        if isinstance(row.task, RowProblem):
            continue
        key = row_key(digest, row.task)
        if matcher.take(key) is None:
            yield Work(row, row.task, key)


def _tell(found: Survey, source: Source, progress: Progress) -> None:
    for line, problem in found.problems:
        progress.note(f"{source.name}, line {line}: {problem.message}")
    if found.invalid > len(found.problems):
        progress.note(f"and {found.invalid - len(found.problems):,} more rows that are not valid")
    if found.shared_ids:
        progress.note(
            f"{found.shared_ids:,} rows repeat an earlier row's id; `index` tells them apart"
        )


def _so_far(found: Survey, run: Run) -> Published:
    counts = run.counts
    return Published(
        answered=found.reusable + counts.answered,
        failed=found.invalid + counts.failed,
        unfinished=found.pending - counts.answered - counts.failed,
    )


def _summary(plan: Plan, found: Survey, run: Run | None, published: Published) -> Summary:
    return Summary(
        rows=found.rows,
        answered=published.answered,
        failed=published.failed,
        reused=found.reusable,
        unfinished=published.unfinished,
        model=plan.settings.model,
        runtime=plan.settings.runtime,
        prompt_tokens=run.counts.prompt_tokens if run else 0,
        completion_tokens=run.counts.completion_tokens if run else 0,
        slots=run.slots if run else 0,
        load_s=run.load_s if run else 0.0,
        run_s=run.run_s if run else 0.0,
        prefill_tps=run.prefill_tps if run else 0.0,
        decode_tps=run.decode_tps if run else 0.0,
    )
