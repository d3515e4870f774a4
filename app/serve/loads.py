"""Leases of models for the event loop: requests wait for a model that loads without threads."""

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, field

from anyio import CapacityLimiter, to_thread

from app.serve.errors import HttpError
from app.serve.pool import ModelPool, Served


@dataclass(slots=True, eq=False)
class _Load:
    """One load, and how many requests wait for it. ``held`` has its lease until all of them have
    taken theirs."""

    ready: "asyncio.Future[None]"
    held: ExitStack = field(default_factory=ExitStack)
    waiting: int = 0


class Loads:
    """Loads of a pool's models, each on one thread however many requests wait for it."""

    def __init__(self, pool: ModelPool) -> None:
        self._pool = pool
        self._coming: dict[str, _Load] = {}
        self._works: set[asyncio.Task[None]] = set()
        self._limiter: CapacityLimiter | None = None

    def take(self, name: str | None, held: ExitStack) -> Served | None:
        """A lease of the model, which ends with ``held``; None where it is not loaded. Raises as
        `ModelPool.lease`."""
        return held.enter_context(self._pool.lease_loaded(name))

    async def wait(self, name: str | None, held: ExitStack) -> Served:
        """The same, once the model is loaded. Raises as `ModelPool.lease`."""
        while True:
            load = self._load(self._pool.model_of(name))
            load.waiting += 1
            try:
                await asyncio.shield(load.ready)
                if (served := self.take(name, held)) is not None:
                    return served
            finally:
                load.waiting -= 1
                _let_go(load)

    def end(self) -> None:
        """Nobody waits any more: the server ends."""
        for load in self._coming.values():
            if not load.ready.done():
                said = "the server is shutting down"
                load.ready.set_exception(HttpError(503, "shutting_down", said, retry_s=1))
                load.ready.exception()  # those who waited may have gone

    def _load(self, model: str) -> _Load:
        load = self._coming.get(model)
        if load is None:
            load = self._coming[model] = _Load(asyncio.get_running_loop().create_future())
            work = asyncio.ensure_future(self._run(model, load))
            self._works.add(work)
            work.add_done_callback(self._works.discard)
        return load

    async def _run(self, model: str, load: _Load) -> None:
        if self._limiter is None:  # the pool loads one after the other: as many wait as there are
            self._limiter = CapacityLimiter(len(self._pool.names()))
        try:
            lease = self._pool.lease(model)
            await to_thread.run_sync(load.held.enter_context, lease, limiter=self._limiter)
            if not load.ready.done():
                load.ready.set_result(None)
        except Exception as error:
            if not load.ready.done():
                load.ready.set_exception(error)
                load.ready.exception()  # those who waited may have gone
        finally:
            load.ready.cancel()
            del self._coming[model]
            _let_go(load)


def _let_go(load: _Load) -> None:
    if load.ready.done() and not load.waiting:
        load.held.close()
