"""The engines of a job, loaded: on this machine, or on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.batch.plan import Plan
from app.batch.schedule.engines import load_engines, require_room, seats
from app.batch.schedule.lane import Crew, Lane
from app.batch.schedule.slots import slots_for
from runtimes.api import EngineApi


def load_crew(plan: Plan, rows: int) -> Crew:
    """The engines that the plan asks for, for so many rows.

    Raises RequestError, ModelError, RuntimeMissingError or OutOfMemoryError.
    """
    if plan.ray is not None:
        from app.batch.schedule.cluster.crew import load_cluster_crew

        return load_cluster_crew(plan, rows)
    choice = plan.choice
    # Nobody waits for a single row: prompts go in as fast as they can.
    scheduling = replace(choice.scheduling, max_stall_s=None)
    seated = seats(plan.engines, choice)
    slots = slots_for(choice, rows, fixed=plan.fixed_slots, engines=len(seated))
    settings = replace(choice.settings, slots=slots)
    require_room(choice, settings, seated)
    engines = load_engines(choice, settings, scheduling, seated)
    lanes = [
        Lane(engine, seat.name, seat.where) for engine, seat in zip(engines, seated, strict=True)
    ]
    return Crew(lanes, lambda: _close(engines))


def _close(engines: Sequence[EngineApi]) -> None:
    for engine in engines:
        engine.close()
