"""`ingot plan`: measure what a folder's files can do here, choose, and say why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from app.options import ModelOptions, with_groups

if TYPE_CHECKING:
    from app.planning import PlanFiles
    from runtimes.plan import Plan
    from runtimes.planner.candidates import Task

_FIXED = "Fixed instead of measured"


@with_groups
def plan(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A folder that `quantize` wrote, a .gguf file or an ONNX folder."
        ),
    ],
    options: ModelOptions,
    workload: Annotated[
        Literal["chat", "batch"], typer.Option(help="One conversation, or a file of rows.")
    ] = "chat",
    profile: Annotated[
        Literal["latency", "balanced", "throughput", "memory"],
        typer.Option(help="What matters most."),
    ] = "balanced",
    bits: Annotated[
        Literal["4", "8", "any"] | None,
        typer.Option(help="Files of this width; 4 where there are any. Widths differ in accuracy."),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Rows that run together.", rich_help_panel=_FIXED),
    ] = None,
    kv_type: Annotated[
        Literal["f16", "q8_0", "q4_0"] | None,
        typer.Option(help="llama.cpp's keys and values.", rich_help_panel=_FIXED),
    ] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Most tokens of a step.", rich_help_panel=_FIXED),
    ] = None,
    unified_kv: Annotated[
        bool | None,
        typer.Option(
            "--unified-kv/--split-kv",
            help="llama.cpp: one cache for all slots, or one for each.",
            rich_help_panel=_FIXED,
        ),
    ] = None,
    gpu_layers: Annotated[
        int | None,
        typer.Option(min=-1, help="llama.cpp: layers on the GPU.", rich_help_panel=_FIXED),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Measure, whatever is remembered.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Choose file and settings by short measured trials, and remember them for this machine.

    Exits 4 when nothing fits the memory.
    """
    import json

    from app import console
    from app.planning import plan_files, task_for
    from app.plantext import as_object, as_text
    from runtimes.planner.candidates import Overrides

    files = plan_files(model, options, bits)
    overrides = Overrides(
        slots, options.context, options.threads, batch_tokens, kv_type, unified_kv, gpu_layers
    )
    task = task_for(workload, profile, overrides)
    chosen, remembered = _plan(files, task, again=again)
    if as_json:
        shown = as_object(chosen, files, task, remembered=remembered)
        console.emit(json.dumps(shown, indent=2, ensure_ascii=False) + "\n")
    else:
        console.emit(as_text(chosen, files, task, remembered=remembered))


def _plan(files: PlanFiles, task: Task, *, again: bool) -> tuple[Plan, bool]:
    """The plan, and whether it was there already."""
    from app import console
    from runtimes.planner.known import recall_plan, remember_plan
    from runtimes.planner.search import make_plan

    known = None if again else recall_plan(files.models, task)
    if known is not None:
        return known, True
    made = make_plan(files.models, task, console.note)
    remember_plan(files.models, task, made)
    return made, False
