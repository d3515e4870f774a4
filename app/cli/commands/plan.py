"""`ingot plan`: measure what a folder's files can do here, choose, and say why."""

from typing import Annotated, Literal

import typer

from app import console
from app.cli.groups import with_groups
from app.cli.options import ModelArgument, ObjectFlag
from app.options import ModelOptions, PlanOptions


@with_groups
def plan(
    model: ModelArgument,
    options: ModelOptions,
    settings: PlanOptions,
    workload: Annotated[
        Literal["chat", "batch"], typer.Option(help="One conversation, or a file of rows.")
    ] = "chat",
    slots: Annotated[
        int | None, typer.Option(min=1, max=256, help="Rows that run together.")
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Tokens that a row's KV cache holds already, where speeds are compared; by default"
            " 2048 for chat and 512 for batch, or what the context has room for.",
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Measure again, even if a result is remembered.")
    ] = False,
    as_json: ObjectFlag = False,
) -> None:
    """Choose file and settings by short measured trials, and remember them for this machine.

    Exits 4 if nothing fits into memory.
    """
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
    chosen = known or make_plan(files.models, task, console.note)
    if known is None:
        save_plan(files.models, task, chosen)
    note_context(options, next(one for one in files.models if str(one.path) == chosen.path))
    if as_json:
        shown = as_object(chosen, files, task, remembered=known is not None)
        console.emit_json(shown, indent=2)
    else:
        console.emit(as_text(chosen, files, task, remembered=known is not None))
