"""Beginnings of prompts that outlive a restart: system prompts, long chats.

What two prompts of a model have in common is worth keeping if reading it takes long. It is saved
when the model has nothing else to do, or is unloaded, and given back to an engine when a prompt
that begins with it comes. The files are sessions (``runtimes.engine.session``), which are refused
where they are damaged, or of another model, library or type of keys and values.
"""

import hashlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.chat.contexts import prune
from app.serve.pool import Served
from runtimes.engine.prefix_pool import common_prefix
from runtimes.engine.session import session_tokens
from runtimes.errors import IngotError, ModelError
from runtimes.models.memory import estimate
from runtimes.models.modelfile import fingerprint
from runtimes.request import Timings

log = logging.getLogger(__name__)

_LEAST_TOKENS = 64  # shorter ones are read sooner than found
_WORTH_S = 0.25  # of reading
_RECENT = 32  # prompts of a model that the next one is compared with
_LOOK_S = 5.0  # how often it is looked whether something can be saved
_SUFFIX = ".prefix"


@dataclass(slots=True, eq=False)
class _Saved:
    path: Path
    tokens: list[int]
    process: int | None = None  # the engine's process that has been given it


@dataclass(slots=True)
class _Known:
    """Of one model."""

    saved: list[_Saved]
    recent: deque[list[int]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    hot: list[list[int]] = field(default_factory=list)  # to be saved
    read_tps: float = 0.0  # of prefill, as last seen; 0 before


class SavedPrefixes:
    """At most ``most_bytes`` of files in ``folder``, which several servers may share; those that
    were not used for longest go first. Every method may be called from any thread."""

    def __init__(self, folder: Path, most_bytes: int, worth_s: float = _WORTH_S) -> None:
        self._folder, self._most_bytes, self._worth_s = folder, most_bytes, worth_s
        self._lock = threading.Lock()  # guards what is known; never held for long
        self._known: dict[str, _Known] = {}
        self._names: dict[str, str] = {}  # of models, what their files begin with
        self._over = threading.Event()

    def watch(self, idle: Callable[[], Sequence[Served]]) -> None:
        """Save, from now on, for the models that ``idle`` gives now and then."""

        def look() -> None:
            while not self._over.wait(_LOOK_S):
                for served in idle():
                    self.save(served)

        threading.Thread(target=look, name="ingot-prefixes", daemon=True).start()

    def close(self) -> None:
        """Watch no more."""
        self._over.set()

    def before(self, served: Served, ids: Sequence[int]) -> None:
        """Give the engine what is saved of a prompt's beginning. A problem is only logged."""
        if served.choice.settings.reproducible:
            return
        known = self._of(served)
        with self._lock:
            fits = [(common_prefix(one.tokens, ids), one) for one in known.saved]
            common, best = max(fits, key=lambda item: item[0], default=(0, None))
            process = served.engine.pid
            if best is None or common < _LEAST_TOKENS or best.process == process:
                return
            best.process = process
        try:
            served.engine.load_session(best.path)
            best.path.touch()
            log.info("%s: %d tokens of a prompt were on disk", served.name, common)
        except (IngotError, OSError) as error:
            log.info("%s is not used: %s", best.path, error)
            self._drop(known, best, damaged=isinstance(error, ModelError))

    def after(self, served: Served, ids: list[int], timings: Timings) -> None:
        """Note a prompt that was answered."""
        known = self._of(served)
        with self._lock:
            cached = timings.cached_tokens
            if timings.prefill_tps and len(ids) - cached >= _LEAST_TOKENS:
                known.read_tps = timings.prefill_tps
            for one in known.saved:  # the engine may have dropped it since
                if common_prefix(one.tokens, ids) > cached + 1:
                    one.process = None
            common = max((common_prefix(other, ids) for other in known.recent), default=0)
            known.recent.append(ids)
            slow = known.read_tps > 0 and common / known.read_tps >= self._worth_s
            have = (*known.hot, *(one.tokens for one in known.saved))
            longest = max((common_prefix(tokens, ids) for tokens in have), default=0)
            if common >= _LEAST_TOKENS and slow and longest < common:
                beginning = ids[:common]
                known.hot = [one for one in known.hot if not _begins(one, beginning)]
                known.hot.append(beginning)

    def save(self, served: Served) -> None:
        """Save what is worth it and the engine still has. A problem is only logged."""
        known = self._of(served)
        with self._lock:
            hot, known.hot = known.hot, []
        for tokens in hot:
            try:
                self._save(served, known, tokens)
            except (IngotError, OSError) as error:
                log.info("%s: a beginning of prompts is not saved: %s", served.name, error)
        if hot:
            prune(self._folder, f"*{_SUFFIX}", self._most_bytes)
            with self._lock:
                known.saved = [one for one in known.saved if one.path.exists()]

    def _save(self, served: Served, known: _Known, tokens: list[int]) -> None:
        alone = replace(served.choice.settings, slots=1, context=len(tokens))
        if estimate(served.engine.model, alone).kv > self._most_bytes:
            return
        digest = hashlib.sha256(repr(tokens).encode()).hexdigest()[:24]
        path = self._folder / f"{self._names[served.name]}-{digest}{_SUFFIX}"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = served.engine.save_session(tokens, path)
        log.info("%s: saved a beginning of %d tokens", served.name, kept)
        with self._lock:
            shorter = [one for one in known.saved if _begins(one.tokens, tokens)]
            known.saved.append(_Saved(path, tokens[:kept], served.engine.pid))
        for one in shorter:
            self._drop(known, one, damaged=True)

    def _drop(self, known: _Known, one: _Saved, *, damaged: bool) -> None:
        with self._lock:
            if one in known.saved:
                known.saved.remove(one)
        if damaged:
            with suppress(OSError):
                one.path.unlink()

    def _of(self, served: Served) -> _Known:
        with self._lock:
            known = self._known.get(served.name)
        if known is None:
            name = fingerprint(served.choice.file)[:16]
            saved = []
            for path in self._folder.glob(f"{name}-*{_SUFFIX}"):
                try:
                    saved.append(_Saved(path, session_tokens(path)))
                except ModelError as error:
                    log.info("%s is not used: %s", path, error)
                    with suppress(OSError):
                        path.unlink()
            with self._lock:
                self._names[served.name] = name
                known = self._known.setdefault(served.name, _Known(saved))
        return known


def _begins(tokens: Sequence[int], other: Sequence[int]) -> bool:
    return common_prefix(tokens, other) == len(tokens)
