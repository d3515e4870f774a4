"""Beginnings of prompts that outlive a restart: system prompts, long chats, what the rows of a
batch have in common. Chat, server and batch share one folder of them.

What takes long to read is saved when the engine has nothing else to do or is about to end, and
given back to an engine when a prompt that begins with it comes. The files are sessions
(``runtimes.engine.session``), which are refused where they are damaged, or of another model,
adapter, library or type of keys and values.
"""

import hashlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.adapters import AdapterFile
from app.config.files import load
from runtimes.api import EngineApi
from runtimes.engine.prefix_pool import common_prefix
from runtimes.engine.session import session_tokens
from runtimes.errors import IngotError, ModelError, RequestError
from runtimes.models.memory import estimate
from runtimes.models.modelfile import fingerprint
from runtimes.paths import cache_dir
from runtimes.request import Timings
from runtimes.settings import RunnerSettings

log = logging.getLogger(__name__)

LEAST_TOKENS = 64  # shorter ones are read sooner than found
_WORTH_S = 0.25  # of reading
_READ_AT_ONCE = 16  # a token is read no sooner than so many are loaded
_RECENT = 32  # prompts of a model that the next one is compared with
_LOOK_S = 5.0  # how often it is looked whether something can be saved
_KEEP_S = 30 * 86400.0  # as long as deleted chats can be restored
_SUFFIX = ".prefix"


@dataclass(slots=True)
class _Saved:
    tokens: list[int]
    given: set[int | None] = field(default_factory=set)  # processes of engines that have it


@dataclass(slots=True)
class _Known:
    """Prefixes of one model with one type of keys and values, with one adapter or without."""

    name: str  # what its files begin with
    adapter: str | None  # what its requests call it
    saved: dict[Path, _Saved] = field(default_factory=dict)
    looked: int = 0  # when the folder had changed last, at the last look into it
    recent: deque[list[int]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    hot: list[list[int]] = field(default_factory=list)  # to be saved
    read_tps: float = 0.0  # of prefill, as last seen; 0 before

    def longest(self, ids: Sequence[int]) -> int:
        """How many of these tokens are saved, or will be."""
        have = (*self.hot, *(one.tokens for one in self.saved.values()))
        return max((common_prefix(tokens, ids) for tokens in have), default=0)


class SavedPrefixes:
    """At most ``most_bytes`` of files in ``folder``, which several processes may share; those that
    were not used for longest go first. Every method may be called from any thread, and only logs
    what goes wrong: nothing but time is lost."""

    def __init__(self, folder: Path, most_bytes: int, worth_s: float = _WORTH_S) -> None:
        self.folder, self._most_bytes, self._worth_s = folder, most_bytes, worth_s
        self._lock = threading.Lock()  # guards what is known; never held for long
        self._known: dict[tuple[Path, str, AdapterFile | None], _Known] = {}
        self._told = False  # that nothing can be saved
        self._over = threading.Event()

    def watch(self, idle: Callable[[], Sequence[tuple[EngineApi, RunnerSettings]]]) -> None:
        """Save, from now on, for the models that ``idle`` gives now and then."""

        def look() -> None:
            while not self._over.wait(_LOOK_S):
                try:
                    for engine, settings in idle():
                        self.save(engine, settings)
                except Exception:  # of one model: the others' are saved at the next look
                    log.exception("what prompts begin with is not saved")

        if self._most_bytes:
            threading.Thread(target=look, name="ingot-prefixes", daemon=True).start()

    def close(self) -> None:
        """End the watching thread."""
        self._over.set()

    def before(
        self,
        engine: EngineApi,
        settings: RunnerSettings,
        ids: Sequence[int],
        adapter: AdapterFile | None = None,
    ) -> None:
        """Give the engine, loaded with ``settings``, what is saved of a prompt's beginning."""
        if len(ids) < LEAST_TOKENS or (known := self._of(engine, settings, adapter)) is None:
            return
        with self._lock:
            fits = {at: common_prefix(one.tokens, ids) for at, one in known.saved.items()}
            path = max(fits, key=fits.__getitem__, default=self.folder)
            common = fits.get(path, 0)
            if common < LEAST_TOKENS:
                return
            best = known.saved[path]
            if engine.pid in best.given or common * _READ_AT_ONCE < len(best.tokens):
                return
            best.given.add(engine.pid)
        try:
            engine.load_session(path, known.adapter)
            log.info("%s: %d tokens of a prompt were on disk", engine.model.name, common)
        except IngotError as error:
            log.info("%s is not used: %s", path, error)
            with self._lock:
                known.saved.pop(path, None)
            if isinstance(error, ModelError):
                _remove(path)
        with suppress(OSError):  # it is gone, or nothing ever goes: the folder is read-only
            os.utime(path)

    def after(
        self,
        engine: EngineApi,
        settings: RunnerSettings,
        ids: list[int],
        timings: Timings,
        adapter: AdapterFile | None = None,
    ) -> None:
        """Note a prompt that was answered."""
        known = self._of(engine, settings, adapter)
        if known is None:
            return
        with self._lock:
            cached = timings.cached_tokens
            if timings.prefill_tps and len(ids) - cached >= LEAST_TOKENS:
                known.read_tps = timings.prefill_tps
            for one in known.saved.values():  # the engine may have dropped it since
                if common_prefix(one.tokens, ids) > cached + 1:
                    one.given.discard(engine.pid)
            common = max((common_prefix(other, ids) for other in known.recent), default=0)
            known.recent.append(ids)
            slow = known.read_tps > 0 and common / known.read_tps >= self._worth_s
            if common >= LEAST_TOKENS and slow and known.longest(ids) < common:
                beginning = ids[:common]
                known.hot = [one for one in known.hot if not _begins(one, beginning)]
                known.hot.append(beginning)

    def save(self, engine: EngineApi, settings: RunnerSettings) -> None:
        """Save what prompts had in common, is worth it, and the engine still has, of the model and
        of its adapters."""
        with self._lock:
            of = engine.model.path, _layout(settings)
            hot = [(one, one.hot) for where, one in self._known.items() if where[:2] == of]
            for known, _ in hot:
                known.hot = []
        for known, found in hot:
            for tokens in found:
                self._save(engine, settings, known, tokens)

    def keep(self, engine: EngineApi, settings: RunnerSettings, tokens: Sequence[int]) -> None:
        """Save what the engine holds of ``tokens``, if reading them again would take long."""
        known = self._of(engine, settings)
        if known is None:
            return
        with self._lock:
            more = len(tokens) - known.longest(tokens)
        try:
            read_tps = engine.stats().prefill_tps
        except IngotError as error:
            log.info("%s: nothing is saved: %s", engine.model.name, error)
            return
        slow = read_tps > 0 and more / read_tps >= self._worth_s
        if more and slow and len(tokens) >= LEAST_TOKENS:
            self._save(engine, settings, known, list(tokens))

    def prune(self) -> None:
        """Remove files that were not touched for a month, then the oldest beyond the budget; what
        a process left half written when it was killed is such a file."""
        room, oldest = self._most_bytes, time.time() - _KEEP_S
        files = []
        for path in self.folder.glob(f"*{_SUFFIX}*"):
            with suppress(OSError):  # somebody else may prune, too
                files.append((path.stat(), path))
        for status, path in sorted(files, key=lambda item: -item[0].st_mtime):
            room -= status.st_size
            if room < 0 or status.st_mtime < oldest:
                _remove(path)

    def _save(
        self, engine: EngineApi, settings: RunnerSettings, known: _Known, tokens: list[int]
    ) -> None:
        try:
            alone = replace(settings, slots=1, context=len(tokens))
            if estimate(engine.model, alone).kv > self._most_bytes:
                return
            digest = hashlib.sha256(repr(tokens).encode()).hexdigest()[:24]
            path = self.folder / f"{known.name}-{digest}{_SUFFIX}"
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            kept = engine.save_session(tokens, path, known.adapter)
            log.info("%s: saved a beginning of %d tokens", engine.model.name, kept)
        except RequestError as error:  # the engine does not have it any more, or is at work
            log.info("%s: a beginning of prompts is not saved: %s", engine.model.name, error)
            return
        except (IngotError, OSError) as error:
            log.log(
                logging.DEBUG if self._told else logging.WARNING,
                "what prompts begin with is not saved, and is read again after a restart: %s",
                error,
            )
            self._told = True
            return
        with self._lock:
            # A chat that grew; a much shorter one is what others begin with, too.
            grown = [
                at
                for at, one in known.saved.items()
                if at != path and _begins(one.tokens, tokens) and len(tokens) < 2 * len(one.tokens)
            ]
            known.saved[path] = _Saved(tokens[:kept], {engine.pid})
            for at in grown:
                del known.saved[at]
                _remove(at)
        self.prune()

    def _of(
        self, engine: EngineApi, settings: RunnerSettings, adapter: AdapterFile | None = None
    ) -> _Known | None:
        """None where nothing is saved or used: without a budget, or a process of our own; and
        reproducible answers need every prompt computed in one way."""
        if not self._most_bytes or engine.pid is None or settings.reproducible:
            return None
        model = engine.model
        where = model.path, _layout(settings), adapter
        with self._lock:
            known = self._known.get(where)
        if known is None:
            try:
                parts = fingerprint(model), model.runtime, _layout(settings)
            except IngotError as error:
                log.info("nothing is saved of %s: %s", model.name, error)
                return None
            name = hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]
            called = None
            if adapter is not None:
                name, called = f"{name}+{adapter.digest[:16]}", adapter.name
            with self._lock:
                known = self._known.setdefault(where, _Known(name, called))
        self._look(known)
        return known

    def _look(self, known: _Known) -> None:
        """Note what others have saved and removed since the last look."""
        try:
            changed = self.folder.stat().st_mtime_ns
        except OSError:
            changed = 0
        with self._lock:
            if changed == known.looked:
                return
            known.looked = changed
            before = set(known.saved)
        found = set(self.folder.glob(f"{known.name}-*{_SUFFIX}"))
        new = {}
        for path in found - before:
            try:
                # A pipe would be waited for, and all of a file is read before it is checked.
                if path.is_file() and path.stat().st_size <= self._most_bytes:
                    new[path] = _Saved(session_tokens(path))
            except (ModelError, OSError) as error:
                log.info("%s is not used: %s", path, error)
                _remove(path)
        with self._lock:
            for path in before - found:
                known.saved.pop(path, None)
            known.saved = new | known.saved


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


NONE_SAVED = SavedPrefixes(Path(), 0)


def shared_prefixes(saved_mb: int | None = None) -> SavedPrefixes:
    """The user's, of so many megabytes; None is what the settings say."""
    most = load().config.chat.saved_mb if saved_mb is None else saved_mb
    return SavedPrefixes(cache_dir() / "prefixes", most * 10**6)


def _layout(settings: RunnerSettings) -> str:
    """How keys and values lie in a saved state; without flash attention, values are turned."""
    kind, flash = settings.kv_type, settings.flash_attention
    kind += f", rope {settings.rope}" if settings.rope else ""
    return kind if flash == "auto" else f"{kind}, flash attention {flash}"


def _begins(tokens: Sequence[int], other: Sequence[int]) -> bool:
    return common_prefix(tokens, other) == len(tokens)
