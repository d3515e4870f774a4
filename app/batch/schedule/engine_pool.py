"""The engines of a job, loaded: on this machine, or on a cluster."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial

from app.batch.plan import Plan
from app.batch.schedule.engines import load_engines, placements, require_room
from app.batch.schedule.pool_engine import PoolEngine
from app.batch.schedule.slots import slots_for


def engine_pool(plan: Plan, rows: int) -> AbstractContextManager[list[PoolEngine]]:
    """The engines that the plan asks for, for so many rows; they end with the block. Entering it
    raises RequestError, ModelError, RuntimeMissingError or OutOfMemoryError."""
    if plan.spec.running.ray is None:
        return _local_engines(plan, rows)
    from app.batch.schedule.cluster.pool import cluster_engines

    return cluster_engines(plan, rows)


@contextmanager
def _local_engines(plan: Plan, rows: int) -> Iterator[list[PoolEngine]]:
    choice = plan.choice
    # Nobody waits for a single row: prompts go in as fast as they can.
    scheduling = replace(choice.scheduling, max_stall_s=None)
    placed = placements(plan.engines, choice)
    slots = slots_for(choice, rows, fixed=plan.spec.slots is not None, engines=len(placed))
    settings = replace(choice.settings, slots=slots)
    require_room(choice, settings, placed)
    engines = load_engines(choice, settings, scheduling, placed)
    try:
        yield [
            PoolEngine(engine, placement.name, partial(str, placement.where))
            for engine, placement in zip(engines, placed, strict=True)
        ]
    finally:
        for engine in engines:
            engine.close()
