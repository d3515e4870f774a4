"""The models of a server: their names, and which of them are loaded.

A model is loaded when it is asked for. Where memory is short, the one that was not used for longest
makes room, but never one that is in use, unless its only user is a batch, which gives way.
"""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from anyio import CapacityLimiter, to_thread

from app.adapters import AdapterFile, adapter_files
from app.batch.schedule.engines import default_slots, free_memory
from app.models.library import load_engine
from app.models.planning import LoadChoice
from app.models.prefixes import NONE_SAVED, SavedPrefixes
from app.serve.errors import HttpError, UnknownModelError, shutting_down
from runtimes.checks import check_adapter
from runtimes.errors import IngotError, ModelError, RequestError
from runtimes.models.memory import estimate, gib, require_fit, spare_draft
from runtimes.models.modelfile import ModelFile
from runtimes.planner.learned import remember_work
from runtimes.settings import RunnerSettings
from runtimes.worker.engine import WorkerEngine


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that is served. ``choose`` says what to load: it is asked before each load."""

    name: str
    choose: Callable[[], LoadChoice]
    fixed_slots: bool = False
    aliases: Sequence[str] = ()  # other names that clients may ask for it by
    adapters: Sequence[str] = ()  # of those that ``choose`` has; each is asked for as NAME:ADAPTER
    added: Sequence[AdapterFile] = ()  # while the server runs, beside those

    def names(self) -> Iterator[tuple[str, str | None]]:
        """Each with the adapter that it means; None for the model as it is."""
        for own in (self.name, *self.aliases):
            yield own, None
            for adapter in (*self.adapters, *(one.name for one in self.added)):
                yield f"{own}:{adapter}", adapter


_Names = dict[str, tuple[ServedModel, str | None]]


def by_name(entries: Sequence[ServedModel]) -> _Names:
    """Map each name to a model, or to one with an adapter. Raises RequestError for two of one
    name."""
    known: _Names = {}
    for entry in entries:
        for name, adapter in entry.names():
            if name in known:
                said = f"two models are called {name}: give one a name, as in NAME=MODEL"
                raise RequestError(said)
            known[name] = entry, adapter
    return known


def name_of(model: str) -> tuple[str, str]:
    """Name and MODEL of what stands on the command line: NAME=MODEL, or MODEL, which is called as
    its file or folder, or as the library calls it. Raises RequestError for an empty name."""
    name, separator, rest = model.partition("=")
    if separator and not Path(model).exists():
        if not name or not rest:
            raise RequestError(f"{model!r}: a name and a model belong around =, as in small=MODEL")
        return name, rest
    path = Path(model)
    if not path.exists():
        return model, model
    return path.resolve().name.removesuffix(".gguf"), model


def check_entries(entries: Sequence[ServedModel]) -> None:
    """Raises what is wrong with a model that will be loaded later: its file is looked at now."""
    for entry in entries:
        try:
            entry.choose()
        except IngotError as error:
            if entry.name not in str(error):
                error.args = (f"{entry.name}: {error}",)
            raise


logger = logging.getLogger(__name__)

MOST_SLOTS = 16
_BUSY_RETRY_S = 10
# A batch that gave way takes the room of a model that was not asked for so long.
REST_S = 30.0
_GIVE_WAY_S = 30.0  # for the step that runs
# A row of a batch gives its slot to any other request, however long it has had it.
_AGING_S = 3600.0


@dataclass(frozen=True, slots=True)
class Served:
    """A loaded model."""

    name: str
    choice: LoadChoice
    engine: WorkerEngine
    adapter: str | None = None  # that was asked for

    @property
    def called(self) -> str:
        """Name by which clients ask for it."""
        return self.name if self.adapter is None else f"{self.name}:{self.adapter}"

    @property
    def adapter_file(self) -> AdapterFile | None:
        """File that the adapter was loaded from."""
        return next((one for one in self.choice.adapters if one.name == self.adapter), None)


@dataclass(slots=True)
class _Loaded:
    served: Served
    bytes: int  # what it was told to need
    users: Counter[str | None] = field(default_factory=Counter)  # leases by adapter
    giving_way: list[Callable[[], None]] = field(default_factory=list)  # of leases that do
    used: float = field(default_factory=time.monotonic)

    @property
    def leases(self) -> int:
        return self.users.total()


class ModelPool:
    """Every method may be called from any thread."""

    def __init__(
        self,
        entries: Sequence[ServedModel],
        budget: int | None = None,
        prefixes: SavedPrefixes = NONE_SAVED,
    ) -> None:
        """``budget``: bytes that the loaded models may take together. Raises RequestError for two
        models of one name."""
        self.prefixes = prefixes
        self._known = by_name(entries)
        self._budget = budget
        # Guards the table, and is told when a lease ends; never held for long.
        self._lock = threading.Condition(threading.Lock())
        self._loading = threading.Lock()  # held by the one load that is at work
        self._loaded: dict[str, _Loaded] = {}
        self._coming: WorkerEngine | None = None
        self._closed = False

    def names(self) -> list[str]:
        """List the names of all models, the first one given first; each is followed by its adapters
        and by its aliases."""
        return list(self._known)

    def loaded(self) -> Mapping[str, Served]:
        """Return the models that are in memory now, by their own names."""
        with self._lock:
            return {name: one.served for name, one in self._loaded.items()}

    @contextmanager
    def lease(
        self, name: str | None, give_way: Callable[[], None] | None = None
    ) -> Iterator[Served]:
        """The model, loaded if need be, kept loaded within the block; None is the first one.
        ``give_way`` is called when others need the room: the block has to end soon.

        Raises UnknownModelError, ModelError, OutOfMemoryError, or HttpError (503) where other
        models are in use and leave no room.
        """
        with ExitStack() as held:
            served = self.lease_loaded(name, held, give_way)
            if served is None:
                with self._loading:
                    while (served := self.lease_loaded(name, held, give_way)) is None:
                        self._load(self._entry(name)[0], 0.0 if give_way is None else REST_S)
            yield served

    def lease_loaded(
        self, name: str | None, held: ExitStack, give_way: Callable[[], None] | None = None
    ) -> Served | None:
        """As ``lease``, until ``held`` ends and without waiting: None where the model is not
        loaded."""
        with self._lock:
            if self._closed:
                raise shutting_down(retry_s=0)
            entry, adapter = self._entry(name)
            one = self._loaded.get(entry.name)
            if one is None:
                return None
            one.users[adapter] += 1
            if give_way is not None:
                one.giving_way.append(give_way)
        return held.enter_context(self._leased(one, adapter, give_way))

    @contextmanager
    def _leased(
        self, one: _Loaded, adapter: str | None, give_way: Callable[[], None] | None
    ) -> Iterator[Served]:
        """A lease that was taken, until the block ends."""
        try:
            yield replace(one.served, adapter=adapter)
        finally:
            with self._lock:
                one.users[adapter] -= 1
                if give_way is not None:
                    one.giving_way.remove(give_way)
                one.used = time.monotonic()
                self._lock.notify_all()

    def model_of(self, name: str | None) -> str:
        """The own name of the model that this name or alias means, with an adapter or without; None
        is the first one. Raises UnknownModelError."""
        return self._entry(name)[0].name

    def add_adapter(self, model: str | None, name: str, path: Path) -> str:
        """Have an adapter answer as MODEL:NAME from now on; returns that. None is the first model.

        Raises UnknownModelError, RequestError for a name or a file that cannot be one of the model.
        """
        with self._loading:
            entry = self._model(model)
            check_adapter(name, path, {*entry.adapters, *(one.name for one in entry.added)})
            choice = entry.choose()
            one = self._loaded.get(entry.name)
            try:
                exact = choice.settings.reproducible
                (found,) = adapter_files([f"{name}={path}"], choice.file, reproducible=exact)
                changed = replace(entry, added=(*entry.added, found))
                known = self._names_with(changed)
                if one is not None:
                    one.served.engine.load_adapter(name, path)
            except ModelError as error:
                raise RequestError(str(error).removeprefix("--adapter: ")) from error
            self._change(changed, known)
        called = f"{entry.name}:{name}"
        logger.info("%s is loaded", called)
        return called

    def remove_adapter(self, model: str | None, name: str) -> str:
        """Take away one that ``add_adapter`` gave; returns what it was called.

        Raises UnknownModelError, or HttpError (409) while a request or a batch uses it.
        """
        with self._loading:
            entry = self._model(model)
            called = f"{entry.name}:{name}"
            left = tuple(one for one in entry.added if one.name != name)
            if len(left) == len(entry.added):
                said = ", ".join(one.name for one in entry.added) or "none"
                raise UnknownModelError(
                    f"{entry.name} has no adapter {name[:80]!r} that was loaded while the server"
                    f" runs; there is: {said}"
                )
            changed = replace(entry, added=left)
            with self._lock:
                one = self._loaded.get(entry.name)
                if one is not None and (users := one.users[name]):
                    said = f"{users} requests use {called}; ask again when they have ended"
                    raise HttpError(409, "adapter_in_use", said, retry_s=_BUSY_RETRY_S)
                self._change(changed, self._names_with(changed))
            if one is not None:
                one.served.engine.unload_adapter(name)
        logger.info("%s is unloaded", called)
        return called

    def _model(self, name: str | None) -> ServedModel:
        entry, adapter = self._entry(name)
        if adapter is not None:
            raise RequestError(f"{name} is an adapter of {entry.name}: name the model")
        return entry

    def _names_with(self, changed: ServedModel) -> _Names:
        """Map all names, this model in the place of that of its name. Raises as ``by_name``."""
        every = {entry.name: entry for entry, _ in self._known.values()}
        return by_name([*{**every, changed.name: changed}.values()])

    def _change(self, entry: ServedModel, known: _Names) -> None:
        """Replace the names and the adapters of a model."""
        self._known = known
        if (one := self._loaded.get(entry.name)) is not None:
            own = [file for file in one.served.choice.adapters if file.name in entry.adapters]
            choice = replace(one.served.choice, adapters=(*own, *entry.added))
            one.served = replace(one.served, choice=choice)

    def close(self) -> None:
        """Unload everything. Idempotent."""
        with self._lock:
            self._closed = True
            coming, gone = self._coming, list(self._loaded.values())
            self._loaded.clear()
        if coming is not None:
            coming.close()
        for one in gone:
            self._unload(one)

    def _unload(self, one: _Loaded) -> None:
        choice, engine = one.served.choice, one.served.engine
        try:
            self.prefixes.save(engine, choice.settings)
            if not choice.adapters:
                with suppress(ModelError):  # the file is gone meanwhile
                    remember_work(choice.file, choice.settings, engine.stats())
        finally:
            one.served.engine.close()

    def _entry(self, name: str | None) -> tuple[ServedModel, str | None]:
        if name is None:
            return next(iter(self._known.values()))
        found = self._known.get(name)
        if found is None:
            known = ", ".join(self._known)
            raise UnknownModelError(f"there is no model {name[:80]!r} here; there is: {known}")
        return found

    def _load(self, entry: ServedModel, rest_s: float) -> None:
        """Load a model in the place of others that were not in use for so long."""
        choice = entry.choose()
        choice = replace(choice, adapters=(*choice.adapters, *entry.added))
        settings = choice.settings
        least = replace(settings, draft=None)  # no other model makes room for a draft
        if not entry.fixed_slots:
            least = replace(least, slots=1)
        self._make_room(choice.file, least, rest_s)
        free = self._free()
        if not entry.fixed_slots and not choice.planned:
            slots = default_slots(choice.file, settings, MOST_SLOTS, free)
            settings = replace(settings, slots=slots)
        settings = spare_draft(choice.file, settings, free, said="are free for them")
        require_fit(choice.file, settings, free, said="are free for it")
        choice = replace(choice, settings=settings)
        begun = time.monotonic()
        try:
            scheduling = replace(choice.scheduling, aging_s=_AGING_S)
            engine = load_engine(
                choice.file, settings, scheduling, adapters=choice.adapters, begun=self._begun
            )
        finally:
            with self._lock:
                self._coming = None
        draft = engine.stats().draft
        said = entry.name if draft is None else f"{entry.name} with the draft {draft}"
        logger.info("%s is loaded, in %.1f s", said, time.monotonic() - begun)
        one = _Loaded(Served(entry.name, choice, engine), estimate(choice.file, settings).total)
        with self._lock:
            closed = self._closed
            if not closed:
                self._loaded[entry.name] = one
        if closed:
            engine.close()
            raise shutting_down(retry_s=0)

    def _begun(self, engine: WorkerEngine) -> None:
        with self._lock:
            self._coming = engine
            closed = self._closed
        if closed:
            engine.close()

    def _free(self) -> int:
        """Bytes that one more model may take."""
        free = free_memory()
        if self._budget is None:
            return free
        with self._lock:
            taken = sum(one.bytes for one in self._loaded.values())
        return min(free, self._budget - taken)

    def _make_room(self, file: ModelFile, settings: RunnerSettings, rest_s: float) -> None:
        """Unload what was not in use for so long, the least recently used first, until the model
        fits with these settings."""
        need = estimate(file, settings).total
        while need > (free := self._free()):
            with self._lock:
                if not rest_s:
                    self._ask_for_room(need - free)
                rested = time.monotonic() - rest_s
                idle = [
                    one for one in self._loaded.values() if one.leases == 0 and one.used <= rested
                ]
                busy = len(self._loaded) - len(idle)
                if not idle:
                    break
                oldest = min(idle, key=lambda one: one.used)
                del self._loaded[oldest.served.name]
            logger.info("%s is unloaded to make room", oldest.served.name)
            self._unload(oldest)
        else:
            return
        if busy:
            said = f"{file.path.name} needs {gib(need)}, and models in use leave"
            said = f"{said} {gib(max(0, self._free()))}; ask again when they are done"
            raise HttpError(503, "model_busy", said, retry_s=_BUSY_RETRY_S)

    def _ask_for_room(self, lacking: int) -> None:
        """If nothing is idle, have a model be given up by all that use it, and wait for that; only
        where so many bytes can be had so. With the lock held."""
        asked = [one for one in self._loaded.values() if len(one.giving_way) == one.leases]
        idle = any(one.leases == 0 for one in asked)
        if not asked or idle or sum(one.bytes for one in asked) < lacking:
            return
        users = asked[0].giving_way
        for give_way in users:
            give_way()
        self._lock.wait_for(lambda: not users, _GIVE_WAY_S)


# Leases of models for the event loop: requests wait for a model that loads without threads.


@dataclass(slots=True, eq=False)
class _Load:
    """One load, and how many requests wait for it. ``held`` has its lease until all of them have
    taken theirs."""

    ready: "asyncio.Future[None]"
    held: ExitStack = field(default_factory=ExitStack)
    waiting: int = 0
    work: "asyncio.Task[None] | None" = None  # the loop by itself holds it weakly

    def fail(self, error: Exception) -> None:
        """Give ``error`` to all that wait."""
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # those who waited may have gone


class Loads:
    """Loads of a pool's models, each on one thread however many requests wait for it."""

    def __init__(self, pool: ModelPool) -> None:
        self._pool = pool
        self._coming: dict[str, _Load] = {}
        # The pool loads one after the other: as many wait as there are.
        self._limiter = CapacityLimiter(len(pool.names()))

    async def lease(self, name: str | None, held: ExitStack) -> Served:
        """A lease of the model, which ends with ``held``, once it is loaded. Raises as
        `ModelPool.lease`."""
        served = self._pool.lease_loaded(name, held)
        while served is None:
            load = self._load(self._pool.model_of(name))
            load.waiting += 1
            try:
                await asyncio.shield(load.ready)
                served = self._pool.lease_loaded(name, held)
            finally:
                load.waiting -= 1
                _let_go(load)
        return served

    def end(self) -> None:
        """Nobody waits any more: the server ends."""
        for load in self._coming.values():
            load.fail(shutting_down())

    def _load(self, model: str) -> _Load:
        load = self._coming.get(model)
        if load is None:
            load = self._coming[model] = _Load(asyncio.get_running_loop().create_future())
            load.work = asyncio.ensure_future(self._run(model, load))
        return load

    async def _run(self, model: str, load: _Load) -> None:
        try:
            lease = self._pool.lease(model)
            await to_thread.run_sync(load.held.enter_context, lease, limiter=self._limiter)
            if not load.ready.done():
                load.ready.set_result(None)
        except Exception as error:
            load.fail(error)
        finally:
            load.ready.cancel()
            del self._coming[model]
            _let_go(load)


def _let_go(load: _Load) -> None:
    if load.ready.done() and not load.waiting:
        load.held.close()
