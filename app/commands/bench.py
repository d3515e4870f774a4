"""`ingot bench`: how fast model files are here, as ratios measured in one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.options import ModelOptions, with_groups

if TYPE_CHECKING:
    from app.bench.speed import FileSpeed


@with_groups
def bench(
    options: ModelOptions,
    model: Annotated[
        str | None,
        typer.Argument(help="A folder that `quantize` wrote, a .gguf file or an ONNX folder."),
    ] = None,
    random: Annotated[
        str | None,
        typer.Option(
            metavar="SHAPE",
            help="Instead of MODEL: a model of random weights, made once, e.g. qwen2-0.5b.",
        ),
    ] = None,
    batch_sizes: Annotated[
        str, typer.Option(help="Rows that decode together, separated by commas.")
    ] = "1,16",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the timed prefill.")] = 128,
    decode_tokens: Annotated[int, typer.Option(min=2, help="Tokens a row decodes.")] = 32,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each; medians are shown.")] = 5,
    kernels: Annotated[
        bool,
        typer.Option(
            "--kernels", help="Also compare llama.cpp's fast kernels with its safe ones (prefill)."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Figures as JSON on stdout.")] = False,
) -> None:
    """Measure prefill and decode speed of a model's files.

    Every file in the folder, or the one that --recipe or --file names; run it on a quiet machine.
    """
    from app.bench.speed import bench_file, table
    from app.console import emit, note
    from runtimes.measure import Workload

    rows = _rows(batch_sizes)
    results: list[FileSpeed] = []
    for path in _files(model, random, options):
        note(f"measuring {path.name}")
        work = Workload(rows, prompt_tokens, decode_tokens)
        results.append(
            bench_file(path, work, repeats=repeats, threads=options.threads, kernels=kernels)
        )
    if as_json:
        emit(json.dumps([result.to_json() for result in results], indent=2) + "\n")
        return
    emit(_aligned(table(results, rows)))
    for result in results:
        if result.fast_over_safe is not None:
            emit(
                f"{result.name}: prefill with the fast kernels is {result.fast_over_safe:.2f}x "
                "that with the safe ones\n"
            )


def _rows(text: str) -> tuple[int, ...]:
    try:
        rows = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        rows = ()
    if not rows or rows[0] < 1 or rows[-1] > 256:
        raise typer.BadParameter(
            "numbers from 1 to 256, such as 1,8,16", param_hint="--batch-sizes"
        )
    return rows


def _files(model: str | None, random: str | None, options: ModelOptions) -> list[Path]:
    from quantize.manifest import NAME, entry_path, load_manifest
    from quantize.resolve import resolve

    if (model is None) == (random is None):
        raise typer.BadParameter("name a MODEL, or a shape with --random", param_hint="MODEL")
    if random is not None:
        from app.bench.synthetic import ensure_built

        model = str(ensure_built(random))
    folder = Path(str(model))
    if options.recipe or options.file or not (folder / NAME).is_file():
        return [resolve(str(model), recipe=options.recipe, file=options.file)]
    return [entry_path(folder, entry) for entry in load_manifest(folder).files]


def _aligned(lines: list[list[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    out = []
    for line in lines:
        cells = [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        out.append("  ".join(cells).rstrip())
    return "\n".join(out) + "\n"
