"""Tables in Markdown from samples: medians, their scatter, and what is slower than a peer."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SIGMAS = 2.0  # of single samples: two medians of as many lie further apart in one of twenty cases
_EVEN = 0.005  # a ratio this near to 1 is none


@dataclass(frozen=True)
class Value:
    """Samples of one figure. A ``share`` scatters by points, whatever its size; others in parts of
    themselves. ``ranges``: the least and the most of laps that were kept without their samples."""

    samples: tuple[float, ...]
    form: str = ""
    share: bool = False
    ranges: tuple[float, float] | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> tuple[float, ...]:
        return self.ranges or self.samples

    def off(self) -> float:
        """The furthest that one sample lies from the median, as a part of it or in points."""
        most = max(abs(one - self.median) for one in self.spread)
        return most if self.share or not self.median else most / abs(self.median)

    def __str__(self) -> str:
        form = self.form or (".1%" if self.share else _digits(self.median))
        return format(self.median, form)


def _digits(value: float) -> str:
    """Three digits, as far as they say something."""
    return ",.0f" if abs(value) >= 99.5 else ".1f" if abs(value) >= 9.95 else ".2f"


@dataclass(frozen=True)
class Table:
    """Cells of one section. ``notes`` stand under it."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | Value]]
    notes: Sequence[str] = ()

    def values(self) -> dict[str, Value]:
        """Each figure by what it is of: the row's words and the column."""
        found = {}
        for row in self.rows:
            said = ", ".join(cell for cell in row if isinstance(cell, str) and cell)
            for column, cell in zip(self.head, row, strict=True):
                if isinstance(cell, Value):
                    found[f"{said}: {column}"] = cell
        return found

    def scatter(self, share: bool) -> float | None:
        """How far a figure of a repeated run may be off: of all cells together, None where no
        figure was taken twice."""
        squares, freedom = 0.0, 0
        for one in self.values().values():
            if one.share == share and len(one.spread) > 1:
                mean = statistics.fmean(one.spread)
                scale = 1.0 if share else mean
                squares += sum(((sample - mean) / scale) ** 2 for sample in one.spread)
                freedom += len(one.spread) - 1
        return _SIGMAS * math.sqrt(squares / freedom) if freedom else None

    def allowed(self, value: Value) -> float | None:
        """How far this figure may be off."""
        usual = self.scatter(value.share)
        return None if usual is None else max(usual, value.off())

    def lines(self) -> Iterator[str]:
        """Markdown."""
        yield _line(self.head)
        yield "|" + "---|" * len(self.head)
        for row in self.rows:
            yield _line([cell if isinstance(cell, str) else self._told(cell) for cell in row])
        yield ""
        said = [f"±{_percent(usual)}"] if (usual := self.scatter(False)) else []
        if points := self.scatter(True):
            said.append(f"±{100 * points:.1f} points of percentages")
        yield "Scatter: " + (", ".join(said) + "." if said else "unknown, nothing ran twice.")
        if self.notes:
            yield from ("", *self.notes)

    def _told(self, value: Value) -> str:
        usual = self.scatter(value.share)
        if usual is None or len(value.spread) < 2 or value.off() <= usual:
            return str(value)
        off = value.off()
        return f"{value} ±{100 * off:.1f}" if value.share else f"{value} ±{_percent(off)}"


def _percent(part: float) -> str:
    return f"{100 * part:.0f}%" if part >= 0.0095 else f"{100 * part:.1f}%"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


@dataclass(frozen=True)
class Peer:
    """The same work by Ingot and another program. ``ratio``: of their speeds, round by round."""

    work: str
    name: str
    ours: Value
    theirs: Value
    ratio: Value

    @classmethod
    def of(cls, work: str, name: str, ours: Value, theirs: Value) -> Peer:
        """Speeds, whose samples of one number were taken in one round."""
        pairs = zip(ours.samples, theirs.samples, strict=False)
        return cls(work, name, ours, theirs, Value(tuple(a / b for a, b in pairs), ".2f"))


def slower(peers: Iterable[Peer]) -> Iterator[str]:
    """All that Ingot is slower at, the worst first, in Markdown."""
    peers = list(peers)
    found = sorted((one for one in peers if one.ratio.median < 1 - _EVEN), key=_ratio)
    if not found:
        yield f"In none of {len(peers)} comparisons with other programs."
        return
    yield f"In {len(found)} of {len(peers)} comparisons with other programs, the worst first:"
    yield ""
    rows = [[p.work, p.name, p.ours, p.theirs, p.ratio, _range(p.ratio)] for p in found]
    head = ("work", "beside", "Ingot, tok/s", "they, tok/s", "ratio", "of the rounds")
    yield from list(Table(head, rows).lines())[: 2 + len(rows)]


def _ratio(peer: Peer) -> float:
    return peer.ratio.median


def _range(value: Value) -> str:
    least, most = min(value.samples), max(value.samples)
    said = f"{least:.2f}" if len(value.samples) == 1 else f"{least:.2f} to {most:.2f}"
    return said + (", so perhaps not" if most >= 1 else "")


_BLOCK = "(<!-- figures: {} -->\n)(.*?)(<!-- /figures -->)"


def markers(text: str) -> list[str]:
    """Names of the blocks of a document."""
    return [match[2] for match in re.finditer(_BLOCK.format("(.+?)"), text, re.DOTALL)]


def filled(text: str, blocks: Mapping[str, str]) -> str:
    """A document with these blocks in place of the old ones; others stay."""
    for name, block in blocks.items():
        pattern = re.compile(_BLOCK.format(re.escape(name)), re.DOTALL)
        text = pattern.sub(lambda match, new=block: f"{match[1]}\n{new}\n\n{match[3]}", text)
    return text


def fill(paths: Iterable[Path], blocks: Mapping[str, str]) -> list[Path]:
    """Write the documents that change."""
    changed = []
    for path in paths:
        before = path.read_text(encoding="utf-8")
        after = filled(before, blocks)
        if after != before:
            path.write_text(after, encoding="utf-8")
            changed.append(path)
    return changed


def unequal(old: Mapping[str, Table], new: Mapping[str, Table]) -> list[str]:
    """Figures of both that lie further apart than their scatter, in words."""
    said = []
    for name in old.keys() & new.keys():
        before, after = old[name].values(), new[name].values()
        for what in sorted(before.keys() & after.keys()):
            one, other = before[what], after[what]
            bounds = [old[name].allowed(one), new[name].allowed(other)]
            allowed = max((bound for bound in bounds if bound is not None), default=0.0)
            apart = abs(other.median - one.median)
            scale = 1.0 if one.share else max(abs(one.median), 1e-12)
            if str(one) != str(other) and apart / scale > allowed:
                said.append(f"{name}, {what}: {one} and {other}, scatter ±{allowed:.1%}")
    return sorted(said)
