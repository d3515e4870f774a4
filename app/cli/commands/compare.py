"""`ingot compare`: one prompt, or a file of them, to several files; where their answers part."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app import console
from app.cli.groups import with_groups
from app.cli.options import ModelArgument, ObjectFlag, SystemOption
from app.options import ModelOptions, SamplingOptions
from runtimes.settings import MOST_SLOTS

if TYPE_CHECKING:
    from app.compare.answers import CompareReport, Contender
    from app.compare.prompts import PromptsJob
    from app.compare.run import Comparison
    from app.exitcodes import ExitCode

_FILE_PANEL = "A file of prompts"


@with_groups
def compare(
    model: ModelArgument,
    sampling: SamplingOptions,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT|MODEL",
            help="What is asked; text that is piped in follows it after a blank line. With"
            " --prompts: further models.",
        ),
    ] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option(
            help="A built file of MODEL, such as q8_0; repeatable. The first is what the"
            " others are compared with. Default: all files of MODEL."
        ),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option("--also", metavar="MODEL", help="Another model or file; repeatable."),
    ] = None,
    system: SystemOption = None,
    together: Annotated[
        bool, typer.Option("--together", help="Ask all at once: done sooner, but each is slower.")
    ] = False,
    as_json: ObjectFlag = False,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Ask all prompts of FILE, which is read as by `ingot batch`. A field `expected` or"
            " `answer` says which answer is right.",
            rich_help_panel=_FILE_PANEL,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write all of it there: Markdown or JSON, by the suffix .md or .json.",
            rich_help_panel=_FILE_PANEL,
        ),
    ] = None,
    field: Annotated[
        str | None, typer.Option(help="Field with the prompt.", rich_help_panel=_FILE_PANEL)
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Only the first N prompts.", rich_help_panel=_FILE_PANEL
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_SLOTS,
            help="Answers that run together; 16 if memory allows.",
            rich_help_panel=_FILE_PANEL,
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Drop the answers of earlier runs.", rich_help_panel=_FILE_PANEL
        ),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="No progress on stderr.", rich_help_panel=_FILE_PANEL),
    ] = False,
) -> None:
    """Ask several files the same: answers, speed, memory, and the first token that differs.

    They answer one after another, each in its own process. Exits 3 if one
    could not answer.

    With --prompts, each file answers a whole file of prompts: how many
    answers are the same, where they part, which were right and became wrong,
    speeds. Every answer is kept: after a crash or Ctrl-C the same command
    goes on where it stopped. Exits 1 if some prompts failed.
    """
    from app.prompts import clean_argument
    from runtimes.errors import RequestError

    words = words or []
    system = clean_argument(system, console.note)
    if prompts is None:
        given = {"--output": output, "--field": field, "--limit": limit, "--slots": slots}
        given |= {"--fresh": fresh or None, "--quiet": quiet or None}
        if wrong := [name for name, value in given.items() if value is not None]:
            raise RequestError(f"{wrong[0]} goes with --prompts FILE")
        if len(words) > 1:
            raise RequestError(
                "give one PROMPT in quotes; with --prompts FILE, several MODELs are compared"
            )
        contenders = _contenders(model, recipe or [], also or [])
        _one(contenders, words[0] if words else None, sampling, system, together, as_json)
        return
    if together:
        raise RequestError("--together is for one PROMPT; with --prompts, files take turns")
    from app.compare.prompts import PromptsJob, check_prompts, entries_of
    from app.compare.report import check_output

    if output is not None:
        check_output(output, prompts)
    asked = _contenders(model, recipe or [], [*words, *(also or [])])
    entries = entries_of([(one.model, one.options) for one in asked])
    job = PromptsJob(entries, check_prompts(prompts), sampling, system, field, limit, slots)
    raise typer.Exit(_many(job, output, as_json=as_json, fresh=fresh, quiet=quiet))


def _one(
    contenders: list[Contender],
    prompt: str | None,
    sampling: SamplingOptions,
    system: str | None,
    together: bool,
    as_json: bool,
) -> None:
    """One prompt, at once."""
    from app.compare.answers import Question
    from app.compare.report import as_json as as_object
    from app.compare.report import lines
    from app.compare.run import Comparison
    from app.exitcodes import ExitCode
    from app.openai.prepare import conversation
    from app.prompts import PromptStyle, read_prompt

    params = sampling.params()
    text = read_prompt(prompt, "ingot compare MODEL", console.note)
    messages = conversation(PromptStyle(system), [{"role": "user", "content": text}])
    comparison = Comparison(contenders, Question(tuple(messages), params), together=together)
    console.prepare_stdout()
    report, interrupted = _run(comparison)
    if as_json:
        console.emit_json(as_object(report))
    else:
        for side in report.sides:
            if side.text:
                console.emit(f"== {side.label}\n{side.text.rstrip()}\n\n")
        for line in lines(report):
            console.note(line)
    if interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if any(side.error for side in report.sides):
        raise typer.Exit(ExitCode.MODEL)


def _many(
    job: PromptsJob, output: Path | None, *, as_json: bool, fresh: bool, quiet: bool
) -> ExitCode:
    """A file of prompts, unattended."""
    from app.batch.run import run_batch
    from app.compare.prompts import labels_of, run_prompts
    from app.compare.report import report_of, results_json, write_results
    from app.exitcodes import ExitCode

    labels = labels_of(job.entries)

    def begin(number: int) -> None:
        if not quiet:
            console.note(f"file {number + 1} of {len(labels)}: {labels[number]}")

    console.prepare_stdout()
    codes = run_prompts(job, lambda spec: run_batch(spec, quiet=quiet), begin, fresh=fresh)
    if codes[-1] == ExitCode.INTERRUPTED:
        return ExitCode.INTERRUPTED
    results = report_of(job)
    if output is not None:
        write_results(results, output)
    if as_json:
        console.emit(results_json(results))
    elif output is None:
        from app.compare.report import print_tables

        print_tables(results)
    elif not quiet:
        console.note(f"written: {output}")
    return ExitCode(max(codes))


def _contenders(model: str, recipes: list[str], also: list[str]) -> list[Contender]:
    """The files to ask. Raises ModelError for a MODEL that cannot be read."""
    from app.compare.answers import Contender
    from app.models.library import locate
    from quantize.manifest import NAME, load_manifest

    path = Path(locate(model))
    if not recipes and (path / NAME).is_file() and not also:
        recipes = [entry.recipe for entry in load_manifest(path).files]
    name = path.name if path.exists() else model
    found = [Contender(model, ModelOptions(recipe=r), f"{name} · {r}") for r in recipes]
    found = found or [Contender(model, label=name)]
    return found + [Contender(other, label=Path(other).name) for other in also]


def _run(comparison: Comparison) -> tuple[CompareReport, bool]:
    """The report, and whether Ctrl-C ended it early."""
    comparison.start()
    interrupted = False
    while True:
        try:
            if comparison.join(0.1):
                return comparison.poll(), interrupted
        except KeyboardInterrupt:
            interrupted = True
            comparison.stop()
