"""A whole job: look at input and journal, answer what is missing, put the output in place."""

from collections import deque
from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from pathlib import Path

from app.batch.input.scan import InputScan, scan
from app.batch.input.source import Row, Source
from app.batch.journal.journal import GROUP_SECONDS, Entries, Journal, journal_path
from app.batch.journal.lines import END, LEFT_OUT, RUN, run_note, told
from app.batch.output.publish import UnorderedOutput, publish
from app.batch.output.records import OPENAI, RecordForm, dump_line, output_format, writing
from app.batch.report.figures import JobFigures
from app.batch.report.progress import LeftNotes, Progress
from app.batch.schedule.engines import JobPlan
from app.batch.schedule.pending_rows import pending_rows
from app.batch.schedule.run_engines import Hosted, run_engines
from app.batch.settings import JobSettings, differences
from app.batch.spec import BatchSpec, spec_json
from app.openai.answer import RECORD_NAMES, TASK_NAMES, Answer
from quantize.disk import check_outfile
from runtimes.errors import RequestError


def run_to_file(
    plan: JobPlan,
    out: Path,
    progress: Progress,
    hosted: Hosted | None = None,
    *,
    asked: BatchSpec | None = None,
    change: Callable[[Answer], Answer] | None = None,
    only: Set[int] | None = None,
    goes_on: bool = False,
) -> JobFigures:
    """Answer what the journal of ``out`` lacks, then publish ``out``, unless the job is ``hosted``,
    or ``only`` for the rows of these indexes. The journal notes what was ``asked`` of the command,
    and keeps what ``change`` makes of an answer. A part that ``goes_on`` says nothing of the input.

    Raises RequestError (input, output, changed settings), ModelError, OutOfMemoryError (also for a
    full disk). In each case what was answered is in the journal.
    """
    spec, source = plan.spec, plan.source
    anew = spec.fresh or spec.force
    check_out(out, source, replace=spec.fresh)
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
        if only is not None:
            found.narrow(only)
        form = _form(plan, out, found)
        if not anew:
            check_lost_settings(out, journal, found.reusable)
        if not goes_on:
            _tell(found, source, progress)
        streamed = UnorderedOutput(out, form, journal) if spec.out.unordered else None

        def begin() -> None:
            journal.begin(plan.settings.as_json())
            note = run_note(
                rows=found.rows,
                input_rows=found.input_rows,
                invalid=found.failed,
                reused=found.cached,
                shard=str(source.shard) if source.shard else None,
                format=form.format.name,
                input=source.name,
                **({} if asked is None else {"spec": spec_json(asked)}),
            )
            journal.note(RUN, note)
            if streamed is not None and found.pending:
                streamed.settle(source, found.input_rows, errors=False)

        def deliver(row: Row, answer: Answer) -> None:
            answer = answer if change is None else change(answer)
            journal.append(row.key, row.index, answer)
            if streamed is not None and answer.error is None:
                streamed.put(row, answer)

        def idle() -> None:
            journal.sync(after_s=GROUP_SECONDS)
            if streamed is not None:
                streamed.flush()

        summary = _begun(plan, found)
        if found.pending:
            notes = LeftNotes(journal).update
            progress.listeners.append(notes)
            summary = run_engines(
                plan,
                found,
                pending_rows(source, found),
                deliver,
                progress,
                summary,
                loaded=begin,
                idle=idle,
                lengths=journal.lengths,
                hosted=hosted,
            )
            progress.listeners.remove(notes)  # the journal is not open for longer
            journal.sync()
            idle()
        else:
            begin()
        if not summary.ended and hosted is None and only is None:
            with progress.doing("writing the output"):
                if streamed is not None:
                    published = streamed.settle(source, found.input_rows, errors=True)
                else:
                    published = publish(source, journal, out, form)
            summary = replace(
                summary,
                answered=published.answered,
                failed=published.failed,
                errors=dict(published.errors),
            )
        journal.note(END, {"unfinished": summary.unfinished})
        return summary


def run_to_stdout(
    plan: JobPlan, progress: Progress, write: Callable[[bytes], object]
) -> JobFigures:
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
        return _begun(plan, found)
    return run_engines(plan, found, valid_rows(), deliver, progress, _begun(plan, found))


def _form(plan: JobPlan, out: Path | None, found: InputScan) -> RecordForm:
    """The form of the output. Raises RequestError for one that cannot be written as asked."""
    settings, asked = plan.settings, plan.spec.out
    # Counted over all shards, so that their outputs have one format.
    format = output_format(asked.format, out, found.requests, found.input_rows)
    format.check()
    if asked.unordered and format.index is None:
        raise RequestError(f"--unordered appends lines, which {format.name} has not: use .jsonl")
    if format is OPENAI and settings.task in ("score", "classify"):
        raise RequestError(f"OpenAI's batch lines have no --task {settings.task}: use .jsonl")
    lasting = settings.computing is not None
    names = RECORD_NAMES | TASK_NAMES.get(settings.task, frozenset())
    return RecordForm(format, settings.model, settings.raw, asked.input_fields, lasting, names)


def _begun(plan: JobPlan, found: InputScan) -> JobFigures:
    """Figures before the first row is asked."""
    return JobFigures(
        rows=found.rows,
        answered=found.cached,
        failed=found.failed,
        cached=found.cached,
        reused=found.reusable,
        slots=0,
        memory_bytes=0,
        prefill_tps=0.0,
        decode_tps=0.0,
        model=plan.settings.model,
        runtime=plan.settings.runtime,
    )


def _tell(found: InputScan, source: Source, progress: Progress) -> None:
    progress.begin(found)
    for line in found.notes(source.name):
        progress.note(line)


# Refusals before any work: an output that must not be touched, settings that changed.


def check_out(out: Path, source: Source, *, replace: bool) -> None:
    """Raises RequestError when ``out`` cannot be written, is the input, or is not ours."""
    if out.is_dir():
        raise RequestError(f"{out} is a folder; name a file")
    if not out.parent.is_dir():
        raise RequestError(f"{out}: there is no folder {out.parent}")
    journal, before = journal_path(out), out.with_name(f"{out.name}.journal.jsonl")
    if before != journal and before.exists() and not journal.exists():
        raise RequestError(
            f"{before} is the journal of a link: move it to {journal}, where the journal of the"
            " file itself is"
        )
    if source.reader.listing is not None and out.resolve().is_relative_to(source.path.resolve()):
        raise RequestError(
            f"{out} lies in the input {source.name} and would be a row of the next run; "
            "write it elsewhere"
        )
    if out.exists() and not out.is_file():
        raise RequestError(f"{out} is not a regular file; use - for standard output")
    with writing(out):
        check_outfile(out)
    if not out.exists():
        return
    if out.samefile(source.path):
        raise RequestError("the output would overwrite the input; name another file")
    if not (replace or (journal.exists() and journal.stat().st_size)):
        raise RequestError(
            f"{out} exists, and no {journal.name} beside it tells how it was made; "
            "--fresh replaces it"
        )


def check_settings(out: Path, journal: Journal, settings: JobSettings) -> None:
    """Raises RequestError, showing the difference, when ``out`` was begun with other settings."""
    if journal.settings is None or not len(journal.entries):
        return
    changed = differences(journal.settings, settings)
    if changed:
        raise RequestError(
            f"{out} was started with other settings:\n  "
            + "\n  ".join(changed)
            + "\n--force answers every row again and keeps the old answers in the journal; "
            "--fresh drops them; or name another output"
        )


def check_lost_settings(out: Path, journal: Journal, reusable: int) -> None:
    """Raises RequestError when damage hides what the answers of ``out`` were made with, and no row
    of the input shows, by its key, that it was this."""
    if journal.settings_lost and len(journal.entries) and not reusable:
        raise RequestError(
            f"the settings in {journal.path} are damaged, and none of its "
            f"{len(journal.entries):,} records is of a row of this input with the present model "
            "and options. Give the command that began it; or --force, which keeps the old records "
            "and answers every row anew; or --fresh, which drops them; or name another output"
        )
