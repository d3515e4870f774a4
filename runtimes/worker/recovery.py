"""Recovery from the death of a worker process.

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

import contextlib
import hashlib
import logging
import re
import time
from collections import deque
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from runtimes.errors import ModelError
from runtimes.machine import cgroup
from runtimes.machine.cpu import cpu_identity
from runtimes.machine.installed import find_installed
from runtimes.machine.processes import advised, ending, import_failure
from runtimes.machine.selftest import ensure, remembered
from runtimes.machine.state_file import load_state, save_entry, save_state
from runtimes.models.memory import DEFAULT_CONTEXT
from runtimes.models.modelfile import ModelFile, fingerprint
from runtimes.models.registry import backend_of, read_model
from runtimes.settings import RunnerSettings
from runtimes.worker.wire import Ready

# How a worker process ended, in words and as a cause that something may follow from.
#
# Linux counts whom it killed for lack of memory: of a control group (``oom_kill`` in
# memory.events of version 2, in memory.oom_control of version 1:
# Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst), and of the whole machine
# (``oom_kill`` in /proc/vmstat). Other killers (earlyoom, systemd-oomd) leave no count: they act
# when little has been free for a while.
_LINE_SHOWN = 300

# What a native library says before it aborts, and what it says when it has no memory.
_LAST_WORDS = re.compile(r"assert|abort|terminate|what\(\)|error|fatal|fail", re.IGNORECASE)
_NO_MEMORY = re.compile(
    r"bad_alloc|out of memory|failed to allocate|cannot allocate memory|MemoryError", re.IGNORECASE
)
_SIGNAL_WORDS = {
    "SIGSEGV": "a wild memory access",
    "SIGBUS": "a wild memory access, or a model file that changed on disk",
    "SIGILL": "an instruction that this processor does not have",
    "SIGABRT": "the native library gave up",
    "SIGFPE": "an arithmetic error",
}

_SCARCE = 0.1  # of all memory; earlyoom's own limit
_WINDOW_S = 10.0  # a big process takes seconds to end after it was killed
_STALE_S = 30.0
_FILES = (("", "memory.events"), ("memory", "memory.oom_control"))  # by the controller's name


class Cause(StrEnum):
    """Why a worker process ended without being told to."""

    CRASH = "crash"  # a signal of its own making, or an exit
    ILLEGAL = "illegal"  # an instruction that the processor does not have
    MEMORY = "memory"  # it or the system says that memory ran out
    SCARCE = "scarce"  # killed from outside while little memory was free
    KILLED = "killed"  # from outside, or stopped there, and memory was not short
    IMPORT = "import"  # Python could not import what it needs, which no settings change
    HANG = "hang"  # it was killed here, after a step or a load without end


_KILLS = {
    Cause.MEMORY: "was killed: the machine ran out of memory",
    Cause.SCARCE: "was killed from outside (SIGKILL) while little memory was free",
    Cause.KILLED: "was killed from outside (SIGKILL)",
}


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker process ended; ``text`` continues the words "the worker process"."""

    cause: Cause
    text: str


def explain(code: int, lines: list[str], killed: Cause) -> Death:
    """From its exit code (negative: a signal), the last lines that it said, and what a SIGKILL
    would mean."""
    said = _last_words(lines)
    if code > 0 and (failure := import_failure("\n".join(lines))):
        return Death(Cause.IMPORT, failure)
    no_memory = any(_NO_MEMORY.search(line) for line in lines[-10:])
    crash = Cause.MEMORY if no_memory else Cause.CRASH
    if code >= 0:
        return Death(crash, f"ended with code {code}" + said)
    name = ending(code)
    if name == "SIGKILL":
        return Death(killed, _KILLS[killed])
    if name in {"SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT"}:
        return Death(Cause.KILLED, f"was ended from outside ({name})")
    words = f" ({_SIGNAL_WORDS[name]})" if name in _SIGNAL_WORDS else ""
    cause = Cause.ILLEGAL if name == "SIGILL" else crash
    return Death(cause, f"died of {name}{words}{said}")


def _last_words(lines: list[str]) -> str:
    """The last line that tells a reason, else the last one, as the end of a sentence."""
    telling = [line for line in lines if _LAST_WORDS.search(line)] or lines
    return f": {telling[-1].strip()[:_LINE_SHOWN]}" if telling else ""


class OomDetector:
    """Whether memory was short when a process was killed. ``look`` about once a second, from one
    thread at a time, while there is work."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int | None, float]] = deque()  # time, kills, share free
        self.look()

    def look(self) -> None:
        """See how it is now."""
        free, now = 1.0, time.monotonic()
        with contextlib.suppress(OSError):  # this process may open no more files
            memory = psutil.virtual_memory()
            free = memory.available / memory.total  # without swapping
        self._looks.append((now, oom_kills(), free))
        # The first one that is kept is older than the window: what it counted came before.
        while len(self._looks) > 1 and self._looks[1][0] < now - _WINDOW_S:
            self._looks.popleft()

    def cause(self) -> Cause:
        """Tell the likely cause of a SIGKILL just now."""
        looks, now = list(self._looks), time.monotonic()
        before, after = looks[0][1], oom_kills()
        if before is not None and after is not None and after > before:
            return Cause.MEMORY
        lately = [free for at, _, free in looks if at > now - _STALE_S]
        return Cause.SCARCE if min(lately, default=1.0) < _SCARCE else Cause.KILLED


def oom_kills() -> int | None:
    """Processes that Linux has killed for memory: of this control group, else of the machine.

    None where it does not tell.
    """
    files = [group / name for controller, name in _FILES for group in cgroup.groups(controller)]
    counts = (_count(path) for path in (*files, cgroup.ROOT / "proc/vmstat"))
    return next((count for count in counts if count is not None), None)


def _count(path: Path) -> int | None:
    found = re.search(r"^oom_kill (\d+)$", cgroup.kernel_text(path), re.MULTILINE)
    return int(found[1]) if found else None


# Settings that spare what a worker process has died of, and the state file that keeps them.
#
# Limits hold for a model's contents, the native library's files and the processor together: a
# rebuilt library, another model or another machine starts without them.
STATE = "worker"  # the state file
FORGET = f"{advised('runtimes.worker')} --forget"

_REVISION = 2  # of what counts as a crash: limits that an older version found do not hold
_KEPT = 32
_TOKENS_S = 7 * 24 * 3600.0  # how much memory was free then says little about today


@dataclass(frozen=True, slots=True)
class SettingsLimits:
    """Upper limits of settings."""

    extra_buffers: bool = True
    gpu: bool = True
    kv_tokens: int | None = None  # over all slots
    draft: bool = True

    def apply(self, settings: RunnerSettings, most_context: int) -> RunnerSettings:
        """Settings within the limits: fewer slots first, then a smaller context.

        ``most_context`` is the context that the model was made for.
        """
        settings = replace(
            settings,
            extra_buffers=settings.extra_buffers and self.extra_buffers,
            gpu_layers=settings.gpu_layers if self.gpu else 0,
            draft=settings.draft if self.draft else None,
            device=settings.device if self.gpu else "cpu",
            # An experimental part of llama.cpp, of no use without a GPU.
            device_sampling=settings.device_sampling and self.gpu and self.extra_buffers,
        )
        if self.kv_tokens is None:
            return settings
        context = min(settings.context or DEFAULT_CONTEXT, most_context)
        slots = max(1, min(settings.slots, self.kv_tokens // context))
        return replace(
            settings,
            slots=slots,
            context=min(context, self.kv_tokens // slots),
            kv_tokens=settings.kv_tokens and min(settings.kv_tokens, self.kv_tokens),
        )

    def describe(self) -> str:
        """The limits in words; empty without any."""
        most = f"with at most {self.kv_tokens or 0:,} tokens in all slots together"
        parts = {
            "without the GPU": self.gpu,
            "without special kernels, slower": self.extra_buffers,
            "without a draft": self.draft,
            most: not self.kv_tokens,
        }
        return " and ".join(text for text, free in parts.items() if not free)


@dataclass(frozen=True, slots=True)
class Record:
    """Stored state of a model: limits with their reason, and a crash that was seen only once."""

    bounds: SettingsLimits = SettingsLimits()  # called so in the state file
    reason: str = ""
    suspect: str = ""
    suspect_at: float = 0.0  # seconds since the epoch


def _from_json(value: Any) -> Record:
    """A record without what has become old; an empty one when it is none."""
    try:
        limits = SettingsLimits(**value["bounds"])
        suspect_at = float(value["suspect_at"])
        if time.time() > suspect_at + _TOKENS_S:
            limits = replace(limits, kv_tokens=None, draft=True)
        return Record(limits, str(value["reason"]), str(value["suspect"]), suspect_at)
    except (KeyError, TypeError, ValueError):
        return Record()


def limit_lines() -> list[str]:
    """A line for each model that is loaded with limits."""
    lines = []
    for value in load_state(STATE).values():
        record = _from_json(value)
        if record.bounds != SettingsLimits():
            name = Path(str(value.get("model"))).name
            lines.append(f"{name}: {record.bounds.describe()} ({record.reason})")
    return lines


def forget() -> None:
    """Drop all limits."""
    save_state(STATE, {})


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

    def __init__(self, path: Path, asked: RunnerSettings, limit: DeathLimit) -> None:
        self._path, self._asked, self._limit = path, asked, limit
        self.total = 0  # deaths so far
        self._deaths: deque[float] = deque()
        self._killed_loading = 0
        self._scarce_at = 0.0
        self._last: Death | None = None
        entries = load_state(STATE)
        self._record = _from_json(entries.get(self._key)) if entries and self._key else Record()
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

    @cached_property
    def _model(self) -> ModelFile | None:
        """The model's header, read when it is needed; None when it cannot be read."""
        try:
            return read_model(self._path)
        except ModelError:
            return None

    @cached_property
    def _key(self) -> str | None:
        """Key of the record in the state file; None where nothing names the model."""
        try:
            if self._model is None or (installed := find_installed(self._model.runtime)) is None:
                return None
            library = (installed.version, installed.identity, cpu_identity())
            parts = (fingerprint(self._model), *library, _REVISION)
        except ModelError:
            return None
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]

    def settings(self) -> RunnerSettings:
        """Return the settings that the next process loads with."""
        if self._limits == SettingsLimits():
            return self._asked
        model = self._model
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
        limits, settings, model = self._limits, self.settings(), self._model
        if ready:
            gpu, context, slots = ready.gpu, ready.stats.context, ready.stats.slots
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
        """Replace the record, also in the state file; an empty one is dropped there."""
        self._record = record
        if self._key is not None:
            name = {"model": str(self._path), "at": time.strftime("%Y-%m-%d %H:%M")}
            value = None if record == Record() else {**asdict(record), **name}
            save_entry(STATE, self._key, value, _KEPT)
