"""What follows from the death of a worker process.

- A crash or a hang may be chance, so the first is followed by the same settings. The second within
  a day, in this process or another, is followed by safer ones, which are remembered.
- An instruction that the processor lacks, and memory that ran out by the system's or the library's
  own word, are certain: safer settings at once, remembered.
- A kill from outside while little memory was free is followed by fewer requests that run together;
  what one of them may hold stays. That is not remembered, and half an hour later the next start
  takes what was asked again: a process that runs is not ended for it, since loading anew costs
  everything that it has cached.
- Any other kill from outside says nothing about the settings, and changes none. Only a process that
  is killed again and again while it loads is given up.
- Bounds against crashes that do not end the crashes are dropped and forgotten: they were not it.
- A Python that could not import a module says nothing about the settings either: the load fails.
- So many deaths in so many minutes end it: until the time is over, requests fail at once.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

from runtimes.machine.selftest import ensure
from runtimes.settings import RunnerSettings
from runtimes.worker.death import Cause, Death
from runtimes.worker.safer import FORGET, Bounds, Memory, Record, Situation, safer
from runtimes.worker.wire import Ready

log = logging.getLogger(__name__)

_SUSPECT_S = 24 * 3600.0
_SCARCE_S = 1800.0
_KILLED_LOADING = 4  # one after the other


@dataclass(frozen=True, slots=True)
class DeathLimit:
    """So many deaths within so many seconds are the last ones for a while."""

    deaths: int = 8
    seconds: float = 600.0


class Recovery:
    """The settings for the next start of a worker, by what has become of the earlier ones."""

    def __init__(
        self, path: Path, asked: RunnerSettings, limit: DeathLimit, *, again: bool = False
    ) -> None:
        """``again`` forgets what is remembered of this model."""
        self._path, self._asked, self._limit = path, asked, limit
        self._memory = Memory(path)
        self._deaths: deque[float] = deque()
        self._killed_loading = 0
        self._scarce_at = 0.0
        self._last: Death | None = None
        if again:
            self._memory.write(Record())
        self._record = self._memory.read()
        self._bounds = self._record.bounds
        if self._bounds != Bounds():
            log.info(
                "%s runs %s, because the worker process once %s (%s)",
                path.name,
                self._bounds.describe(),
                self._record.reason,
                f"{FORGET} undoes this",
            )

    def settings(self) -> RunnerSettings:
        """What the next process is to load with."""
        if self._bounds == Bounds():
            return self._asked
        model = self._memory.model
        return self._bounds.apply(self._asked, model.context_length if model else 2**31)

    def refusal(self) -> str | None:
        """Why no process may be started now; None when one may."""
        now = time.monotonic()
        while self._deaths and self._deaths[0] < now - self._limit.seconds:
            self._deaths.popleft()
        if len(self._deaths) < self._limit.deaths or self._last is None:
            return None
        wait = self._deaths[0] + self._limit.seconds - now
        return (
            f"the worker process died {len(self._deaths)} times within "
            f"{self._limit.seconds / 60:g} minutes (the last one {self._last.text}); it is not "
            f"started again for the next {wait:.0f} s"
        )

    def died(self, death: Death, ready: Ready | None) -> bool:
        """Take note of a death, of a process that had loaded the model or had not.

        True when starting again may end otherwise: by chance, or with the safer settings that are
        in ``settings`` now.
        """
        now = time.monotonic()
        self._deaths.append(now)
        self._last = death
        if ready:
            self._killed_loading = 0
        if now > self._scarce_at + _SCARCE_S:
            self._bounds = self._record.bounds
        if death.cause is Cause.IMPORT:
            return False
        if death.cause in (Cause.ILLEGAL, Cause.MEMORY):
            return self._step(death, ready, keep=True)
        if death.cause in (Cause.SCARCE, Cause.KILLED):
            self._killed_loading += not ready
            fewer = death.cause is Cause.SCARCE and self._step(death, ready, keep=False)
            return fewer or self._killed_loading < _KILLED_LOADING
        seen = self._record.suspect and time.time() - self._record.suspect_at < _SUSPECT_S
        if seen:
            return self._step(death, ready, keep=True)
        self._remember(replace(self._record, suspect=death.text, suspect_at=time.time()))
        return True

    def too_big(self) -> bool:
        """A restart found less memory than the first start; True when a smaller one may do."""
        return self._step(Death(Cause.MEMORY, "found too little memory"), None, keep=False)

    def _step(self, death: Death, ready: Ready | None, *, keep: bool) -> bool:
        found = safer(self._bounds, death.cause, self._situation(ready))
        if found is None:
            if keep and death.cause is not Cause.MEMORY:
                kept = replace(self._record.bounds, extra_buffers=True, gpu=True)
                self._bounds = replace(self._bounds, extra_buffers=True, gpu=True)
                self._remember(Record(kept, self._record.reason) if kept != Bounds() else Record())
            return False
        self._bounds = found
        if not keep:
            self._scarce_at = time.monotonic()
        else:
            tokens = found if death.cause is Cause.MEMORY else self._record.bounds
            bounds = replace(found, kv_tokens=tokens.kv_tokens)
            # Should it crash with these too, that is no chance either.
            self._remember(Record(bounds, death.text, death.text, time.time()))
        log.warning(
            "the worker process %s; %s runs %s from now on%s",
            death.text,
            self._path.name,
            found.describe(),
            f" ({FORGET} undoes this)" if keep else "",
        )
        return True

    def _situation(self, ready: Ready | None) -> Situation:
        settings = self.settings()
        model = self._memory.model
        knows: frozenset[str] = model.backend.knows if model else frozenset()
        context = settings.context or min(4096, model.context_length if model else 4096)
        # Before it has loaded, whether a GPU is in use is not known: it may be.
        gpu = ready.gpu if ready else _gpu_found()
        return Situation(
            gpu and "gpu_layers" in knows and settings.gpu_layers != 0,
            model is not None
            and "extra_buffers" in knows
            and settings.extra_buffers
            and ensure(model.runtime, announce=False).extra_buffers,
            ready.context if ready else context,
            settings.kv_tokens
            or (ready.slots * ready.context if ready else settings.slots * context),
            settings.reproducible,
        )

    def _remember(self, record: Record) -> None:
        self._record = record
        self._memory.write(record)


def _gpu_found() -> bool:
    from runtimes.machine.gpus import find_gpus

    return bool(find_gpus())
