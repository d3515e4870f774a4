"""`ingot run`: one prompt from the shell, its answer on stdout as it comes."""

from dataclasses import replace
from typing import Annotated

import typer

from app import console
from app.cli.groups import with_groups
from app.cli.options import ModelArgument, PromptArgument, Reproducible, SystemOption
from app.options import (
    AdapterOptions,
    ConstraintOptions,
    ModelOptions,
    PlanOptions,
    SamplingOptions,
)
from runtimes.models.registry import backend_of


@with_groups
def run(
    model: ModelArgument,
    sampling: SamplingOptions,
    constraints: ConstraintOptions,
    options: ModelOptions,
    adapters: AdapterOptions,
    settings: PlanOptions,
    prompt: PromptArgument = None,
    system: SystemOption = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Send the text as it is, without the chat template.")
    ] = False,
    context_shift: Annotated[
        bool,
        typer.Option(
            "--context-shift",
            help="When the context is full, drop its oldest half and continue (llama.cpp). Without"
            " it the answer ends there.",
        ),
    ] = False,
    reproducible: Reproducible = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout instead of the text.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No figures on stderr.")] = False,
) -> None:
    """Answer one prompt; the figures go to stderr."""
    from app.exitcodes import ExitCode
    from app.figures import figures_line
    from app.models.library import load_engine
    from app.models.planning import choose
    from app.oneshot import ask, result_json
    from app.prompts import PromptStyle, clean_argument, read_prompt
    from runtimes.errors import RequestError

    params = replace(sampling.params(), constraint=constraints.constraint())
    style = PromptStyle(clean_argument(system, console.note), raw)
    text = read_prompt(prompt, "ingot run MODEL", console.note)
    given = adapters.adapter or []
    if len(given) > 1:
        raise RequestError("--adapter: one prompt is answered with one adapter; give one")
    choice = choose(
        model, options, settings, "chat", slots=1, reproducible=reproducible, adapters=given
    )
    adapter = next((one.name for one in choice.adapters), None)
    file = choice.file
    if context_shift and "context_shift" not in backend_of(file).knows:
        raise RequestError(
            f"--context-shift: {file.path.name} runs on {backend_of(file).label}, whose graphs"
            " cannot forget a context's beginning; choose a .gguf file"
        )
    runner = replace(choice.settings, context_shift=context_shift)
    console.prepare_stdout()
    with console.doing(f"loading {file.path.name}", quiet=quiet):
        engine = load_engine(file, runner, choice.scheduling, adapters=choice.adapters)

    def now() -> str:
        if engine.stats().compiling:
            return console.COMPILING
        return "answering" if as_json else "reading the prompt"

    waiting = console.doing(now, quiet=quiet)
    with engine, waiting as begun:

        def show(piece: str) -> None:
            begun()
            console.emit(piece)

        answer = ask(engine, text, style, params, None if as_json else show, adapter)
        draft = engine.stats().draft
    if as_json:
        console.emit_json(result_json(answer.completion, file, adapter))
    if answer.failure is not None:
        console.note(f"ingot: {answer.failure}", style="red")
        raise typer.Exit(ExitCode.MODEL)
    if not quiet:
        beside = [one for one in (adapter, draft and f"the draft {draft}") if one]
        used = f"{file.path.name} with {' and '.join(beside)}" if beside else file.path.name
        console.note(f"{figures_line(answer.completion)} · {used} on {file.runtime}")
    if answer.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
