"""`ingot doctor --verify`: what works on this machine, proved by running it. One verification is
the checks in their order, within a time budget."""

import contextlib
import logging
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType

from app import demo
from app.doctor.checks import (
    CheckLine,
    CheckResult,
    Verdict,
    VerifyTarget,
    answers,
    cancel,
    devices,
    memory,
    planner,
    restart,
    skipped,
    speed,
)
from app.doctor.report import Report, check_files, examine
from app.models.planning import plan_files
from app.options import ModelOptions
from quantize.manifest import NAME
from runtimes.errors import IngotError
from runtimes.machine import processes
from runtimes.machine.cpu import cpu_use, others_share
from runtimes.machine.selftest import Health
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import backend, backend_of
from runtimes.paths import cache_dir
from runtimes.planner.plan import PlanWorkload

log = logging.getLogger(__name__)

# What proves most comes first: a short budget ends the list early.
_CHECKS: dict[str, Callable[[VerifyTarget], CheckResult]] = {
    "answers": answers,
    "restart": restart,
    "cancel": cancel,
    "memory": memory,
    "speed": speed,
}
_WORKLOADS: tuple[PlanWorkload, ...] = ("batch", "chat")
_LOOK_S = 1.0  # how long it is watched what others do


class _OutOfTimeError(Exception):
    """The budget ended within a check."""


@dataclass(slots=True)
class Verification:
    """Findings so far. ``begins`` is called before each check, ``ends`` after each line."""

    minutes: float
    begins: Callable[[CheckLine], None]
    ends: Callable[["Verification"], None]
    asked: Sequence[str] = ()  # models as the user named them
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    lines: list[CheckLine] = field(default_factory=list)
    machine: Report | None = None
    others: float | None = None  # share (0 to 1) of the processor that other programs took before
    interrupted: bool = False
    _start: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._start

    def check(self, line: CheckLine, call: Callable[[], CheckResult]) -> None:
        """Add ``line`` with what ``call`` finds. Ctrl-C is raised after its line."""
        self.begins(line)
        begin = time.monotonic()
        try:
            found = self._judge(call)
            line.verdict, line.found, line.figures = found.verdict, found.said, found.figures
        finally:
            line.seconds = time.monotonic() - begin
            self.lines.append(line)
            self.ends(self)

    def _judge(self, call: Callable[[], CheckResult]) -> CheckResult:
        left = 60 * self.minutes - self.seconds
        if left <= 0:
            return skipped(f"the {self.minutes:g} minutes were over")
        try:
            with _limit(left):
                return call()
        except _OutOfTimeError:
            return skipped(f"it did not fit the {self.minutes:g} minutes")
        except (IngotError, OSError) as error:
            return CheckResult("failed", str(error) or type(error).__name__)
        except Exception as error:  # a defect of Ingot must not take the other lines away
            log.debug("a check failed", exc_info=True)
            return CheckResult("failed", f"internal error: {type(error).__name__}: {error}")


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raises _OutOfTimeError within when so much time has passed, where the system can."""
    if sys.platform == "win32":
        yield
    else:

        def over(number: int, frame: FrameType | None) -> None:
            raise _OutOfTimeError

        before = signal.signal(signal.SIGALRM, over)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def verify(run: Verification) -> None:
    """All checks on the models that were asked for, or on Pebble. Ctrl-C ends it early."""
    try:
        _verify(run)
    except KeyboardInterrupt:  # also one that came between two checks
        run.interrupted = True


def _verify(run: Verification) -> None:
    run.check(CheckLine("machine"), partial(_machine, run))
    healths = run.machine.runtimes if run.machine else ()
    usable = any(health.usable for health in healths)
    for health in healths:
        line = CheckLine("self-test", backend(health.runtime).label)
        run.check(line, partial(_self_test, health, usable))
    asked = run.asked
    if not asked:
        run.check(CheckLine("build", file="pebble"), build_pebble)
        asked = [str(pebble())] if pebble().is_dir() else []
    working = {health.runtime: devices(health) for health in healths if health.usable}
    targets = [target for model in asked for target in _targets(run, model, working)]
    for name, check in _CHECKS.items():
        for target in targets:
            run.check(target.line(name), partial(check, target))
    for workload in _WORKLOADS if targets else ():
        for model in asked:
            call = partial(planner, model, workload, run.others or 0.0)
            run.check(CheckLine("planner", file=Path(model).name), call)


def _machine(run: Verification) -> CheckResult:
    before = cpu_use()
    time.sleep(_LOOK_S)
    run.others = others_share([(before, cpu_use())])
    run.machine = examine()
    hardware = run.machine.hardware
    busy = f"others took {run.others:.0%} of the processor"
    return CheckResult("passed", f"{hardware.cpu}, {hardware.usable_cores} usable cores; {busy}")


def _self_test(health: Health, any_usable: bool) -> CheckResult:
    if health.version is None and any_usable:
        return skipped(health.warning or "not installed")
    where = f"devices: {', '.join(devices(health))}" if health.usable else ""
    said = [health.version or "", " ".join(health.kernels), where, health.warning or ""]
    return CheckResult("passed" if health.usable else "failed", "; ".join(filter(None, said)))


def _targets(
    run: Verification, model: str, working: Mapping[str, tuple[str, ...]]
) -> list[VerifyTarget]:
    """The files of ``model`` on every device that can run them."""
    name, files = Path(model).name, list[ModelFile]()
    run.check(CheckLine("checksums", file=name), partial(whole, model))
    run.check(CheckLine("files", file=name), partial(read, model, files))
    targets = []
    for file in files:
        label = backend_of(file).label
        if file.runtime in working and not file.encodes:
            targets += [VerifyTarget(file, device) for device in working[file.runtime]]
        else:
            why = "it embeds texts and writes none" if file.encodes else f"{label} does not work"
            run.check(CheckLine("run", label, file=file.path.name), partial(skipped, why))
    return targets


# The model files that a verification runs: those of MODEL, or Pebble's.

_EXTRA = "pip install 'ingot[quantize]'"


def pebble() -> Path:
    """The folder of the demo model's files: what `make demo` has built, or the cache's."""
    built = demo.ROOT / demo.BUILT
    return built if (built / NAME).is_file() else cache_dir() / "verify" / "pebble"


def build_pebble() -> CheckResult:
    """Make Pebble's files where they are not there. Raises IngotError saying what to do."""
    folder, source = pebble(), demo.ROOT / demo.MODEL
    if (folder / NAME).is_file():
        return CheckResult("passed", "there already")
    if not source.is_dir():
        return skipped("the demo model comes with Ingot's source only; name a MODEL to verify with")
    # Under another name until it is whole.
    making = folder.with_name(f"{folder.name}-making")
    command = ("-m", "quantize", source, "--out", making, "--no-measure")
    done = processes.run(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [processes.ending(done.returncode)]
        raise IngotError(
            f"the demo model could not be built: {said[-1]}; {_EXTRA} brings what it needs,"
            " or name a MODEL"
        )
    shutil.rmtree(folder, ignore_errors=True)
    making.rename(folder)
    return CheckResult("passed", "built from the demo model")


def whole(model: str) -> CheckResult:
    """Compare the bytes of the files with those that were built or pulled.

    Skipped where nothing says what they should be; else raises as ``check_files``.
    """
    path = Path(model)
    if path.exists() and not (path / NAME).is_file():
        return skipped("there are no checksums to compare with")
    found = list(check_files(model))
    damaged = [f"{one.path.name} {one.problem}" for one in found if one.problem]
    said = "; ".join(damaged) or f"{len(found)} files as they were built"
    figures = {"files": len(found), "damaged": len(damaged)}
    return CheckResult("failed" if damaged else "passed", said, figures)


def read(model: str, into: list[ModelFile]) -> CheckResult:
    """Add the files that can be read, of every width. Raises as ``plan_files``."""
    files = plan_files(model, ModelOptions(), "any")
    into += files.models
    names = [one.path.name for one in files.models]
    broken = "; ".join(f"{name}: {why}" for name, why in files.unreadable)
    verdict: Verdict = "failed" if broken else "passed"
    return CheckResult(verdict, broken or ", ".join(names), {"files": names})
