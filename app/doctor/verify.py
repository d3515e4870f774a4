"""`ingot doctor --verify`: what works on this machine, proved by running it. One verification is
the checks in their order, within a time budget; its report is lines in a terminal, and one JSON and
one Markdown file to send, without what says who or where the user is."""

import contextlib
import getpass
import itertools
import logging
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from app import demo
from app.bench.frame import rounded
from app.console import emit
from app.doctor.checks import (
    CheckLine,
    CheckResult,
    Verdict,
    VerifyTarget,
    answers,
    cancel,
    counts,
    devices,
    memory,
    planner,
    restart,
    skipped,
    speed,
)
from app.doctor.report import Report, check_files, examine, rows
from app.here import here, numbered, real
from app.models.planning import plan_files
from app.options import ModelOptions
from quantize.disk import write_atomically
from quantize.manifest import NAME
from runtimes.errors import IngotError, RequestError
from runtimes.machine import processes
from runtimes.machine.cpu import cpu_use, others_share
from runtimes.machine.installed import versions
from runtimes.machine.selftest import Health
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import backend, backend_of
from runtimes.output import json_text, markdown
from runtimes.paths import cache_dir, data_dir, state_dir
from runtimes.planner.plan import PlanWorkload
from runtimes.untrusted import visible

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


_ROOT = r"(?<![\w.])(?:[A-Za-z]:)?[\\/]"
# A folder and what is in it, from a root on; in quotes it may have spaces.
_PATHS = (
    re.compile(_ROOT + r"[^'\"\n]*[\\/]([^\\/'\"\n]*)(?=['\"])"),
    re.compile(_ROOT + r"(?:[^\s\\/:;,'\"()|<>]+[\\/])+([^\s\\/:;,'\"()|<>]*)"),
)
_ABOUT = ("verdict", "runtime", "device", "file")
_WIDTH = 110
_KNOWN = "/\ue000"  # stands for a folder that is known, which may have spaces too


class ReportFiles:
    """The two files of one report; they are there from the start, so that nothing can hinder the
    end."""

    def __init__(self, folder: Path, day: str) -> None:
        """New names in ``folder``, which is made. Raises RequestError where nothing can be
        written."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for stem in numbered(f"ingot-verify-{day}"):
                self.json, self.markdown = folder / f"{stem}.json", folder / f"{stem}.md"
                if self.markdown.exists():
                    continue
                with contextlib.suppress(FileExistsError):
                    self.json.touch(exist_ok=False)
                    break
        except OSError as error:
            raise RequestError(
                f"--out: {folder} cannot be written to: {error.strerror}; name another folder"
            ) from error

    def write(self, run: Verification) -> None:
        """Write both files as things are now."""
        data = as_json(run)
        write_atomically(self.json, json_text(data, 1) + "\n")
        write_atomically(self.markdown, as_markdown(run, data))


def as_json(run: Verification) -> dict[str, Any]:
    """The report for programs."""
    data: dict[str, Any] = {
        "ingot": versions(["ingot"]).get("ingot", "not installed"),
        "date": f"{run.began:%Y-%m-%d %H:%M} UTC",
        "minutes_allowed": run.minutes,
        "seconds": run.seconds,
        "interrupted": run.interrupted,
        "verdicts": counts(run.lines),
        "others_share_before": run.others,
        "machine": run.machine.as_json() if run.machine else None,
        "lines": [asdict(line) for line in run.lines],
    }
    cleaned: dict[str, Any] = Cleaner(run.asked).clean(rounded(data))
    return cleaned


def as_markdown(run: Verification, data: Mapping[str, Any]) -> str:
    """The report for people, from what ``as_json`` has made."""
    told = ", ".join(f"{count} {name}" for name, count in counts(run.lines).items())
    ended = "; it was interrupted" if run.interrupted else ""
    about = f"{data['date']}, {run.seconds:.0f} s of {run.minutes:g} minutes{ended}: {told}."
    lines = [f"# Ingot {data['ingot']} on this machine", "", about]
    for check, same in itertools.groupby(data["lines"], key=lambda line: line["check"]):
        lines += ["", f"## {check}", ""]
        for line in same:
            about = ", ".join(filter(None, map(line.get, _ABOUT)))
            lines.append(_item(about, f"{line['found']} ({line['seconds']:.1f} s)"))
    if run.machine:
        cleaner = Cleaner(run.asked)
        lines += ["", "## what the machine is", ""]
        lines += [_item(name, cleaner.clean(found)) for name, found in rows(run.machine)]
    return "\n".join(lines) + "\n"


def _item(name: str, text: str) -> str:
    return textwrap.fill(
        f"- {markdown(name)}: {markdown(text)}",
        _WIDTH,
        subsequent_indent="  ",
        break_long_words=False,
    )


class Cleaner:
    """Takes folders, the user's name and the machine's out of texts."""

    def __init__(self, models: Sequence[str] = ()) -> None:
        """``models`` are those that were asked for, whose folders are nobody's business either."""
        folders = {Path.home(), Path(sys.prefix), Path(tempfile.gettempdir())}
        folders |= {cache_dir(), data_dir(), state_dir(), here()}
        for one in map(Path, models):
            folders |= {one.parent, real(one).parent}
        known = {str(one) for one in folders if one.is_absolute() and one != Path(one.anchor)}
        self._folders = sorted(known, key=len, reverse=True)  # one may be in another
        names = {socket.gethostname()}
        with contextlib.suppress(OSError, KeyError, ImportError):
            names.add(getpass.getuser())
        words = "|".join(re.escape(name) for name in names if name)
        self._names = re.compile(rf"(?<!\w)(?:{words})(?!\w)" if words else r"(?!)")

    def clean(self, value: Any) -> Any:
        """Clean every text in ``value``."""
        if isinstance(value, Mapping):
            return {key: self.clean(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.clean(item) for item in value]
        if isinstance(value, str):
            for folder in self._folders:
                value = value.replace(folder, _KNOWN)
            for path in _PATHS:
                value = path.sub(r".../\1", value)
            value = self._names.sub("...", value.replace(_KNOWN, "..."))
        return value


_COLOURS = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


# The lines as they come, and in a terminal below them what is checked now.


def _about(line: CheckLine) -> str:
    where = f"{line.runtime} {line.device}".strip()
    return "  ".join(filter(None, (line.check, where, line.file)))


@contextmanager
def shown(
    *, silent: bool
) -> Iterator[tuple[Callable[[CheckLine], None], Callable[[CheckLine], None]]]:
    """Functions that show a check that begins, and a line. Where stdout is for the report itself,
    ``silent``, they show nothing."""
    from rich.text import Text

    from quantize.terminal import Console

    console = Console(quiet=silent, highlight=False, soft_wrap=True)
    with console.status("") as status:

        def begins(line: CheckLine) -> None:
            status.update(Text(visible(_about(line))))

        def ends(line: CheckLine) -> None:
            told = f"  {_about(line)}  {line.found}"
            if console.is_terminal:
                console.print(Text.assemble((line.verdict, _COLOURS[line.verdict]), visible(told)))
            elif not silent:  # a name of a file may hold what an encoding lacks
                emit(f"{line.verdict}{told}\n")

        yield begins, ends
