"""`ingot compare`: one prompt to several files, and where their answers part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from app import console
from app.cli.groups import with_groups
from app.cli.options import ModelArgument, ObjectFlag, PromptArgument, SystemOption
from app.options import ModelOptions, SamplingOptions

if TYPE_CHECKING:
    from app.compare.records import Contender, Report
    from app.compare.run import Comparison


@with_groups
def compare(
    model: ModelArgument,
    sampling: SamplingOptions,
    prompt: PromptArgument = None,
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
) -> None:
    """Ask several files one question: answers, speed, memory, and the first token that differs.

    They answer one after another, each in its own process. Exits 3 if one could not answer.
    """
    from app.compare.records import Question
    from app.compare.run import Comparison
    from app.compare.text import as_json as as_object
    from app.compare.text import lines
    from app.exitcodes import ExitCode
    from app.prompts import PromptStyle, clean_argument, conversation, read_prompt

    params = sampling.params()
    text = read_prompt(prompt, "ingot compare MODEL", console.note)
    style = PromptStyle(clean_argument(system, console.note))
    messages = conversation(style, [{"role": "user", "content": text}])
    contenders = _contenders(model, recipe or [], also or [])
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


def _contenders(model: str, recipes: list[str], also: list[str]) -> list[Contender]:
    """The files to ask. Raises ModelError for a MODEL that cannot be read."""
    from pathlib import Path

    from app.compare.records import Contender
    from app.models.library import locate
    from quantize.manifest import NAME, load_manifest

    path = Path(locate(model))
    if not recipes and (path / NAME).is_file() and not also:
        recipes = [entry.recipe for entry in load_manifest(path).files]
    name = path.name if path.exists() else model
    found = [Contender(model, ModelOptions(recipe=r), f"{name} · {r}") for r in recipes]
    found = found or [Contender(model, label=name)]
    return found + [Contender(other, label=Path(other).name) for other in also]


def _run(comparison: Comparison) -> tuple[Report, bool]:
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
