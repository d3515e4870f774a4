"""What follows from the death of a worker process.

- A crash or a hang may be chance, so the first is followed by the same settings. The second within
  a day, in this process or another, is followed by a fallback, which is kept in the state file.
- An instruction that the processor lacks, and memory that ran out by the system's or the library's
  own word, are certain: a fallback at once, kept.
- A kill from outside while little memory was free is followed by fewer requests that run together;
  what one of them may hold stays. That is not kept, and half an hour later the next start takes
  what was asked again: a process that runs is not ended for it, since loading anew costs everything
  that it has cached.
- Any other kill from outside changes no settings. Only a process that is killed again and again
  while it loads is given up.
- Limits against crashes that do not end the crashes are dropped: they were not it.
- A Python that could not import a module says nothing about the settings: the load fails.
- So many deaths in so many minutes end it: until the time is over, requests fail at once.
"""

import logging
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

from runtimes.machine.selftest import ensure, remembered
from runtimes.models.registry import backend_of
from runtimes.settings import RunnerSettings
from runtimes.worker.death import Cause, Death
from runtimes.worker.fallback import FORGET, LimitsFile, Record, SettingsLimits
from runtimes.worker.wire import Ready

log = logging.getLogger(__name__)

_SUSPECT_S = 24 * 3600.0
_SCARCE_S = 1800.0
_KILLED_LOADING = 4  # one after the other
_LEAST_TOKENS = 256  # of keys and values; below this a model is no use


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
        """``again`` forgets the limits of this model."""
        self._path, self._asked, self._limit = path, asked, limit
        self._file = LimitsFile(path)
        self.total = 0  # deaths so far
        self._deaths: deque[float] = deque()
        self._killed_loading = 0
        self._scarce_at = 0.0
        self._last: Death | None = None
        if again:
            self._file.write(Record())
        self._record = self._file.read()
        self._limits = self._record.bounds
        if self._limits != SettingsLimits():
            # Who names a device takes what runs for the device's.
            named = asked.device not in ("auto", "cpu") and not self._limits.gpu
            log.log(
                logging.WARNING if named else logging.INFO,
                "%s runs %s, because the worker process once %s (%s)",
                path.name,
                self._limits.describe(),
                self._record.reason,
                f"{FORGET} undoes this",
            )

    def settings(self) -> RunnerSettings:
        """What the next process is to load with."""
        if self._limits == SettingsLimits():
            return self._asked
        model = self._file.model
        return self._limits.apply(self._asked, model.context_length if model else 2**31)

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
        self.total += 1
        self._deaths.append(now)
        self._last = death
        if ready:
            self._killed_loading = 0
        if now > self._scarce_at + _SCARCE_S:
            self._limits = self._record.bounds
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
        self._keep(replace(self._record, suspect=death.text, suspect_at=time.time()))
        return True

    def too_big(self) -> bool:
        """A restart found less memory than the first start; True when a smaller one may do."""
        return self._step(Death(Cause.MEMORY, "found too little memory"), None, keep=False)

    def _step(self, death: Death, ready: Ready | None, *, keep: bool) -> bool:
        found = self._safer(death.cause, ready)
        if found is None:
            if keep and death.cause is not Cause.MEMORY:
                kept = replace(self._record.bounds, extra_buffers=True, gpu=True)
                self._limits = replace(self._limits, extra_buffers=True, gpu=True)
                unlimited = kept == SettingsLimits()
                self._keep(Record() if unlimited else Record(kept, self._record.reason))
            return False
        self._limits = found
        if not keep:
            self._scarce_at = time.monotonic()
        else:
            # Tokens that were limited for a while are not kept, nor is a draft that was left out.
            tokens = found if death.cause is Cause.MEMORY else self._record.bounds
            limits = replace(found, kv_tokens=tokens.kv_tokens, draft=tokens.draft)
            # Should it crash with these too, that is no chance either.
            self._keep(Record(limits, death.text, death.text, time.time()))
        log.warning(
            "the worker process %s; %s runs %s from now on%s",
            death.text,
            self._path.name,
            found.describe(),
            f" ({FORGET} undoes this)" if keep else "",
        )
        return True

    def _safer(self, cause: Cause, ready: Ready | None) -> SettingsLimits | None:
        """The next limits to try; None when there is nothing left that could help."""
        limits, settings, model = self._limits, self.settings(), self._file.model
        if ready:
            gpu, context, slots = ready.gpu, ready.context, ready.slots
        else:  # whether a GPU is in use is not known: it may be
            known = remembered(model.runtime) if model else None
            gpu, slots = bool(known and known.devices), settings.slots
            context = settings.context or min(4096, model.context_length if model else 4096)
        if cause in (Cause.MEMORY, Cause.SCARCE):
            if settings.draft is not None:
                return replace(limits, draft=False)
            half = (settings.kv_tokens or slots * context) // 2
            # Little free memory may not have been the reason: that must not cut requests short.
            least = context if cause is Cause.SCARCE else _LEAST_TOKENS
            return replace(limits, kv_tokens=half) if half >= least else None
        if model is None or settings.reproducible:  # other kernels: answers with other last digits
            return None
        knows = backend_of(model).knows
        # The processor, and so its special kernels, are to blame for an instruction it does not
        # have.
        if gpu and cause is not Cause.ILLEGAL and backend_of(model).allows_gpu(settings):
            return replace(limits, gpu=False)
        special = settings.extra_buffers and "extra_buffers" in knows
        if special and ensure(model.runtime, announce=False).extra_buffers:
            return replace(limits, extra_buffers=False)
        return None

    def _keep(self, record: Record) -> None:
        self._record = record
        self._file.write(record)
