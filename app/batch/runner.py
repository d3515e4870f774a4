"""A whole job: look at input and journal, answer what is missing, put the output in place."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.batch.checks import check_lost_settings, check_out, check_settings
from app.batch.input.row import Row
from app.batch.input.scan import InputScan, scan
from app.batch.input.source import Source
from app.batch.journal.answers import Published
from app.batch.journal.journal import Entries, Journal, journal_path
from app.batch.journal.lines import END, LEFT_OUT, RUN, told
from app.batch.journal.notes import LeftNotes, end_note, run_note
from app.batch.output.formats import output_format
from app.batch.output.publish import publish
from app.batch.output.records import OutputFormat, RecordForm
from app.batch.output.unordered import UnorderedOutput
from app.batch.output.wire import dump_line
from app.batch.plan import Plan
from app.batch.report.progress import BaseProgress, Views
from app.batch.report.summary import Summary
from app.batch.schedule.pending_rows import pending_rows
from app.batch.schedule.pool_engine import Counts
from app.batch.schedule.run_engines import Run, run_engines
from app.openai.answer import Answer
from runtimes.engine.metrics import EngineStats
from runtimes.errors import RequestError


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run did."""

    summary: Summary
    stats: EngineStats | None  # of the engines; None when no row needed them


def run_to_file(plan: Plan, out: Path, progress: BaseProgress) -> Outcome:
    """Answer what the journal of ``out`` lacks, then publish ``out``.

    Raises RequestError (input, output, changed settings), ModelError, OutOfMemoryError (also for a
    full disk) or JournalBusyError. In each case what was answered is in the journal.
    """
    spec, source = plan.spec, plan.source
    anew = spec.fresh or spec.force
    check_out(out, source, replace=anew)
    with progress.doing("reading the journal"):
        journal = Journal(journal_path(out))
    with journal:
        if spec.fresh:
            journal.forget()
        else:
            for line in told(journal.path, journal.damaged, LEFT_OUT):
                progress.note(line)
        if not anew:
            check_settings(out, journal, plan.settings)
        journal.entries.keep_failures = spec.running.skip_failed
        with progress.doing("checking the input"):
            found = scan(source, journal.entries, strict=spec.rows.strict)
        form = _form(plan, out, found)
        if not anew:
            check_lost_settings(out, journal, found.reusable)
        _tell(found, source, progress)
        streamed = UnorderedOutput(out, form, journal) if spec.out.unordered else None

        def begin() -> None:
            journal.begin(plan.settings.as_json())
            journal.note(RUN, _run_note(found, source, form.format))
            if streamed is not None and found.pending:
                streamed.settle(source, found, errors=False)

        def deliver(row: Row, answer: Answer) -> None:
            journal.append(row.key, row.index, answer)
            if streamed is not None and answer.error is None:
                streamed.put(row, answer)

        def idle() -> None:
            journal.sync_if_due()
            if streamed is not None:
                streamed.flush()

        run = None
        if found.pending:
            rows = pending_rows(source, journal.entries, found.priorities)
            views = Views([progress, LeftNotes(journal)])
            lengths = journal.lengths
            run = run_engines(
                plan, found, rows, deliver, views, loaded=begin, idle=idle, lengths=lengths
            )
            journal.sync()
            idle()
        else:
            begin()
        if run is not None and run.ended:
            published = _so_far(found, run)
        else:
            with progress.doing("writing the output"):
                if streamed is not None:
                    published = streamed.settle(source, found, errors=True)
                else:
                    published = publish(source, found.stamp, journal, out, form)
        journal.note(END, end_note(published.unfinished))
        return _outcome(plan, found, run, published)


def run_to_stdout(plan: Plan, progress: BaseProgress, write: Callable[[bytes], None]) -> Outcome:
    """Answer every row and ``write`` the records in the order of the input, each as soon as those
    before it are written. Keeps no journal."""
    with progress.doing("checking the input"):
        found = scan(plan.source, Entries(), strict=plan.spec.rows.strict)
    form = _form(plan, None, found)
    if form.format.index is None:
        raise RequestError(
            f"{form.format.name} needs all rows at once: name a file instead of stdout"
        )
    _tell(found, plan.source, progress)
    order: deque[int] = deque()
    # Bounded: while one row runs, at most as many others finish in each step as there are slots.
    held: dict[int, bytes] = {}

    def deliver(row: Row, answer: Answer) -> None:
        held[row.index] = dump_line(form.record(row, answer))
        while order and (line := held.pop(order[0], None)) is not None:
            order.popleft()
            write(line)

    def valid_rows() -> Iterator[Row]:
        for row in plan.source.rows():
            order.append(row.index)
            if row.problem is None:
                yield row
            else:
                deliver(row, Answer(error=row.problem))

    if not found.pending:
        list(valid_rows())
        return _outcome(plan, found, None, Published(failed=found.invalid))
    run = run_engines(plan, found, valid_rows(), deliver, progress)
    return _outcome(plan, found, run, _so_far(found, run))


def _form(plan: Plan, out: Path | None, found: InputScan) -> RecordForm:
    """The form of the output. Raises RequestError for one that cannot be written as asked."""
    settings, asked = plan.settings, plan.spec.out
    format = output_format(asked.format, out, found)
    format.check()
    if asked.unordered and format.index is None:
        raise RequestError(f"--unordered appends lines, which {format.name} has not: use .jsonl")
    lasting = settings.computing is not None
    return RecordForm(format, settings.model, settings.raw, asked.input_fields, lasting)


def _run_note(found: InputScan, source: Source, format: OutputFormat) -> dict[str, Any]:
    return run_note(
        rows=found.rows,
        input_rows=found.input_rows,
        invalid=found.invalid + found.skipped,
        reused=found.reusable - found.skipped,
        shard=str(source.shard) if source.shard else None,
        format=format.name,
        input=source.name,
    )


def _tell(found: InputScan, source: Source, progress: BaseProgress) -> None:
    progress.begin(found)
    for line in found.notes(source.name):
        progress.note(line)


def _so_far(found: InputScan, run: Run) -> Published:
    counts = run.counts
    return Published(
        answered=found.reusable - found.skipped + counts.answered,
        failed=found.invalid + found.skipped + counts.failed,
        unfinished=found.pending - counts.answered - counts.failed,
        errors=counts.errors,
    )


def _outcome(plan: Plan, found: InputScan, run: Run | None, published: Published) -> Outcome:
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
    return Outcome(summary, run.stats if run else None)
