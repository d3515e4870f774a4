"""The engines of a job, loaded: on this machine, or on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial

from app.batch.plan import Plan
from app.batch.schedule.engines import load_engines, require_room, seats
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
    seated = seats(plan.engines, choice)
    slots = slots_for(choice, rows, fixed=plan.spec.slots is not None, engines=len(seated))
    settings = replace(choice.settings, slots=slots)
    require_room(choice, settings, seated)
    engines = load_engines(choice, settings, scheduling, seated)
    try:
        yield [
            PoolEngine(engine, seat.name, partial(str, seat.where))
            for engine, seat in zip(engines, seated, strict=True)
        ]
    finally:
        for engine in engines:
            engine.close()
