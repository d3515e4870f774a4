"""A whole job: look at input and journal, answer what is missing, put the output in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.batch.answering import Ended, Known, Run, answer
from app.batch.answers import NO_KEY, Published
from app.batch.checks import check_out, check_settings
from app.batch.formats import OutputFormat, RecordForm, output_format
from app.batch.journal import Entries, Journal, journal_path
from app.batch.journal_lines import END, RUN
from app.batch.matching import Matcher
from app.batch.missing import missing
from app.batch.ordered import OrderedOutput
from app.batch.plan import Plan
from app.batch.progress import Progress
from app.batch.publish import check_unchanged, publish
from app.batch.records import failure_of
from app.batch.runlog import end_note, run_note
from app.batch.settings import row_key
from app.batch.source import Source
from app.batch.summary import Summary
from app.batch.survey import Survey, survey
from app.batch.tasks import RowProblem
from app.batch.unordered import UnorderedOutput
from app.batch.work import Counts, Work
from app.batch.writers import check_format
from runtimes.errors import RequestError
from runtimes.metrics import EngineStats


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures, and what ended the run before its time. ``stats`` are the engine's, None when no
    row needed it."""

    summary: Summary
    ended: Ended | None
    stats: EngineStats | None


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
        journal.entries.keep_failures = plan.skip_failed
        found = survey(plan.source, journal.entries, digest, strict=plan.strict)
        form = _form(plan, out, found)
        skipped = (
            min(Matcher(journal.entries).failures(), found.reusable) if plan.skip_failed else 0
        )
        known = Known(found, skipped)
        _tell(known, plan.source, progress)
        streamed = UnorderedOutput(out, form, journal) if plan.output.unordered else None
        run = None

        def begin() -> None:
            journal.begin(settings)
            journal.note(RUN, _run_note(known, plan.source, form.format))
            if streamed is not None and found.pending:
                streamed.settle(plan.source, digest, errors=False)

        def deliver(work: Work, result: dict[str, Any], answered: bool) -> None:
            journal.append(work.key, work.row.index, result, answered=answered)
            if streamed is not None and answered:
                streamed.put(work, result)

        def idle() -> None:
            journal.sync_if_due()
            if streamed is not None:
                streamed.flush()

        if found.pending:
            work = missing(plan.source, journal.entries, digest, found.priorities)
            run = answer(plan, known, work, deliver, progress, loaded=begin, idle=idle)
            journal.sync()
            idle()
        else:
            begin()
        if run is not None and run.ended:
            so_far = _so_far(known, run)
            journal.note(END, end_note(so_far.unfinished))
            return _outcome(plan, known, run, so_far)
        if streamed is not None:
            published = streamed.settle(plan.source, digest, errors=True)
            check_unchanged(plan.source, found.stamp)
        else:
            published = publish(plan.source, found.stamp, journal, digest, out, form)
        journal.note(END, end_note(published.unfinished))
        return _outcome(plan, known, run, published)


def run_to_stdout(plan: Plan, progress: Progress, write: Callable[[bytes], None]) -> Outcome:
    """Answer every row and ``write`` the records in the order of the input, each as soon as those
    before it are written. Keeps no journal."""
    digest = plan.settings.digest()
    found = survey(plan.source, Entries(), digest, strict=plan.strict)
    form = _form(plan, None, found)
    if form.format in ("csv", "parquet"):
        raise RequestError(f"{form.format} needs all rows at once: name a file instead of stdout")
    known = Known(found)
    _tell(known, plan.source, progress)
    output = OrderedOutput(form, write)

    def valid_rows() -> Iterator[Work]:
        for row in plan.source.rows():
            output.expect(row)
            if isinstance(row.task, RowProblem):
                output.put(row, failure_of(row.task), NO_KEY)
            else:
                yield Work(row, row.task, row_key(digest, row.task))

    def deliver(work: Work, result: dict[str, Any], answered: bool) -> None:
        output.put(work.row, result, work.key)

    def nothing() -> None:
        return

    if not found.pending:
        list(valid_rows())
        return _outcome(plan, known, None, Published(failed=found.invalid))
    run = answer(plan, known, valid_rows(), deliver, progress, loaded=nothing, idle=nothing)
    return _outcome(plan, known, run, _so_far(known, run))


def _form(plan: Plan, out: Path | None, found: Survey) -> RecordForm:
    """The form of the output. Raises RequestError for one that cannot be written as asked."""
    settings, output = plan.settings, plan.output
    format = output_format(output.format, out, found)
    check_format(format)
    if output.unordered and format in ("csv", "parquet"):
        raise RequestError(f"--unordered appends lines, which {format} has not: use .jsonl")
    return RecordForm(format, settings.model, settings.raw, output.fields)


def _run_note(known: Known, source: Source, format: OutputFormat) -> dict[str, Any]:
    found = known.found
    return run_note(
        rows=found.rows,
        input_rows=found.input_rows,
        invalid=found.invalid + known.skipped,
        reused=found.reusable - known.skipped,
        shard=str(source.shard) if source.shard else None,
        format=format,
        input=source.name,
    )


def _tell(known: Known, source: Source, progress: Progress) -> None:
    progress.begin(known)
    for line in known.found.notes(source.name):
        progress.note(line)


def _so_far(known: Known, run: Run) -> Published:
    counts, found = run.counts, known.found
    return Published(
        answered=found.reusable - known.skipped + counts.answered,
        failed=found.invalid + known.skipped + counts.failed,
        unfinished=found.pending - counts.answered - counts.failed,
        errors=counts.errors,
    )


def _outcome(plan: Plan, known: Known, run: Run | None, published: Published) -> Outcome:
    counts = run.counts if run else Counts()
    summary = Summary(
        rows=known.found.rows,
        answered=published.answered,
        failed=published.failed,
        reused=known.found.reusable,
        unfinished=published.unfinished,
        model=plan.settings.model,
        runtime=plan.settings.runtime,
        retried=counts.retried,
        crashes=counts.crashes,
        prompt_tokens=counts.prompt_tokens,
        cached_tokens=counts.cached_tokens,
        completion_tokens=counts.completion_tokens,
        slots=run.slots if run else 0,
        load_s=run.load_s if run else 0.0,
        run_s=run.run_s if run else 0.0,
        prefill_tps=run.stats.prefill_tps if run else 0.0,
        decode_tps=run.stats.decode_tps if run else 0.0,
        memory_bytes=run.memory if run else 0,
        ended=run.ended if run else None,
        errors=dict(published.errors),
        engines=run.engines if run else (),
    )
    return Outcome(summary, run.ended if run else None, run.stats if run else None)
