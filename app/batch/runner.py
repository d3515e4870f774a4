"""A whole job: look at input and journal, answer what is missing, put the output in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.batch.checks import check_lost_settings, check_out, check_settings
from app.batch.input.source import Source
from app.batch.input.survey import Survey, survey
from app.batch.input.tasks import RowProblem
from app.batch.journal.answers import NO_KEY, Published
from app.batch.journal.journal import Entries, Journal, journal_path
from app.batch.journal.lines import END, LEFT_OUT, RUN, told
from app.batch.journal.notes import LeftNotes, end_note, run_note
from app.batch.output.formats import OutputFormat, RecordForm, output_format
from app.batch.output.ordered import OrderedOutput
from app.batch.output.publish import publish
from app.batch.output.records import failure_of
from app.batch.output.unordered import UnorderedOutput
from app.batch.output.writers import check_format
from app.batch.plan import Plan
from app.batch.report.progress import BaseProgress, Views
from app.batch.report.summary import Summary
from app.batch.schedule.pending_rows import pending_rows
from app.batch.schedule.run_engines import Ended, Run, run_engines
from app.batch.schedule.work import Counts, Work
from app.batch.settings import row_key
from runtimes.engine.metrics import EngineStats
from runtimes.errors import RequestError


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures, and what ended the run before its time. ``stats`` are the engine's, None when no
    row needed it."""

    summary: Summary
    ended: Ended | None
    stats: EngineStats | None


def run_to_file(plan: Plan, out: Path, progress: BaseProgress) -> Outcome:
    """Answer what the journal of ``out`` lacks, then publish ``out``.

    Raises RequestError (input, output, changed settings), ModelError, OutOfMemoryError (also for a
    full disk) or JournalBusyError. In each case what was answered is in the journal.
    """
    check_out(out, plan.source, replace=plan.fresh or plan.force)
    digest = plan.settings.digest()
    settings = plan.settings.as_json()
    with progress.doing("reading the journal"):
        journal = Journal(journal_path(out))
    with journal:
        if plan.fresh:
            journal.forget()
        else:
            for line in told(journal.path, journal.damaged, LEFT_OUT):
                progress.note(line)
        if not (plan.fresh or plan.force):
            check_settings(out, journal, plan.settings)
        journal.entries.keep_failures = plan.skip_failed
        with progress.doing("checking the input"):
            found = survey(plan.source, journal.entries, digest, strict=plan.strict)
        form = _form(plan, out, found)
        if not (plan.fresh or plan.force):
            check_lost_settings(out, journal, found.reusable)
        _tell(found, plan.source, progress)
        streamed = UnorderedOutput(out, form, journal) if plan.output.unordered else None
        run = None

        def begin() -> None:
            journal.begin(settings)
            journal.note(RUN, _run_note(found, plan.source, form.format))
            if streamed is not None and found.pending:
                streamed.settle(plan.source, found.stamp, digest, errors=False)

        def deliver(work: Work, result: dict[str, Any], answered: bool) -> None:
            journal.append(work.key, work.row.index, result, answered=answered)
            if streamed is not None and answered:
                streamed.put(work, result)

        def idle() -> None:
            journal.sync_if_due()
            if streamed is not None:
                streamed.flush()

        if found.pending:
            work = pending_rows(plan.source, journal.entries, digest, found.priorities)
            views = Views([progress, LeftNotes(journal)])
            run = run_engines(
                plan,
                found,
                work,
                deliver,
                views,
                loaded=begin,
                idle=idle,
                lengths=journal.lengths,
            )
            journal.sync()
            idle()
        else:
            begin()
        if run is not None and run.ended:
            so_far = _so_far(found, run)
            journal.note(END, end_note(so_far.unfinished))
            return _outcome(plan, found, run, so_far)
        with progress.doing("writing the output"):
            if streamed is not None:
                published = streamed.settle(plan.source, found.stamp, digest, errors=True)
            else:
                published = publish(plan.source, found.stamp, journal, digest, out, form)
        journal.note(END, end_note(published.unfinished))
        return _outcome(plan, found, run, published)


def run_to_stdout(plan: Plan, progress: BaseProgress, write: Callable[[bytes], None]) -> Outcome:
    """Answer every row and ``write`` the records in the order of the input, each as soon as those
    before it are written. Keeps no journal."""
    digest = plan.settings.digest()
    with progress.doing("checking the input"):
        found = survey(plan.source, Entries(), digest, strict=plan.strict)
    form = _form(plan, None, found)
    if form.format in ("csv", "parquet"):
        raise RequestError(f"{form.format} needs all rows at once: name a file instead of stdout")
    _tell(found, plan.source, progress)
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

    if not found.pending:
        list(valid_rows())
        return _outcome(plan, found, None, Published(failed=found.invalid))
    run = run_engines(plan, found, valid_rows(), deliver, progress)
    return _outcome(plan, found, run, _so_far(found, run))


def _form(plan: Plan, out: Path | None, found: Survey) -> RecordForm:
    """The form of the output. Raises RequestError for one that cannot be written as asked."""
    settings, output = plan.settings, plan.output
    format = output_format(output.format, out, found)
    check_format(format)
    if output.unordered and format in ("csv", "parquet"):
        raise RequestError(f"--unordered appends lines, which {format} has not: use .jsonl")
    reproducible = settings.computing is not None
    return RecordForm(format, settings.model, settings.raw, output.fields, lasting=reproducible)


def _run_note(found: Survey, source: Source, format: OutputFormat) -> dict[str, Any]:
    return run_note(
        rows=found.rows,
        input_rows=found.input_rows,
        invalid=found.invalid + found.skipped,
        reused=found.reusable - found.skipped,
        shard=str(source.shard) if source.shard else None,
        format=format,
        input=source.name,
    )


def _tell(found: Survey, source: Source, progress: BaseProgress) -> None:
    progress.begin(found)
    for line in found.notes(source.name):
        progress.note(line)


def _so_far(found: Survey, run: Run) -> Published:
    counts = run.counts
    return Published(
        answered=found.reusable - found.skipped + counts.answered,
        failed=found.invalid + found.skipped + counts.failed,
        unfinished=found.pending - counts.answered - counts.failed,
        errors=counts.errors,
    )


def _outcome(plan: Plan, found: Survey, run: Run | None, published: Published) -> Outcome:
    counts = run.counts if run else Counts()
    summary = Summary(
        rows=found.rows,
        answered=published.answered,
        failed=published.failed,
        reused=found.reusable,
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
