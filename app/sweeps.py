"""Speeds by the number of rows, one at a time against many at once: what `ingot bench --sweep` has
measured, as tables and words, and where the last of it is kept."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from app.figures import aligned, duration
from quantize.disk import outfile
from quantize.fromjson import GARBLED, from_json
from runtimes.output import json_text
from runtimes.paths import cache_dir
from runtimes.settings import KvType

OURS = "ingot"  # the side that is Ingot
PROBE = (512, 1)  # a long prompt: the most operations a second that a file's kernels reach


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One measurement: who does which work."""

    file: str
    kv_type: KvType
    prompt: int
    answer: int
    rows: int
    side: str

    @property
    def size(self) -> float:
        """How long it takes, loading and repeating included, beside others of the same side."""
        return (self.answer + self.prompt / 6) * (5 + math.pow(self.rows, 0.7))


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Medians of a cell's runs, tokens and bytes a second among them. ``problem``: why it has
    none."""

    cell: SweepCell
    seconds: tuple[float, ...] = ()  # of each run
    tps: float = 0.0  # generated tokens over all the time, prefill included
    ttft_s: float | None = None
    tpot_s: float | None = None
    prefill_tps: float | None = None
    memory: int | None = None  # resident bytes
    bytes_per_s: float | None = None  # that decode steps read
    operations_per_s: float | None = None  # multiplications in decode steps, or of the probe
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Findings of a sweep. ``bandwidth``: bytes a second that the memory gives, as measured."""

    cpu: str
    threads: int
    bandwidth: float
    measured: tuple[SweepResult, ...]

    def peak(self, file: str) -> float | None:
        """Operations a second that a long prompt of the file reached."""
        found = (one for one in self.measured if one.cell.file == file and is_probe(one.cell))
        return next((one.operations_per_s for one in found), None)


def is_probe(cell: SweepCell) -> bool:
    """Whether it is not part of the sweep, but says what the processor can do."""
    return (cell.prompt, cell.answer) == PROBE


def told(cell: SweepCell) -> str:
    """A cell in words."""
    if is_probe(cell):
        return f"{cell.file}, a prompt of {cell.prompt}"
    kind = f" {cell.kv_type}" if cell.kv_type != "f16" else ""
    side = f", {cell.side}" if cell.side != OURS else ""
    rows = f"{cell.rows} row{'s' * (cell.rows > 1)}"
    return f"{cell.file}{kind}{side}, {cell.prompt} + {cell.answer} tokens, {rows}"


Group = tuple[int, int]  # tokens of a prompt and of its answer


def groups(sweep: Sweep) -> dict[Group, dict[tuple[str, str], list[SweepResult]]]:
    """Results by lengths, then by file and type of the cache."""
    found: dict[Group, dict[tuple[str, str], list[SweepResult]]] = {}
    for one in sweep.measured:
        cell = one.cell
        if not is_probe(cell):
            files = found.setdefault((cell.prompt, cell.answer), {})
            files.setdefault((cell.file, cell.kv_type), []).append(one)
    return found


def named(name: str, kind: str) -> str:
    """A file with its type of the cache, where that is not the usual one."""
    return name if kind == "f16" else f"{name}, {kind} cache"


def by_side(measured: Sequence[SweepResult]) -> dict[str, dict[int, SweepResult]]:
    """By the number of rows, for each side."""
    found: dict[str, dict[int, SweepResult]] = {}
    for one in measured:
        found.setdefault(one.cell.side, {})[one.cell.rows] = one
    return found


def tables(sweep: Sweep) -> Iterator[tuple[str, list[list[str]]]]:
    """A title and a table, its head first, for each file, type of the cache, and lengths."""
    for (prompt, answer), files in groups(sweep).items():
        for (name, kind), measured in files.items():
            sides, peak = by_side(measured), sweep.peak(name)
            ours, *others = (sides[OURS], *(one for one in sides if one != OURS))
            alone = ours[1].tps if 1 in ours else None
            table = [[*_HEAD, *others, *(["ratio to the best"] if others else [])]]
            for rows, one in ours.items():
                theirs = [_speed(sides[other], rows) for other in others]
                ratio = f"{one.tps / max(theirs):.2f}" if any(theirs) else ""
                line = [
                    str(rows),
                    f"{one.tps:,.1f}",
                    f"{one.tps / alone:.2f}x" if alone else "",
                    duration(one.ttft_s) if one.ttft_s is not None else "",
                    f"{1e3 * one.tpot_s:,.1f} ms" if one.tpot_s else "",
                    f"{one.memory / 1e6:,.0f}" if one.memory else "",
                    _share(one.bytes_per_s, sweep.bandwidth),
                    _share(one.operations_per_s, peak),
                    *(f"{tps:,.1f}" if tps else "failed" for tps in theirs),
                ]
                table.append([*line, ratio] if others else line)
            yield f"{named(name, kind)}: {prompt} + {answer} tokens", table


_HEAD = ("rows", "tok/s", ": 1 row", "TTFT", "TPOT", "MB", "bandwidth", "operations")


def _share(part: float | None, whole: float | None) -> str:
    return f"{part / whole:.0%}" if part and whole else ""


def _speed(side: dict[int, SweepResult], rows: int) -> float:
    """A side that has one row at a time is as fast with many; 0 where it failed."""
    return side[rows if rows in side else min(side)].tps


def text(sweep: Sweep) -> list[str]:
    """Lines for people."""
    lines = [about(sweep), ""]
    for title, table in tables(sweep):
        lines += [title, *aligned(table, left=0), ""]
    lines += verdicts(sweep)
    problems = {
        f"{one.cell.side} on {one.cell.file}: {one.problem}"
        for one in sweep.measured
        if one.problem
    }
    return [*lines, *sorted(problems)]


def about(sweep: Sweep) -> str:
    """Machine and meaning of the columns."""
    return (
        f"{sweep.cpu}, {sweep.threads} threads, {sweep.bandwidth / 1e9:.1f} GB/s read. Rows begin"
        " together; tok/s are generated tokens over all the time, prefill included; bandwidth is"
        " what decode steps read of what the memory gives, operations those of decode steps beside"
        " a long prompt's."
    )


def verdicts(sweep: Sweep) -> list[str]:
    """Sentences of what batching gains, and which file is first, for each length."""
    said = []
    for (prompt, answer), files in groups(sweep).items():
        ours = {key: by_side(measured)[OURS] for key, measured in files.items()}
        name, rows, times = "", 0, 0.0
        for key, found in ours.items():
            best = max(found.values(), key=lambda one: one.tps)
            if 1 in found and best.tps / found[1].tps > times:
                name, rows, times = named(*key), best.cell.rows, best.tps / found[1].tps
        if times:
            said.append(
                f"{prompt} + {answer} tokens: batched over one after another at most {times:.2f}x"
                f" ({name}, {rows} row{'s' * (rows > 1)})"
            )
        firsts: dict[str, list[int]] = {}
        for count in sorted({rows for found in ours.values() for rows in found}):
            having = [key for key in ours if count in ours[key]]
            fastest = max(having, key=lambda key: ours[key][count].tps)
            firsts.setdefault(named(*fastest), []).append(count)
        if len(ours) > 1:
            told = "; ".join(f"{n} ({', '.join(map(str, c))})" for n, c in firsts.items())
            said.append(f"{prompt} + {answer} tokens, fastest by rows: {told}")
    return said


def last_path() -> Path:
    """The file of the sweep that was finished last."""
    return cache_dir() / "sweeps" / "last.json"


def keep(sweep: Sweep) -> None:
    """Write it to ``last_path``. Raises OSError."""
    with outfile(last_path()) as partial:
        partial.write_text(json_text(asdict(sweep)), encoding="utf-8")


def last() -> tuple[Sweep, float] | None:
    """The sweep that was finished last, and when; None without one that can be read."""
    path = last_path()
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return from_json(Sweep, value), path.stat().st_mtime
    except (OSError, *GARBLED):
        return None
