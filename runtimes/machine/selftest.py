"""Prove a native runtime in a child process before it is used on this machine for the first time.

A library that was compiled wrongly for this processor dies of a signal, hangs, or computes garbage.
Which settings work is remembered for the processor, the library's version and its very files.
"""

import hashlib
import logging
import time
from dataclasses import asdict, dataclass
from typing import Any

from runtimes.backend import Device
from runtimes.errors import RuntimeMissingError
from runtimes.machine.cpu import cpu_identity
from runtimes.machine.installed import Installed, find_installed
from runtimes.machine.linechild import LineChild, LineChildError
from runtimes.machine.state_file import load_state, save_entry
from runtimes.models.modelfile import RuntimeName
from runtimes.models.registry import backend

log = logging.getLogger(__name__)

_STATE = "selftest"
_REVISION = 5  # of the test itself: what an older one found does not count
_KEPT = 16
_TIMEOUT_S = 120.0
ATTENTION_DEPTH = 2048  # tokens behind which the kernels of attention are timed
# Of the speed with flash attention to that without. Measured on an idle and on a busy processor:
# 1.2 to 1.5 with the kernel that set-up compiles in, 0.6 with llama.cpp's own.
_LEAST_RATIO = 0.8

# Right builds reach 0.9999 (other kernels round differently); with half of any one weight matrix
# lost, the worst checkpoint is at 0.96 or below.
_LEAST_SIMILARITY = 0.995


@dataclass(frozen=True, slots=True)
class Health:
    """Result of the self-test of one runtime."""

    runtime: RuntimeName
    usable: bool
    extra_buffers: bool  # llama.cpp may repack weights for its fastest kernels
    version: str | None
    kernels: tuple[str, ...]
    warning: str | None  # a line for the user when it is missing, slower than it could be, broken
    transient: bool = False  # the machine, not the library, may be to blame: test again next time
    devices: tuple[Device, ...] = ()  # as they were when it was tested
    # Speed behind ATTENTION_DEPTH tokens with llama.cpp's flash attention, over that without it, on
    # the processor; None where there are no two kernels.
    attention: float | None = None

    @property
    def flash_attention(self) -> bool:
        """Whether it is the kernel to take: it needs less memory, and so may be a little slower."""
        return self.attention is None or self.attention >= _LEAST_RATIO


def ensure(runtime: RuntimeName, *, again: bool = False, announce: bool = True) -> Health:
    """The health of a runtime: remembered, or tested now (a second or so).

    The warning of a new finding is logged once, here, unless ``announce`` is off. ``again`` tests
    whatever is remembered.
    """
    installed = find_installed(runtime)
    if installed is None:
        return Health(runtime, False, False, None, (), _missing(runtime))
    if not again and (known := _known(installed)):
        return known
    log.info("testing %s %s on this processor", backend(runtime).label, installed.version)
    health = _test(installed)
    if not health.transient:
        save_entry(_STATE, _key(installed), asdict(health), _KEPT)
    if health.warning and announce:
        log.warning("%s", health.warning)
    return health


def remembered(runtime: RuntimeName) -> Health | None:
    """Return the stored result for the installed library; None if it was not tested yet. Takes
    milliseconds."""
    installed = find_installed(runtime)
    return _known(installed) if installed else None


def require(runtime: RuntimeName) -> Health:
    """Like ``ensure``, but raises RuntimeMissingError when the runtime cannot be used."""
    health = ensure(runtime)
    if not health.usable:
        raise RuntimeMissingError(health.warning or _missing(runtime))
    return health


def _missing(runtime: RuntimeName) -> str:
    missing = backend(runtime)
    return f"{missing.label} is not installed; install it with: {missing.install}"


def _key(installed: Installed) -> str:
    parts = (installed.runtime, installed.version, installed.identity, cpu_identity(), _REVISION)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


# Only what native code did to its process is the library's fault for certain.
_PASSING = frozenset({"outside", "import", "failed"})


def _test(installed: Installed) -> Health:
    """Try the fastest settings, then safer ones."""
    runtime, version = installed.runtime, installed.version
    tried = backend(runtime)
    try:
        said = _run_child(runtime, safe=False)
        return Health(runtime, True, True, version, warning=None, **said)
    except LineChildError as error:
        safe = fast = error
    if fast.why == "import":  # Python did not get as far as the library
        warning = f"{tried.label} {version} could not be tested: {fast}"
        return Health(runtime, False, False, version, (), warning, True)
    if "extra_buffers" in tried.knows:
        try:
            said = _run_child(runtime, safe=True)
            warning = (
                f"{tried.label}'s fastest kernels fail on this processor ({fast}); running "
                f"without them, slower. To get the full speed: {tried.reinstall}"
            )
            passing = fast.why in _PASSING
            return Health(runtime, True, False, version, warning=warning, transient=passing, **said)
        except LineChildError as error:
            safe = error
    warning = (
        f"{tried.label} {version} does not work on this machine ({safe}); "
        f"install it again with: {tried.reinstall}"
    )
    # Where nothing answers in time, not even the safe settings, the machine may just be busy.
    transient = bool({fast.why, safe.why} & _PASSING) or safe.why == "hung"
    return Health(runtime, False, False, version, (), warning, transient)


def _run_child(runtime: RuntimeName, *, safe: bool) -> dict[str, Any]:
    """Run the self-test in a child; return its report: the kernels that ran, the devices beside
    the processor, and how fast attention is. Raises LineChildError, whose ``why`` is also "outside"
    for a kill from there, and "wrong" for wrong logits."""
    words = (runtime, "--safe") if safe else (runtime,)
    started = time.monotonic()
    # Passive: on a busy machine, threads that wait by spinning make this ten times slower.
    passive = {"OMP_WAIT_POLICY": "passive"}
    module, name = "runtimes.machine.selftest_child", "the self-test"
    try:
        with LineChild(module, *words, name=name, environment=passive) as child:
            report: dict[str, Any] = child.answer(_TIMEOUT_S)
    except LineChildError as error:
        # SIGKILL comes from outside, mostly from a system that is out of memory.
        if str(error).endswith(("SIGKILL", "SIGTERM")):
            error.why = "outside"
        raise
    log.debug("%s answered in %.1f s", words, time.monotonic() - started)
    if not report["similarity"] >= _LEAST_SIMILARITY:
        text = f"wrong results in the self-test (similarity {report['similarity']:.2f})"
        raise LineChildError(text, "wrong")
    del report["similarity"]
    return _typed(report)


def _typed(said: dict[str, Any]) -> dict[str, Any]:
    """Fields of a ``Health`` that were JSON, in their own types."""
    devices = tuple(Device(**one) for one in said["devices"])
    return {**said, "kernels": tuple(said["kernels"]), "devices": devices}


def _known(installed: Installed) -> Health | None:
    """A remembered finding; None when there is none."""
    record = load_state(_STATE).get(_key(installed))
    if not isinstance(record, dict):
        return None
    try:
        return Health(**_typed(record))
    except (KeyError, TypeError):
        return None
