"""The loop of every fuzzer: cases made of a seed and a number, with bounds and a sentinel.

A case is a folder of its own and a `random.Random` of the target's name, the seed and the case's
number, so that ``python -m tests.fuzz --only NAME --seed S --case N`` is that case again. What a
case must not do: raise anything but what the target expects, take longer than `MOST_CPU_S`, or
change a file outside its folder. A case that does is kept in a folder of `failures`.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
MOST_CPU_S = 5.0  # of a case: processor time, which a busy machine does not stretch
CASE_S = 150.0  # a case that takes longer stalls
MOST_FOUND = 20
Figures = Counter[str]


def built() -> Path:
    """Pebble's files: INGOT_TEST_BUILT, or those of `make demo`."""
    found = Path(os.environ.get("INGOT_TEST_BUILT") or ROOT / "assets" / "pebble-built")
    if not (found / "manifest.json").is_file():
        raise SystemExit(f"{found} has no models: run `make demo` first")
    return found


@dataclass
class Case:
    """One case: what it draws from, and the empty folder that it writes to."""

    number: int
    random: Random
    folder: Path
    figures: Figures

    def write(self, name: str, data: bytes | str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data)
        return path


class FoundError(AssertionError):
    """Violations, with the figures of the run that found them."""

    def __init__(self, violations: list[str], figures: dict[str, int]) -> None:
        super().__init__("\n".join(violations))
        self.violations, self.figures = violations, figures


@dataclass
class Findings:
    """Violations of a run: each is kept in a folder, with what made it."""

    target: str
    seed: int
    first: bool = field(default_factory=lambda: bool(os.environ.get("INGOT_FUZZ_FIRST")))
    violations: list[str] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    repeats: int = 0

    def add(
        self, what: str, number: int, said: str, files: Path | dict[str, bytes], kind: str = ""
    ) -> None:
        """Keep a violation, unless there is one of its ``kind`` already."""
        if kind in self.kinds:
            self.repeats += 1
            return
        self.kinds |= {kind} if kind else set()
        kept = failures() / f"{self.target}-{self.seed}-{number}"
        shutil.rmtree(kept, ignore_errors=True)
        if isinstance(files, Path):
            shutil.copytree(files, kept, symlinks=True, ignore_dangling_symlinks=True)
        kept.mkdir(parents=True, exist_ok=True)
        for name, data in files.items() if isinstance(files, dict) else ():
            (kept / name).write_bytes(data)
        (kept / "violation.txt").write_text(f"{what}\n\n{said}\n", "utf-8", "backslashreplace")
        again = f"python -m tests.fuzz --only {self.target} --seed {self.seed} --case {number}"
        self.violations.append(f"{self.target}: {what} (kept in {kept}; again: {again})")

    @property
    def enough(self) -> bool:
        return len(self.violations) >= (1 if self.first else MOST_FOUND)

    def end(self, figures: Figures) -> dict[str, int]:
        """The figures; raises FoundError where there is a violation."""
        figures["violations"] = len(self.violations)
        if self.repeats:
            figures["violations_again"] = self.repeats
        if self.violations:
            raise FoundError(self.violations, dict(figures))
        return dict(figures)


def failures() -> Path:
    """Where failing cases are kept."""
    return Path(os.environ.get("INGOT_FUZZ_KEPT") or ROOT / ".fuzz")


def numbers(seconds: float, count: int | None) -> Iterator[int]:
    """Numbers of cases until the time is over or there were ``count``. INGOT_FUZZ_CASE names the
    only one; INGOT_FUZZ_BEGUN a file that has the number of the case that runs."""
    only, begun = os.environ.get("INGOT_FUZZ_CASE"), os.environ.get("INGOT_FUZZ_BEGUN")
    if only is not None:
        yield int(only)
        return
    number, end = 0, time.monotonic() + seconds
    while time.monotonic() < end and (count is None or number < count):
        if begun:
            Path(begun).write_text(str(number))
        yield number
        number += 1


def loop(
    target: str,
    one: Callable[[Case], object],
    seconds: float,
    seed: int,
    count: int | None = None,
) -> dict[str, int]:
    """Run ``one`` on cases. Figures: cases, and the slowest one's milliseconds of processor time.
    Raises FoundError."""
    figures, findings, slowest = Counter[str](), Findings(target, seed), 0.0
    with tempfile.TemporaryDirectory(prefix=f"ingot-fuzz-{target}-") as base, _own_home(Path(base)):
        before = _sentinel(Path(base))
        for number in numbers(seconds, count):
            folder = Path(base) / "cases" / "one"
            folder.mkdir(parents=True)
            case = Case(number, Random(f"{target}:{seed}:{number}"), folder, figures)
            begun = time.process_time()
            if "INGOT_FUZZ_BEGUN" in os.environ:  # a child: its stack is told, and it ends
                faulthandler.dump_traceback_later(CASE_S, exit=True)
            try:
                one(case)
            except Exception as error:
                where = _place_of(error)
                said = str(error).encode("ascii", "backslashreplace").decode()[:300]
                what = f"{type(error).__name__} at {where}: {said}"
                kind = f"{type(error).__name__} at {where}"
                findings.add(what, number, traceback.format_exc(), folder, kind)
            took = time.process_time() - begun
            slowest = max(slowest, took)
            if took > MOST_CPU_S:
                findings.add(f"took {took:.1f} s of processor time", number, "", folder)
            if (now := _look(Path(base))) != before:
                changed = sorted(before.items() ^ now.items())
                findings.add(f"changed what is not its own: {changed}"[:500], number, "", folder)
                before = now
            figures["cases"] += 1
            if findings.enough:
                break
            _empty(folder)
    figures["slowest_ms"] = round(1000 * slowest)
    return findings.end(figures)


def _place_of(error: Exception) -> str:
    """The last line of Ingot's own that was running."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        one for one in frames if one.filename.startswith(f"{ROOT}/") and ".venv" not in one.filename
    ]
    last = (own or frames)[-1]
    return f"{last.filename.removeprefix(f'{ROOT}/')}:{last.lineno}"


@contextmanager
def _own_home(base: Path) -> Iterator[None]:
    with mock.patch.dict(os.environ, {"INGOT_HOME": str(base / "home"), "HF_HOME": f"{base}/hf"}):
        yield


def _sentinel(base: Path) -> dict[str, bytes]:
    """Files beside the cases that nobody may touch."""
    for name in ("cases/beside.txt", "sentinel/notes.txt", "sentinel/.git/config", "precious"):
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"mine: {name}\n".encode())
    return _look(base)


def _look(base: Path) -> dict[str, bytes]:
    own = [base / "cases" / "one", base / "home", base / "hf"]
    found: dict[str, bytes] = {}
    for folder, names, files in os.walk(base):
        names[:] = [name for name in names if Path(folder, name) not in own]
        for name in (*names, *files):
            path = Path(folder, name)
            found[str(path.relative_to(base))] = path.read_bytes() if path.is_file() else b"/"
    return found


def _empty(folder: Path) -> None:
    for path, names, _ in os.walk(folder):
        for name in names:
            if not Path(path, name).is_symlink():
                Path(path, name).chmod(0o700)
    shutil.rmtree(folder)
