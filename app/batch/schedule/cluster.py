"""Engines of a job on a Ray cluster: an actor on a node (``EngineActor``), the engine that a job
asks (``RayEngine``), and the pool of them.

Plain Ray actors, not Ray Data's ``map_batches`` over a pool of them: there a result is handed over
with the whole block that it belongs to, and a block is computed again, as often as it takes, when
its actor dies. A job needs each answer when it is there (the journal has it then, whatever dies
next, and its slot is refilled), and has to count what a row has killed. So the job asks actors for
rows exactly as it asks engines on this machine, and everything that holds there holds here.
"""

import asyncio
import importlib.util
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from app.batch.schedule.engines import JobPlan, slots_for
from app.batch.schedule.pool_engine import PoolEngine
from app.models.library import load_engine
from runtimes.api import T, TextEncoder
from runtimes.engine.metrics import EngineStats
from runtimes.errors import IngotError, ModelError, RequestError, WorkerError
from runtimes.grammars import check_request
from runtimes.machine.cpu import available_cores
from runtimes.models.modelfile import ModelFile, fingerprint
from runtimes.models.registry import backend_of, read_model
from runtimes.request import Completion, FinishReason, Request
from runtimes.settings import RunnerSettings, SchedulerSettings
from runtimes.stream import Stream
from runtimes.untrusted import JsonObject
from runtimes.worker.engine import WorkerEngine
from runtimes.worker.supervisor import InFlightRequest
from runtimes.worker.wire import portable

log = logging.getLogger(__name__)

_CALLS = 4096  # that an actor may have at the same time
_PATIENCE_S = 10.0
_CONNECT_S = 5.0
_STATS_S = 0.2  # how long figures are waited for before the last ones have to do


@dataclass(frozen=True, slots=True)
class Order:
    """Model, version and settings that an actor loads."""

    path: str
    fingerprint: str  # of the file that the job was begun with
    version: str
    settings: RunnerSettings
    scheduling: SchedulerSettings
    cpus: int  # processors that the actor was given


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A loaded actor: its node, model and sizes."""

    node: str
    model: ModelFile
    context: int
    slots: int
    vocab_size: int
    stats: EngineStats


class EngineActor:
    """Engine in its own worker process on a node of the cluster. Its calls run side by side; an
    IngotError is returned, not raised."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._engine: WorkerEngine  # once it is loaded

    async def load(self) -> LoadedEngine | IngotError:
        """Load the model, once."""
        loaded: LoadedEngine | IngotError = await _answer(self._load)
        return loaded

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the engine."""
        return await _answer(lambda: getattr(self._engine, method)(*arguments))

    async def ask(self, request: Request) -> Completion | IngotError:
        """Submit a request and wait for its end."""
        try:
            return await self._engine.submit(request)
        except IngotError as error:
            return portable(error)

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
    """Run ``call`` in a thread, so that other calls go on; return its result or its IngotError."""
    try:
        return await asyncio.to_thread(call)
    except IngotError as error:
        return portable(error)


@dataclass(frozen=True, slots=True)
class _Incarnation:
    """An actor that has loaded the model; ``number`` counts those of one engine from 1."""

    number: int
    actor: Any
    loaded: LoadedEngine


class RayEngine(TextEncoder):
    """A ``RequestEngine`` in a Ray actor.

    When the actor dies or its node is lost, every request that it had ends with an error that is
    ``retryable``. The next ``encode`` starts another actor, wherever the cluster has room, and
    waits for it: nothing but ``close`` ends that, since a node may come back at any time. ``pid``
    is the number of the actor in use.
    """

    def __init__(self, name: str, start: Callable[[], Any]) -> None:
        """``start`` makes an actor and returns its handle at once."""
        self.name = name
        self._start = start
        self._lock = threading.Lock()
        self._starting = threading.Lock()  # held while an actor is started
        self._closed = False
        self._coming: Any = None
        self._here: _Incarnation | None = None
        self.model: ModelFile  # of the last actor, as is what follows
        self.context: int
        self.slots: int
        self._loaded: LoadedEngine
        self._stats: EngineStats
        self._asked: Future[Any] | None = None
        self._count = 0
        # Ray calls back on the thread that serves all of its own work: nothing may wait there.
        self._landing = ThreadPoolExecutor(1, f"ingot-{name}")

    @property
    def pid(self) -> int | None:
        """See RequestEngine."""
        here = self._here
        return None if here is None else here.number

    def where(self) -> str:
        """The node of the last actor."""
        return f"node {self._loaded.node}"

    def begin(self) -> Any:
        """Make an actor; return a reference to what ``finish`` takes."""
        with self._lock:
            self._check_open()
            self._coming = self._start()
            return self._coming.load.remote()

    def finish(self, answer: LoadedEngine | IngotError) -> _Incarnation:
        """Take the actor into use, or raise what is wrong with it."""
        loaded: LoadedEngine = _checked(answer)
        with self._lock:
            self._check_open()
            self._count += 1
            here = self._here = _Incarnation(self._count, self._coming, loaded)
            self._coming = None
            self._loaded, self._stats, self._asked = loaded, loaded.stats, None
            self.model, self.context, self.slots = loaded.model, loaded.context, loaded.slots
            return here

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError("the engine is closed")

    def submit(self, request: Request) -> Stream:
        """See RequestEngine. Nothing streams: the completion comes whole."""
        check_request(request, self.context, self._loaded.vocab_size)
        here = self._here
        stream = Stream(request.id, self.cancel)
        in_flight = InFlightRequest(request, stream)
        if here is None:
            in_flight.give_up(FinishReason.ERROR, f"{self.name} is gone", retryable=True)
            return stream
        future = here.actor.ask.remote(request).future()
        future.add_done_callback(
            lambda done: self._landing.submit(self._land, here, in_flight, done)
        )
        return stream

    def cancel(self, request_id: str) -> None:
        """See RequestEngine."""
        if (here := self._here) is not None:
            here.actor.call.remote("cancel", request_id)

    def stats(self) -> EngineStats:
        """See RequestEngine; the last known figures when the actor does not answer soon."""
        here = self._here
        late = self._asked is not None and not self._asked.done()
        if here is not None and not late:
            self._asked = here.actor.call.remote("stats").future()
            try:
                self._stats = _checked(self._asked.result(_STATS_S))
            except FutureTimeoutError:
                log.debug("%s: no fresh figures", self.name)
            except Exception as error:
                log.debug("%s: no fresh figures: %s", self.name, error)
        return self._stats

    def close(self) -> None:
        """End the actor, whatever it does."""
        import ray

        with self._lock:
            self._closed = True
            actors = [self._coming, self._here.actor if self._here else None]
            self._here = None
        for actor in filter(None, actors):
            ray.kill(actor)

    def encoded(self, function: Callable[..., T], *arguments: Any) -> T:
        """See ``TextEncoder``."""
        import ray

        here = self._here or self._restarted()
        try:
            found: T = _checked(ray.get(here.actor.call.remote("encoded", function, *arguments)))
            return found
        except ray.exceptions.RayActorError as error:
            self._died(here)
            raise WorkerError(f"{self.name} on {self.where()} is gone") from error

    def _land(self, here: _Incarnation, in_flight: InFlightRequest, done: Future[Any]) -> None:
        """A request has ended."""
        import ray

        try:
            error = done.exception()
            if error is None:
                answer: Completion | IngotError = done.result()
                if isinstance(answer, Completion):
                    in_flight.stream.finish(answer)
                else:
                    in_flight.give_up(FinishReason.ERROR, str(answer))
                return
            lost, raised = ray.exceptions.RayError, ray.exceptions.RayTaskError
            gone = isinstance(error, lost) and not isinstance(error, raised)
            if gone:
                self._died(here)
            if self._closed:
                in_flight.give_up(FinishReason.CANCELLED, None)
                return
            text = f"{self.name} on node {here.loaded.node} is gone" if gone else str(error)
            in_flight.give_up(FinishReason.ERROR, text, retryable=gone)
        except Exception:
            log.exception("%s: an answer was lost", self.name)

    def _died(self, here: _Incarnation) -> None:
        """Take an actor out of use; it may be alive and out of reach."""
        import ray

        with self._lock:
            if self._here is not here:
                return
            self._here = None
            if self._closed:
                return
        log.warning("%s on node %s is gone; another is started", self.name, here.loaded.node)
        ray.kill(here.actor)

    def _restarted(self) -> _Incarnation:
        """A new actor, once it has loaded the model. Raises WorkerError if it is lost before."""
        import ray

        with self._starting:
            try:
                return self._here or self.finish(ray.get(self.begin()))
            except ray.exceptions.RayActorError as error:
                raise WorkerError(f"{self.name} was lost while it loaded: {error}") from error


def _checked(answer: Any) -> Any:
    """Return an actor's answer, or raise the IngotError that it sent."""
    if isinstance(answer, IngotError):
        raise answer
    return answer


def require_ray() -> None:
    """Raises RequestError where Ray is not installed; does not import it."""
    if importlib.util.find_spec("ray") is None:
        raise RequestError("--ray needs Ray: pip install 'ingot[ray]'")


@dataclass(frozen=True, slots=True)
class Share:
    """How many engines, and what each of them takes of its node."""

    count: int
    cpus: int
    gpus: int


def share_out(nodes: Sequence[JsonObject], wanted: int | str, *, gpu: bool) -> Share:
    """Engines on nodes that have the resources ``CPU`` and ``GPU``: one a GPU if ``gpu`` and the
    cluster has any, else one a node, unless a number is wanted; each with as
    many processors as all can have. Raises RequestError for more than the cluster has room for."""
    with_gpu = [node for node in nodes if gpu and node.get("GPU", 0) >= 1]
    used = with_gpu or [node for node in nodes if node.get("CPU", 0) >= 1]
    if not used:
        raise RequestError("the Ray cluster has no node with a processor to work on")
    gpus = sum(int(node["GPU"]) for node in with_gpu)
    count = (gpus or len(used)) if wanted == "auto" else int(wanted)
    room = _places(used, 1, bool(gpus))
    if count > room:
        what = "GPUs with a processor" if gpus else "processors"
        raise RequestError(f"--engines {count}: the Ray cluster has {room} {what}")
    # The most processors an engine with which all of them find a place.
    cpus = 1
    while _places(used, cpus + 1, bool(gpus)) >= count:
        cpus += 1
    return Share(count, cpus, 1 if gpus else 0)


@contextmanager
def cluster_engines(plan: JobPlan, rows: int) -> Iterator[list[PoolEngine]]:
    """The engines on the cluster at `--ray`, each loaded; they end with the block.

    Raises RequestError where there is no such cluster or it has no room, ModelError naming the node
    where the model is missing or another one, OutOfMemoryError.
    """
    ray, connected = _connect(str(plan.spec.running.ray))
    engines: list[RayEngine] = []
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        choice = plan.choice
        share = share_out(
            nodes, plan.engines, gpu=backend_of(choice.file).allows_gpu(choice.settings)
        )
        # Whether that fits is for each node to say.
        slots = slots_for(plan, rows, share.count, here=False)
        order = Order(
            path=str(choice.file.path.absolute()),
            fingerprint=plan.settings.fingerprint,
            version=version("ingot"),
            settings=replace(choice.settings, slots=slots),
            scheduling=replace(choice.scheduling, max_stall_s=None),
            cpus=share.cpus,
        )
        remote = ray.remote(EngineActor).options(
            num_cpus=share.cpus,
            num_gpus=share.gpus,
            max_concurrency=_CALLS,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )
        engines += [
            RayEngine(f"engine {i + 1}", lambda: remote.remote(order)) for i in range(share.count)
        ]
        _load(ray, engines)
        yield [PoolEngine(engine, engine.name, engine.where) for engine in engines]
    except ray.exceptions.RayError as error:
        raise IngotError(f"Ray: {error}") from error
    finally:
        for engine in engines:
            engine.close()
        if connected:
            ray.shutdown()


def _connect(address: str) -> tuple[Any, bool]:
    """Ray, connected to; and whether this did it. Raises RequestError."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        return ray, False
    _check_address(address)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address,
            include_dashboard=False if address == "local" else None,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        raise RequestError(
            f"there is no Ray cluster at {address} ({str(error).splitlines()[0]}); "
            "`--ray local` starts one on this machine"
        ) from error
    finally:
        # Ray puts its own in place, with which the job would not be drained.
        signal.signal(signal.SIGTERM, handler)
    return ray, True


def _check_address(address: str) -> None:
    """Raises RequestError if nothing answers there: Ray itself would try for many minutes."""
    if address in ("auto", "local"):
        return
    host, colon, port = address.rpartition(":")
    if "://" in address or not (host and colon and port.isascii() and port.isdigit()):
        raise RequestError(
            f"--ray takes auto, local or HOST:PORT (on one of the cluster's nodes), not {address!r}"
        )
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise RequestError(f"there is no Ray cluster at {address}: {error}") from error


def _load(ray: Any, engines: Sequence[RayEngine]) -> None:
    """Wait until every engine is there. Ctrl-C ends it."""
    waiting = {engine.begin(): engine for engine in engines}
    while waiting:
        done, _ = ray.wait(list(waiting), num_returns=1, timeout=_PATIENCE_S)
        for ref in done:
            waiting.pop(ref).finish(ray.get(ref))
        if not done:
            there = len(engines) - len(waiting)
            log.warning("%d of %d engines are there; waiting for the cluster", there, len(engines))


def _places(nodes: Sequence[JsonObject], cpus: int, by_gpu: bool) -> int:
    """How many engines of so many processors the nodes have room for."""
    return sum(
        min(int(node.get("CPU", 0)) // cpus, int(node["GPU"]) if by_gpu else 1 << 30)
        for node in nodes
    )
