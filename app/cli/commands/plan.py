"""`ingot plan`: measure what a folder's files can do here, choose, and say why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from app import console
from app.cli.groups import with_groups
from app.cli.options import ModelArgument, ModelGroup, PlanGroup

if TYPE_CHECKING:
    from app.models.planning import PlanFiles
    from runtimes.planner.candidates import Task
    from runtimes.planner.plan import Plan


@with_groups
def plan(
    model: ModelArgument,
    options: ModelGroup,
    settings: PlanGroup,
    workload: Annotated[
        Literal["chat", "batch"], typer.Option(help="One conversation, or a file of rows.")
    ] = "chat",
    slots: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Rows that run together."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Measure again, even if a result is remembered.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Choose file and settings by short measured trials, and remember them for this machine.

    Exits 4 if nothing fits into memory.
    """
    import json

    from app.models.planning import note_context, overrides, plan_files, task_for
    from app.models.plantext import as_object, as_text

    files = plan_files(model, options, settings.bits)
    task = task_for(workload, settings.profile, overrides(options, settings, slots))
    chosen, remembered = _plan(files, task, again=again)
    note_context(options, next(one for one in files.models if str(one.path) == chosen.path))
    if as_json:
        shown = as_object(chosen, files, task, remembered=remembered)
        console.emit(json.dumps(shown, indent=2, ensure_ascii=False) + "\n")
    else:
        console.emit(as_text(chosen, files, task, remembered=remembered))


def _plan(files: PlanFiles, task: Task, *, again: bool) -> tuple[Plan, bool]:
    """The plan, and whether it was there already."""
    from runtimes.planner.known import load_plan, save_plan
    from runtimes.planner.search import make_plan

    known = None if again else load_plan(files.models, task)
    if known is not None:
        return known, True
    made = make_plan(files.models, task, console.note)
    save_plan(files.models, task, made)
    return made, False
