"""The engines of a job on a Ray cluster: connected to, placed, loaded."""

import importlib.util
import logging
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from app.batch.plan import JobPlan
from app.batch.schedule.cluster.actor import EngineActor, Order
from app.batch.schedule.cluster.engine import RayEngine
from app.batch.schedule.engines import slots_for
from app.batch.schedule.pool_engine import PoolEngine
from runtimes.errors import IngotError, RequestError
from runtimes.models.registry import backend_of

log = logging.getLogger(__name__)

_CALLS = 4096  # that an actor may have at the same time
_PATIENCE_S = 10.0
_CONNECT_S = 5.0


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


def share_out(nodes: Sequence[dict[str, Any]], wanted: int | str, *, gpu: bool) -> Share:
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
        fixed = plan.spec.slots is not None
        slots = slots_for(choice, rows, fixed=fixed, engines=share.count, here=False)
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


def _places(nodes: Sequence[dict[str, Any]], cpus: int, by_gpu: bool) -> int:
    """How many engines of so many processors the nodes have room for."""
    return sum(
        min(int(node.get("CPU", 0)) // cpus, int(node["GPU"]) if by_gpu else 1 << 30)
        for node in nodes
    )
