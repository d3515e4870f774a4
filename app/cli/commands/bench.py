"""`ingot bench`: how fast model files are here, as ratios measured in one run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app import console
from app.cli.groups import with_groups
from app.options import MODEL_HELP, ModelOptions
from runtimes.models.registry import read_model
from runtimes.settings import MOST_SLOTS, FlashAttention

if TYPE_CHECKING:
    from app.bench.harness import BenchOptions

_SPEED, _MOST_DEPTH = "speed", 1 << 20
_comparing = partial(typer.Option, rich_help_panel="Comparisons")


@with_groups
def bench(
    options: ModelOptions,
    model: Annotated[str | None, typer.Argument(help=MODEL_HELP)] = None,
    random: Annotated[
        str | None,
        typer.Option(
            metavar="SHAPE",
            help="Instead of MODEL: a model of random weights, made once, e.g. qwen2-0.5b.",
        ),
    ] = None,
    what: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="speed (the default), native, churn, server, genai, prefix, strategies, "
            "reproducible, sampling, device, constrained, speculation, adapters, worker, batch, "
            "memory, plan or tui; repeatable, or separated by commas.",
        ),
    ] = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option(
            help="speed and prefix: rows that decode together, separated by commas; speed has 1,8."
        ),
    ] = None,
    depth: Annotated[
        str | None,
        typer.Option(
            help="Tokens that rows have behind them, separated by commas: of speed, which has"
            " 0,1024,4096, native, server and prefix."
        ),
    ] = None,
    flash_attention: Annotated[
        FlashAttention, typer.Option(help="llama.cpp's kernel of attention, of our side.")
    ] = "auto",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 128,
    decode_tokens: Annotated[int, typer.Option(min=2, help="Tokens a row decodes.")] = 32,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each; medians are shown.")] = 5,
    kernels: Annotated[
        bool,
        typer.Option(
            "--kernels",
            help="speed: also compare llama.cpp's fast kernels with its safe ones (prefill).",
        ),
    ] = False,
    rows: Annotated[int, _comparing(min=1, max=MOST_SLOTS, help="Slots.")] = 16,
    requests: Annotated[
        int,
        _comparing(
            min=1,
            help="Requests of server and batch (without --prompts), prefix, strategies and"
            " reproducible.",
        ),
    ] = 64,
    steps: Annotated[
        int, _comparing(min=1, help="genai: decode steps over which memory is watched.")
    ] = 2000,
    seconds: Annotated[
        float, _comparing(min=5, help="tui: length of each recorded stream.")
    ] = 60.0,
    llama_bench: Annotated[
        Path | None,
        _comparing(
            envvar="INGOT_LLAMA_BENCH", help="native with --depth: the program llama-bench."
        ),
    ] = None,
    batched_bench: Annotated[
        Path | None,
        _comparing(envvar="INGOT_BATCHED_BENCH", help="native: the program llama-batched-bench."),
    ] = None,
    llama_server: Annotated[
        Path | None,
        _comparing(envvar="INGOT_LLAMA_SERVER", help="server and batch: the program llama-server."),
    ] = None,
    prompts: Annotated[
        Path | None,
        _comparing(help="server and batch: prompts, one a line, or .jsonl; random ones without."),
    ] = None,
    draft: Annotated[
        str | None,
        _comparing(metavar="FILE", help="speculation: a draft model, named as MODEL is."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Figures as JSON on stdout.")] = False,
) -> None:
    """Measure prefill and decode speed of a model's files, or compare them with something else.

    Every file in the folder, or the one that --recipe or --file names; run it on a quiet machine.
    docs/benchmarks.md says what each comparison is, and how to build the programs it needs.
    """
    from app.bench.harness import BenchOptions, rounded

    names = _names(what, at_depths=depth is not None)
    work = BenchOptions(
        rows=rows,
        prompt_tokens=prompt_tokens,
        decode_tokens=decode_tokens,
        requests=requests,
        repeats=repeats,
        steps=steps,
        seconds=seconds,
        threads=options.threads,
        flash_attention=flash_attention,
        depths=_numbers(depth, "--depth", 0, _MOST_DEPTH, "0,2048,8192"),
        sizes=_numbers(batch_sizes, "--batch-sizes", 1, MOST_SLOTS, "1,8,16"),
        llama_bench=llama_bench,
        batched_bench=batched_bench,
        llama_server=llama_server,
        prompts=prompts,
        draft=_draft(draft),
    )
    files = _files(model, random, options)
    report: list[dict[str, Any]] = []
    for name in names:
        if name == _SPEED:
            report += _speed(files, work, kernels=kernels, as_json=as_json)
        else:
            report += _compare(name, files, work, as_json=as_json)
    if as_json:
        if names != (_SPEED,):
            report = [{"what": _SPEED, **entry} for entry in report]
        console.emit_json(rounded(report), indent=2)


def _draft(named: str | None) -> Path | None:
    if named is None:
        return None
    from app.models.planning import draft_path

    return draft_path(named)


def _compare(
    name: str, files: list[Path], options: BenchOptions, *, as_json: bool
) -> list[dict[str, Any]]:
    """One benchmark on every file that it is for."""
    from app.bench.suite import BENCHMARKS

    benchmark = BENCHMARKS[name]
    runtime = benchmark.runtime
    fitting = [path for path in files if runtime in (None, read_model(path).runtime)]
    if benchmark.folder:
        if len(files) < 2:
            raise typer.BadParameter(f"{name} compares the files of a folder", param_hint="--what")
        fitting = [files[0].parent]
    if not fitting:
        raise typer.BadParameter(f"{name} needs a file for {runtime}", param_hint="--what")
    report = []
    for path in fitting:
        console.note(f"{name}: measuring {path.name}")
        result = benchmark.run(path, options)
        report.append({"what": name, "file": path.name, **result.figures})
        if not as_json:
            console.emit("\n".join([f"{name}, {path.name}", *result.lines]) + "\n")
    return report


def _speed(
    files: list[Path],
    options: BenchOptions,
    *,
    kernels: bool,
    as_json: bool,
) -> list[dict[str, Any]]:
    """Prefill and decode of every file, as one table."""
    from app.bench.speed import measure_file, speed_report

    measured = []
    for path in files:
        console.note(f"measuring {path.name}")
        measured.append(measure_file(path, options, kernels=kernels))
    report, lines = speed_report(measured)
    if not as_json:
        console.emit("\n".join(lines) + "\n")
    return report


def _names(what: list[str] | None, *, at_depths: bool) -> tuple[str, ...]:
    """The benchmarks asked for, each once; ``at_depths``, which not all can be."""
    if not what:
        return (_SPEED,)
    from app.bench.suite import BENCHMARKS

    names = dict.fromkeys(name.strip() for part in what for name in part.split(","))
    unknown = [name for name in names if name != _SPEED and name not in BENCHMARKS]
    if unknown:
        known = ", ".join((_SPEED, *BENCHMARKS))
        raise typer.BadParameter(f"{unknown[0]!r} is none of: {known}", param_hint="--what")
    flat = [name for name in names if name != _SPEED and BENCHMARKS[name].at_depths is None]
    if at_depths and flat:
        raise typer.BadParameter(f"{flat[0]} is not measured by depth", param_hint="--depth")
    return tuple(names)


def _numbers(
    text: str | None, option: str, least: int, most: int, such: str
) -> tuple[int, ...] | None:
    """What an option lists, each once and the least first; None without it."""
    if text is None:
        return None
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < least or numbers[-1] > most:
        asked = f"numbers from {least} to {most:,}, such as {such}"
        raise typer.BadParameter(asked, param_hint=option)
    return tuple(numbers)


def _files(model: str | None, random: str | None, options: ModelOptions) -> list[Path]:
    from app.models.library import locate
    from quantize.manifest import NAME, entry_path, load_manifest
    from quantize.resolve import resolve

    if (model is None) == (random is None):
        raise typer.BadParameter("name a MODEL, or a shape with --random", param_hint="MODEL")
    if random is not None:
        from app.bench.synthetic import ensure_built

        model = str(ensure_built(random))
    model = locate(str(model))
    folder = Path(model)
    if options.recipe or options.file or not (folder / NAME).is_file():
        return [resolve(model, recipe=options.recipe, file=options.file)]
    return [entry_path(folder, entry) for entry in load_manifest(folder).files]
