"""``EngineHost``: which model is loaded. One at a time; the last one asked for wins."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from app.here import real
from app.options import ModelOptions, PlanOptions
from runtimes.errors import IngotError, RequestError

if TYPE_CHECKING:  # what loads a model is imported when one is loaded: the app is drawn before
    from app.chat.remote import RemoteEngine
    from app.models.planning import LoadChoice
    from app.models.prefixes import SavedPrefixes
    from app.tools.servers import ToolServers
    from runtimes.api import EngineApi
    from runtimes.engine.metrics import EngineStats
    from runtimes.models.modelfile import ModelFile
    from runtimes.worker.engine import WorkerEngine

log = logging.getLogger(__name__)

_STEP_S = 0.5  # of reading a prompt at a time: so soon it can be stopped, and tells how far it is
_STATS_S = 0.25  # figures that are younger are not asked for again
# The end of a GGUF file's name that says what its tensors are: Qwen2.5-0.5B-Instruct-Q4_K_M.
_TYPE = re.compile(
    r"[-._]((?:UD-)?(?:I?Q\d\w*|TQ\d_0|MXFP4|NVFP4|BF16|FP?16|FP?32))$", re.IGNORECASE
)


def is_url(model: str) -> bool:
    """Whether a MODEL is one of a server: its address, with #NAME behind it for another model than
    the first."""
    return model.startswith(("http://", "https://"))


class LoadCancelledError(IngotError):
    """The loading was ended, or another model was asked for meanwhile: nothing to report."""


class HostState(StrEnum):
    """State of the host's engine."""

    EMPTY = "empty"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"  # nothing is loaded; ``EngineHost.error`` says why


class EngineHost:
    """Any method may be called from any thread; only ``load`` and ``close`` take long.

    ``model`` is what to give to ``load`` to have the loaded model again. All that describes the
    engine belongs to one load: while another model loads, it still describes the one before.
    """

    def __init__(
        self,
        *,
        raw: bool = False,
        template: str | None = None,
        prefixes: SavedPrefixes | None = None,
        adapters: Sequence[str] = (),
        tools: ToolServers | None = None,
    ) -> None:
        """``raw``: every model is sent text as it is, without its chat template; ``template``
        stands instead of that. ``prefixes``: where the last chat is saved when the engine is
        closed. ``adapters`` are those of the first model that is loaded, and of other files of it.
        ``tools``: the servers of the settings, if there are any.
        """
        self._tools = tools
        self._adapters = adapters
        self._adapted: tuple[Path, str] | None = None  # the model that they are for
        self.adapter: str | None = None  # answers from now on
        self.raw, self.template = raw, template
        self._template = template  # for every model; ``self.template`` is the loaded one's
        self._prefixes = prefixes
        self._last: Callable[[], Sequence[int]] | None = None  # the tokens of the last chat
        self._lock = threading.Lock()  # guards the fields; never held for long
        self._loading = threading.Lock()  # held by the one load that is at work
        self._wish = 0  # counts loads and closings: an older load than the last gives up
        self._coming: WorkerEngine | None = None
        self._loads = False
        self._engine: WorkerEngine | RemoteEngine | None = None
        self._stats: EngineStats | None = None
        self._asked = 0.0  # when figures were last asked for
        self._asking: Future[EngineStats] | None = None
        self._fetcher = ThreadPoolExecutor(1, thread_name_prefix="ingot-stats")
        self.choice: LoadChoice | None = None
        self.model: str | None = None
        self._label = ""  # of the model without an adapter
        self.details = ""
        self.quality = ""  # bits per weight and their cost, such as "4.6 bits · KL 0.041"
        self.error: str | None = None

    @property
    def tools(self) -> ToolServers | None:
        """Tool servers whose tools the loaded model may call: a server's model may not."""
        return None if self.model is not None and is_url(self.model) else self._tools

    @property
    def state(self) -> HostState:
        """Return the current state."""
        if self._loads:
            return HostState.LOADING
        if self._engine is not None:
            return HostState.READY
        return HostState.FAILED if self.error else HostState.EMPTY

    @property
    def engine(self) -> EngineApi | None:
        """The loaded model's engine."""
        return self._engine

    @property
    def plain(self) -> bool:
        """Whether the loaded model is sent text as it is: then it continues what one says."""
        engine = self._engine
        without = engine is not None and engine.model.chat_template is None
        return self.raw or (without and self.template is None)

    def expect(self) -> None:
        """A model will be loaded in a moment, and the state says so already."""
        with self._lock:
            self._loads = self._loads or self._engine is None

    def load(
        self,
        model: str,
        options: ModelOptions | None = None,
        settings: PlanOptions | None = None,
    ) -> LoadChoice:
        """Load MODEL as `ingot plan` has chosen for a chat, with one slot. Blocks.

        A model that is loaded already is closed as soon as it is clear which file is to be loaded;
        what it was answering ends. Another ``load`` or a ``close`` meanwhile ends this one with
        LoadCancelledError. Raises ModelError, RequestError or OutOfMemoryError, which is also kept
        in ``error``; the host can be used again.
        """
        options, settings = options or ModelOptions(), settings or PlanOptions()
        wish = self._begin(loads=True)
        try:
            with self._loading:
                return self._load(wish, model, options, settings)
        except BaseException as error:
            with self._lock:
                last = wish == self._wish
                if last:
                    self._loads = False
                    self.error = str(error) if isinstance(error, IngotError) else None
            if not last and isinstance(error, IngotError):
                raise LoadCancelledError(f"loading {model} was ended") from error
            raise

    def _begin(self, *, loads: bool) -> int:
        """End a load that is at work; the number by which what comes now is told from what comes
        later."""
        with self._lock:
            self._wish += 1
            wish, coming = self._wish, self._coming
            self._loads, self.error = loads, None
        if coming is not None:
            coming.close()
        return wish

    def _connect(self, wish: int, model: str) -> LoadChoice:
        """Use a model of a server."""
        from app.chat.remote import connect
        from app.models.planning import LoadChoice
        from runtimes.settings import RunnerSettings, SchedulerSettings

        self._drop()
        engine = connect(model)
        settings = RunnerSettings(slots=engine.slots, context=engine.context)
        choice = LoadChoice(engine.model, settings, SchedulerSettings(), planned=True)
        details = f"{engine.model.runtime} at {engine.where}"
        return self._adopt(wish, engine, choice, model, engine.name, details, "", self._template)

    def _load(
        self, wish: int, model: str, options: ModelOptions, settings: PlanOptions
    ) -> LoadChoice:
        if is_url(model):
            return self._connect(wish, model)
        from app.chat.load_settings import applied, read_template, remembered
        from app.models.library import load_engine
        from app.models.planning import choose

        choice = choose(model, options, settings, "chat", slots=1)
        said = remembered(choice.file.path)
        choice = self._with_adapters(applied(choice, said, options, settings))
        template = self._template
        if template is None and said.template is not None:
            template = read_template(said.template)
        self._continue(wish)
        self._drop()

        def begun(engine: WorkerEngine) -> None:
            with self._lock:
                self._coming = engine
            self._continue(wish)

        try:
            scheduling = replace(choice.scheduling, longest_step_s=_STEP_S)
            engine = load_engine(
                choice.file, choice.settings, scheduling, adapters=choice.adapters, begun=begun
            )
        finally:
            with self._lock:
                self._coming = None
        again, label = _again(model, options, choice), label_of(choice.file)
        details, quality = details_of(choice, engine.stats()), quality_at(choice.file.path)
        return self._adopt(wish, engine, choice, again, label, details, quality, template)

    def _adopt(
        self,
        wish: int,
        engine: WorkerEngine | RemoteEngine,
        choice: LoadChoice,
        again: str,
        label: str,
        details: str,
        quality: str,
        template: str | None,
    ) -> LoadChoice:
        """Take a loaded engine. Raises LoadCancelledError where it is not wanted any more."""
        # This also starts the thread, which takes time on a busy machine.
        self._asking = asking = self._fetcher.submit(engine.stats)
        stats = asking.result()
        with self._lock:
            if wish == self._wish:
                self._stats, self._asked = stats, time.monotonic()
                self.choice, self.model, self._label, self.details = choice, again, label, details
                self.quality, self.template = quality, template
                self.adapter = choice.adapters[0].name if choice.adapters else None
                # Last, since those who read take no lock: where there is an engine, it has a name.
                self._engine = engine
                self._loads = False
                return choice
        engine.close()
        raise LoadCancelledError(f"loading {again} was ended")

    def _with_adapters(self, choice: LoadChoice) -> LoadChoice:
        from app.adapters import adapter_files

        if not self._adapters:
            return choice
        file = choice.file
        model = file.path.parent, label_of(file).partition(" · ")[0]
        if self._adapted not in (None, model):
            return choice
        try:
            found = adapter_files(self._adapters, file, reproducible=choice.settings.reproducible)
        except IngotError as error:
            if self._adapted is None:
                raise
            log.warning("%s is loaded without adapters: %s", file.path.name, error)
            return choice
        self._adapted = model
        return replace(choice, adapters=found)

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of those that are loaded."""
        choice = self.choice
        return tuple(one.name for one in choice.adapters) if choice is not None else ()

    def use(self, adapter: str | None) -> None:
        """Answer with this adapter from now on, or with the model as it is. Raises RequestError
        for one that is not loaded."""
        with self._lock:
            if adapter not in (None, *self.adapters):
                known = ", ".join(self.adapters)
                raise RequestError(
                    f"there is no adapter {adapter!r}; there is: {known}"
                    if known
                    else "no adapter is loaded: `ingot chat MODEL --adapter FILE` loads one"
                )
            self.adapter = adapter

    @property
    def label(self) -> str:
        """Name for people of what answers."""
        return f"{self._label} + {self.adapter}" if self.adapter else self._label

    def used(self) -> tuple[str | None, str]:
        """The adapter that answers, and what answers, for people."""
        with self._lock:
            return self.adapter, self.label

    def _continue(self, wish: int) -> None:
        """Raises LoadCancelledError when this load is not wanted any more."""
        if wish != self._wish:
            raise LoadCancelledError("another model was asked for")

    def close(self) -> None:
        """End a load that is at work, and the engine. The host can load again."""
        self._begin(loads=False)
        self._drop()

    def _drop(self) -> None:
        with self._lock:
            engine, self._engine, self._stats = self._engine, None, None
            choice, last, self._last = self.choice, self._last, None
            self.choice = self.model = self.adapter = None
            self._label = self.details = self.quality = ""
        if engine is not None:
            if self._prefixes is not None and choice is not None and last is not None:
                self._prefixes.keep(engine, choice.settings, last())
            engine.close()

    def recall(self, prompt: Sequence[int]) -> None:
        """Give the engine what is saved of the prompt's beginning. Blocks."""
        with self._lock:
            engine, choice = self._engine, self.choice
        if engine is not None and choice is not None and self._prefixes is not None:
            self._prefixes.before(engine, choice.settings, prompt)

    def remember(self, tokens: Callable[[], Sequence[int]]) -> None:
        """Save this chat when the engine is closed; ``tokens`` tells its text."""
        self._last = tokens

    def stats(self) -> EngineStats | None:
        """The engine's figures, at most about half a second old while this is called regularly.
        Never waits: they are fetched beside. None while nothing is loaded."""
        with self._lock:
            engine, now = self._engine, time.monotonic()
            if engine is None:
                return None
            if (self._asking is None or self._asking.done()) and now - self._asked >= _STATS_S:
                self._asking, self._asked = self._fetcher.submit(self._fetch, engine), now
            return self._stats

    def tokens_read(self) -> int | None:
        """Tokens of all prompts that the engine has been through so far, cached ones included; None
        while nothing is loaded. Asks the engine: call it in a thread."""
        engine = self._engine
        return None if engine is None else _read(engine.stats())

    def reads(self, since: int) -> int | None:
        """Tokens of prompts that it has been through after ``tokens_read`` said ``since``, as
        ``stats`` knows them: without waiting."""
        stats = self.stats()
        return None if stats is None else max(0, _read(stats) - since)

    def _fetch(self, engine: EngineApi) -> EngineStats:
        stats = engine.stats()
        with self._lock:
            if engine is self._engine:
                self._stats = stats
        return stats


def _again(model: str, options: ModelOptions, choice: LoadChoice) -> str:
    """MODEL so that it means the same from every folder: the file itself when one was picked."""
    if options.recipe is not None or options.file is not None:
        return str(real(choice.file.path))
    return str(real(Path(model))) if Path(model).exists() else model


def _read(stats: EngineStats) -> int:
    return stats.prompt_tokens + stats.cached_tokens


# What a loaded model is called, how good it is, and where it computes


def label_of(file: ModelFile) -> str:
    """Model and build, such as "pebble · q4_k_m": from the manifest beside the file, else from the
    file's name."""
    from quantize.manifest import load_manifest

    with suppress(IngotError):  # there is none; and a damaged one keeps no file from running
        manifest = load_manifest(file.path.parent)
        for entry in manifest.files:
            if entry.path.rstrip("/") == file.path.name:
                return f"{manifest.model.name} · {entry.recipe}"
    kind = _TYPE.search(file.name)
    if kind and file.path.is_file():
        return f"{file.name[: kind.start()]} · {kind[1].lower()}"
    return file.name


def quality_at(path: Path) -> str:
    """Recorded quality of the model file at ``path``, empty if the file cannot be read."""
    from app.models.catalog import entry_of, quality_text

    try:
        return quality_text(entry_of(path))
    except (IngotError, OSError) as error:
        log.info("nothing is known of the quality of %s: %s", path, error)
        return ""


def details_of(choice: LoadChoice, stats: EngineStats) -> str:
    """Runtime, where it computes, and the draft: "llamacpp · 2 threads", "llamacpp · GPU 24/24
    layers · draft small.gguf"."""
    file, threads = choice.file, choice.settings.threads
    where = "CPU" if threads is None else f"{threads} thread{'s' if threads > 1 else ''}"
    if stats.gpu_layers:
        where = f"GPU {stats.gpu_layers}/{file.layers} layers"
    draft = f" · draft {stats.draft}" if stats.draft else ""
    return f"{file.runtime} · {where}{draft}"
