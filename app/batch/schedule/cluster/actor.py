"""Runs on a node of the cluster: an engine in its own worker process, behind asynchronous calls."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from app.models.library import load_engine
from runtimes.engine.metrics import EngineStats
from runtimes.errors import IngotError, ModelError
from runtimes.machine.cpu import available_cores
from runtimes.models.modelfile import ModelFile, fingerprint
from runtimes.models.registry import read_model
from runtimes.request import Completion, Request
from runtimes.settings import RunnerSettings, SchedulerSettings
from runtimes.worker.engine import WorkerEngine
from runtimes.worker.wire import portable


@dataclass(frozen=True, slots=True)
class Order:
    """What an actor loads."""

    path: str
    fingerprint: str  # of the file that the job was begun with
    version: str
    settings: RunnerSettings
    scheduling: SchedulerSettings
    cpus: int  # processors that the actor was given


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """What an actor has loaded, and on which node."""

    node: str
    model: ModelFile
    context: int
    slots: int
    vocab_size: int
    stats: EngineStats


class EngineActor:
    """Made into a Ray actor by ``app.batch.schedule.cluster.pool``. Its calls run side by side;
    what they raise is returned."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._engine: WorkerEngine  # once it is loaded

    async def load(self) -> LoadedEngine | IngotError:
        """Load the model, once."""
        loaded: LoadedEngine | IngotError = await _answer(self._load)
        return loaded

    async def call(self, method: str, *arguments: Any) -> Any:
        """What a method of the engine returns."""
        return await _answer(lambda: getattr(self._engine, method)(*arguments))

    async def ask(self, request: Request) -> Completion | IngotError:
        """Submit a request and wait for its end."""
        try:
            return await self._engine.submit(request)
        except IngotError as error:
            return portable(error)

    async def cancel(self, request_id: str) -> None:
        """End a request."""
        self._engine.cancel(request_id)

    def _load(self) -> LoadedEngine:
        import ray

        order, node = self._order, ray.util.get_node_ip_address()
        try:
            _check(order)
            threads = min(order.settings.threads or order.cpus, order.cpus, available_cores())
            settings = replace(order.settings, threads=max(1, threads))
            engine = load_engine(read_model(Path(order.path)), settings, order.scheduling)
        except IngotError as error:
            raise type(error)(f"node {node}: {error}") from error
        self._engine = engine
        sizes = engine.context, engine.slots, engine.vocab_size
        return LoadedEngine(node, engine.model, *sizes, engine.stats())


def _check(order: Order) -> None:
    """Raises ModelError unless this node has the job's Ingot and model."""
    here = version("ingot")
    if here != order.version:
        raise ModelError(f"Ingot {here} is installed; the job runs {order.version}")
    if not Path(order.path).exists():
        raise ModelError(f"there is no {order.path}; every node needs the model at that path")
    if fingerprint(read_model(Path(order.path))) != order.fingerprint:
        raise ModelError(f"{order.path} is another model than the job's; copy the job's there")


async def _answer(call: Callable[[], Any]) -> Any:
    """What ``call`` returns, without keeping other calls waiting, or the problem that it raised."""
    try:
        return await asyncio.to_thread(call)
    except IngotError as error:
        return portable(error)
