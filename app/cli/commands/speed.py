"""`ingot plan`: measure what a folder's files can do here, choose, and say why. `ingot bench`: how
fast model files are here, as ratios measured in one run."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from typer import BadParameter

from app.bench.options import BenchOptions
from app.cli.options import AS_OBJECT, MODEL, with_groups
from app.console import emit, emit_json, note
from app.options import MODEL_HELP, ModelOptions, PlanOptions, argument, option, parts
from runtimes.models.registry import read_model
from runtimes.settings import MOST_SLOTS

_BUDGET = "One budget, by what was measured (without --context the longest that both allow)"


@with_groups
def plan(
    model: str = MODEL,
    *,
    options: ModelOptions,
    settings: PlanOptions,
    workload: Literal["chat", "batch"] = option("chat", "One conversation, or a file of rows."),
    slots: int | None = option(None, "Rows that run together.", min=1, max=256),
    depth: int | None = option(
        None,
        "Tokens that a row's KV cache holds already, where speeds are compared; by default 2048 for"
        " chat and 512 for batch, or what the context has room for.",
        min=0,
    ),
    again: bool = option(False, "Measure again, even if a result is remembered."),
    fits: str | None = option(
        None,
        "Memory that all of it takes at most, such as 8GB.",
        metavar="SIZE",
        rich_help_panel=_BUDGET,
    ),
    max_kl: str | None = option(
        None, "KL divergence from the original at most.", metavar="NATS", rich_help_panel=_BUDGET
    ),
    as_json: bool = AS_OBJECT,
) -> None:
    """Choose file and settings by short measured trials, and remember them for this machine.

    With --fits or --max-kl: choose file, types of keys and values and context
    by what `quantize` and `ingot measure` have measured, without trials.

    Exits 4 if nothing fits into memory, 1 if nothing keeps --max-kl.
    """
    if fits is not None or max_kl is not None:
        if slots is not None:
            raise BadParameter("--fits and --max-kl are for one chat", param_hint="--slots")
        from app.models import budget

        found = budget.choose_within(model, options, settings, fits, max_kl)
        if as_json:
            emit_json(budget.as_object(*found), indent=2)
        else:
            emit(budget.as_text(*found))
        return
    from app.models.advice import learned_plan
    from app.models.planning import (
        as_object,
        as_text,
        check_depth,
        note_context,
        overrides,
        plan_files,
        task_for,
    )
    from runtimes.machine.selftest import ensure
    from runtimes.planner.known import load_plan, save_plan
    from runtimes.planner.search import make_plan

    files = plan_files(model, options, settings.bits)
    for runtime in {one.runtime for one in files.models}:
        ensure(runtime, again=again)  # which lists what there is to plan for
    task = task_for(workload, settings.profile, overrides(options, settings, slots), depth)
    check_depth(depth, files.models, task)
    known = None if again else load_plan(files.models, task)
    made = known or make_plan(files.models, task, note)
    chosen = learned_plan(made, files.models, task)
    if known is None or (chosen.path, chosen.settings) != (made.path, made.settings):
        save_plan(files.models, task, chosen)
    note_context(options, files.chosen(chosen))
    if as_json:
        shown = as_object(chosen, files, task, remembered=known is not None)
        emit_json(shown, indent=2)
    else:
        emit(as_text(chosen, files, task, remembered=known is not None))


_SPEED, _MOST_DEPTH = "speed", 1 << 20


@with_groups
def bench(
    options: ModelOptions,
    model: str | None = argument(MODEL_HELP, None),
    random: str | None = option(
        None,
        "Instead of MODEL: a model of random weights, made once, e.g. qwen2-0.5b.",
        metavar="SHAPE",
    ),
    *,
    asked: BenchOptions,
    as_json: bool = option(False, "Figures as JSON on stdout.", "--json"),
) -> None:
    """Measure prefill and decode speed of a model's files, or compare them with something else.

    Every file in the folder, or the one that --recipe or --file names; run it on a quiet machine.
    docs/benchmarks.md says what each comparison is, and how to build the programs it needs.
    """
    from app.bench.frame import rounded
    from app.models.planning import draft_path

    names = _names(asked)
    work = replace(
        asked,
        threads=options.threads,
        depths=_numbers(asked.depth, "--depth", 0, _MOST_DEPTH, "0,2048,8192"),
        sizes=_numbers(asked.batch_sizes, "--batch-sizes", 1, MOST_SLOTS, "1,8,16"),
        kv_types=tuple(parts(*asked.kv_type or ())) or ("f16",),
        draft=None if asked.draft is None else str(draft_path(asked.draft)),
    )
    if asked.sweep:
        _sweep(model, random, options, work, as_json=as_json)
        return
    files = _files(model, random, options)
    report: list[dict[str, Any]] = []
    for name in names:
        found = _speed(files, work) if name == _SPEED else _compare(name, files, work)
        for entries, lines in found:
            report += entries if names == (_SPEED,) else [{"what": name, **one} for one in entries]
            if not as_json:
                emit("\n".join(lines) + "\n")
    if as_json:
        emit_json(rounded(report), indent=2)


def _sweep(
    model: str | None,
    random: str | None,
    options: ModelOptions,
    asked: BenchOptions,
    *,
    as_json: bool,
) -> None:
    """Plan, measure, show and write; what an interrupted sweep has measured is kept."""
    from app.bench.row_sweep import plan_sweep, run_sweep
    from app.bench.sweep_report import SUFFIXES, as_object, write
    from app.sweeps import text
    from quantize.report.picture import check_output

    for path in asked.output or ():
        check_output(path, SUFFIXES)
    work = replace(asked, lengths=_lengths(asked.length))
    plan, left_out = plan_sweep(_files(model, random, options), work)
    for line in left_out:
        note(line)
    try:
        sweep = run_sweep(plan, note)
    except KeyboardInterrupt:
        note("ended; the same command goes on from here")
        raise
    for path in asked.output or ():
        write(sweep, path)
    if as_json:
        emit_json(as_object(sweep), indent=2)
    else:
        emit("\n".join(text(sweep)) + "\n")


def _lengths(values: list[str] | None) -> tuple[tuple[int, int], ...] | None:
    """Pairs such as 16+128; None without the option."""
    found = []
    for part in parts(*values or ()):
        try:
            prompt, answer = map(int, part.split("+"))
        except ValueError:
            prompt, answer = 0, 0
        if not (0 < prompt <= _MOST_DEPTH and 1 < answer <= _MOST_DEPTH):
            raise BadParameter(
                f"{part!r} is not like 16+128, prompt and answer", param_hint="--lengths"
            )
        found.append((prompt, answer))
    return tuple(dict.fromkeys(found)) or None


_Found = tuple[list[dict[str, Any]], list[str]]  # entries for programs, lines for people


def _compare(name: str, files: list[Path], options: BenchOptions) -> Iterator[_Found]:
    """One benchmark on every file that it is for."""
    from app.bench.suite import BENCHMARKS

    benchmark = BENCHMARKS[name]
    runtime = benchmark.runtime
    fitting = [path for path in files if runtime in (None, read_model(path).runtime)]
    if benchmark.folder:
        if len(files) < 2:
            raise BadParameter(f"{name} compares the files of a folder", param_hint="--what")
        fitting = [files[0].parent]
    if not fitting:
        raise BadParameter(f"{name} needs a file for {runtime}", param_hint="--what")
    for path in fitting:
        note(f"{name}: measuring {path.name}")
        result = benchmark.run(path, options)
        yield [{"file": path.name, **result.figures}], [f"{name}, {path.name}", *result.lines]


def _speed(files: list[Path], options: BenchOptions) -> Iterator[_Found]:
    """Prefill and decode of every file, as one table."""
    from app.bench.speed import FileSpeed, measure_file, speed_report

    measured: list[FileSpeed] = []
    for path in files:
        note(f"measuring {path.name}")
        measured.extend(measure_file(path, options))
    yield speed_report(measured)


def _names(asked: BenchOptions) -> tuple[str, ...]:
    """The benchmarks asked for, each once. With --depth, all must be able to measure there."""
    if asked.sweep and (asked.what or asked.depth is not None):
        raise BadParameter("it goes with neither --what nor --depth", param_hint="--sweep")
    names = parts(*asked.what or ())
    if not names:
        return (_SPEED,)
    from app.bench.suite import BENCHMARKS

    others = [name for name in names if name != _SPEED]
    if unknown := [name for name in others if name not in BENCHMARKS]:
        known = ", ".join((_SPEED, *BENCHMARKS))
        raise BadParameter(f"{unknown[0]!r} is none of: {known}", param_hint="--what")
    if asked.kv_type and others:
        raise BadParameter(f"{others[0]} is not measured by type", param_hint="--kv-types")
    flat = [name for name in others if BENCHMARKS[name].at_depths is None]
    if asked.depth is not None and flat:
        raise BadParameter(f"{flat[0]} is not measured by depth", param_hint="--depth")
    return tuple(names)


def _numbers(
    text: str | None, option: str, least: int, most: int, such: str
) -> tuple[int, ...] | None:
    """Numbers that an option lists, each once and the least first; None without it."""
    if text is None:
        return None
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < least or numbers[-1] > most:
        wanted = f"numbers from {least} to {most:,}, such as {such}"
        raise BadParameter(wanted, param_hint=option)
    return tuple(numbers)


def _files(model: str | None, random: str | None, options: ModelOptions) -> list[Path]:
    from app.models.library import model_paths

    if (model is None) == (random is None):
        raise BadParameter("name a MODEL, or a shape with --random", param_hint="MODEL")
    if options.rope:
        raise BadParameter("benchmarks run at the model's own context", param_hint="--rope")
    if random is not None:
        from app.bench.suite import random_model

        model = str(random_model(random))
    return model_paths(str(model), options)
