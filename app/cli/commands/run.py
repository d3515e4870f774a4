"""`ingot run`: one prompt from the shell, its answer on stdout as it comes. `ingot compare`: one
prompt, or a file of them, to several files; where their answers part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from app.cli.options import AS_OBJECT, MODEL, REPRODUCIBLE, SYSTEM, with_groups
from app.console import (
    COMPILING,
    doing,
    emit,
    emit_json,
    emit_thought,
    note,
    prepare_stdout,
    shows_thoughts,
)
from app.exitcodes import ExitCode
from app.options import (
    AdapterOptions,
    ConstraintOptions,
    ModelOptions,
    PlanOptions,
    SamplingOptions,
    ToolOptions,
    argument,
    option,
    parts,
)
from runtimes.errors import RequestError
from runtimes.models.registry import backend_of
from runtimes.settings import MOST_SLOTS

if TYPE_CHECKING:
    from app.compare.answers import Contender
    from app.compare.prompts import PromptsJob
    from app.oneshot import ToolUse


@with_groups
def run(
    model: str = MODEL,
    prompt: str | None = argument(
        "Text that is piped in follows it after a blank line.", None, metavar="PROMPT"
    ),
    *,
    sampling: SamplingOptions,
    constraints: ConstraintOptions,
    tools: ToolOptions,
    options: ModelOptions,
    adapters: AdapterOptions,
    settings: PlanOptions,
    system: str | None = SYSTEM,
    raw: bool = option(False, "Send the text as it is, without the chat template."),
    suffix: str | None = option(
        None, "Fill in what stands between the prompt and TEXT (models for code).", metavar="TEXT"
    ),
    context_shift: bool = option(
        False,
        "When the context is full, drop its oldest half and continue (llama.cpp). Without it the"
        " answer ends there.",
    ),
    reproducible: bool = REPRODUCIBLE,
    as_json: bool = option(False, "One JSON object on stdout instead of the text.", "--json"),
    quiet: bool = option(False, "No figures on stderr.", "--quiet", "-q"),
) -> None:
    """Answer one prompt; the figures go to stderr."""
    from app.figures import figures_line
    from app.models.library import load_engine
    from app.models.planning import choose
    from app.oneshot import OneShot, result_json
    from app.prompts import PromptStyle, clean_argument, read_prompt
    from runtimes.thinking import choice_of

    params = replace(sampling.params(), constraint=constraints.constraint())
    raw = raw or suffix is not None
    style = PromptStyle(clean_argument(system, note), raw)
    if raw and params.thinking is not None:
        raise RequestError("--thinking needs the chat template, which --raw leaves out")
    if raw and tools.tools:
        raise RequestError("--tools needs the chat template, which --raw leaves out")
    if tools.tools and params.constraint is not None and params.constraint.kind != "json_schema":
        raise RequestError(
            "--tools goes with --json-schema; --regex, --choice and --grammar do not"
        )
    text = read_prompt(prompt, "ingot run MODEL", note)
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
    prepare_stdout()
    with _tool_use(tools, quiet=quiet) as use:
        with doing(f"loading {file.path.name}", quiet=quiet):
            engine = load_engine(file, runner, choice.scheduling, adapters=choice.adapters)

        def now() -> str:
            if engine.stats().compiling:
                return COMPILING
            return "answering" if as_json else "reading the prompt"

        waiting = doing(now, quiet=quiet)
        with engine, waiting as begun:

            def show(piece: str) -> None:
                if not as_json:
                    begun()
                    emit(piece)

            def think(piece: str) -> None:
                if shows_thoughts() and not (quiet or as_json):
                    begun()
                    emit_thought(piece)

            behind = clean_argument(suffix, note)
            asked = OneShot(engine, style, params, adapter, show, think, use)
            answer = asked.ask(text, behind)
            if unknown := choice_of(file.chat_template, params.thinking).unknown:
                note(f"--thinking {params.thinking}: {unknown}")
            draft = engine.stats().draft
    if as_json:
        emit_json(result_json(answer, file, adapter))
    if answer.failure is not None:
        note(f"ingot: {answer.failure}", style="red")
        raise typer.Exit(ExitCode.MODEL)
    if not quiet:
        beside = [one for one in (adapter, draft and f"the draft {draft}") if one]
        used = f"{file.path.name} with {' and '.join(beside)}" if beside else file.path.name
        note(f"{figures_line(answer.completion)} · {used} on {file.runtime}")
    if answer.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)


@contextmanager
def _tool_use(options: ToolOptions, *, quiet: bool) -> Iterator[ToolUse | None]:
    """The tools of one prompt, whose servers run as long as the block. Raises RequestError and
    ToolServerError."""
    names, allowed = parts(options.tools), parts(options.allow_tools)
    if not names:
        if allowed or options.require_tool:
            raise RequestError("--allow-tools and --require-tool go with --tools NAME")
        yield None
        return
    from app.config.files import load
    from app.oneshot import ToolUse
    from app.tools.servers import ToolServerError, ToolServers

    servers = ToolServers(load().config.mcp)
    servers.require(names)
    try:
        with doing(f"starting {', '.join(names)}", quiet=quiet):
            problems = servers.open(names)
        if problems:
            raise ToolServerError("; ".join(problems.values()))
        known = {"all", *servers.names, *servers.functions}
        if unknown := [name for name in allowed if name not in known]:
            there = ", ".join(sorted(known))
            raise RequestError(f"--allow-tools: there is no tool {unknown[0]!r}; there are {there}")
        yield ToolUse(servers, names, options.require_tool, set(allowed), quiet)
    finally:
        servers.close()


_FILE = {"rich_help_panel": "A file of prompts"}


@with_groups
def compare(
    model: str = MODEL,
    *,
    sampling: SamplingOptions,
    words: list[str] | None = argument(
        "What is asked; text that is piped in follows it after a blank line. With --prompts:"
        " further models.",
        None,
        metavar="PROMPT|MODEL",
    ),
    recipe: list[str] | None = option(
        None,
        "A built file of MODEL, such as q8_0; repeatable. The first is what the others are compared"
        " with. Default: all files of MODEL.",
    ),
    also: list[str] | None = option(None, "Another model or file; repeatable.", metavar="MODEL"),
    system: str | None = SYSTEM,
    together: bool = option(False, "Ask all at once: done sooner, but each is slower."),
    as_json: bool = AS_OBJECT,
    prompts: Path | None = option(
        None,
        "Ask all prompts of FILE, which is read as by `ingot batch`. A field `expected` or `answer`"
        " says which answer is right.",
        metavar="FILE",
        **_FILE,
    ),
    output: Path | None = option(
        None,
        "Write all of it there: Markdown or JSON, by the suffix .md or .json.",
        metavar="FILE",
        **_FILE,
    ),
    field: str | None = option(None, "Field with the prompt.", **_FILE),
    limit: int | None = option(None, "Only the first N prompts.", min=1, metavar="N", **_FILE),
    slots: int | None = option(
        None, "Answers that run together; 16 if memory allows.", min=1, max=MOST_SLOTS, **_FILE
    ),
    reproducible: bool = option(False, "What runs beside a row decides nothing; slower.", **_FILE),
    fresh: bool = option(False, "Drop the answers of earlier runs.", **_FILE),
    quiet: bool = option(False, "No progress on stderr.", "--quiet", "-q", **_FILE),
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

    words = words or []
    system = clean_argument(system, note)
    if prompts is None:
        given = {"--output": output, "--field": field, "--limit": limit, "--slots": slots}
        given |= {"--fresh": fresh, "--quiet": quiet, "--reproducible": reproducible}
        if wrong := [name for name, value in given.items() if value]:
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
    rows = check_prompts(prompts)
    job = PromptsJob(entries, rows, sampling, system, field, limit, slots, reproducible)
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
    from app.openai.prepare import conversation
    from app.prompts import PromptStyle, read_prompt

    params = sampling.params()
    text = read_prompt(prompt, "ingot compare MODEL", note)
    messages = conversation(PromptStyle(system), [{"role": "user", "content": text}])
    comparison = Comparison(contenders, Question(tuple(messages), params), together=together)
    prepare_stdout()
    comparison.start()
    report, interrupted = None, False
    while report is None:
        try:
            if comparison.join(0.1):
                report = comparison.poll()
        except KeyboardInterrupt:
            interrupted = True
            comparison.stop()
    if as_json:
        emit_json(as_object(report))
    else:
        for side in report.sides:
            if side.thought and shows_thoughts():
                emit_thought(f"== {side.label}, thinking\n{side.thought}\n\n")
            if side.text:
                emit(f"== {side.label}\n{side.text.rstrip()}\n\n")
        for line in lines(report):
            note(line)
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
    from app.compare.report import print_tables, report_of, results_json, write_results

    labels = labels_of(job.entries)

    def begin(number: int) -> None:
        if not quiet:
            note(f"file {number + 1} of {len(labels)}: {labels[number]}")

    prepare_stdout()
    codes = run_prompts(job, lambda spec: run_batch(spec, quiet=quiet), begin, fresh=fresh)
    if codes[-1] == ExitCode.INTERRUPTED:
        return ExitCode.INTERRUPTED
    results = report_of(job)
    if output is not None:
        write_results(results, output)
    if as_json:
        emit(results_json(results))
    elif output is None:
        print_tables(results)
    elif not quiet:
        note(f"written: {output}")
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
