"""The types of a file that was built for a target, as layers against roles."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from quantize.manifest import FileEntry
from quantize.report.facts import bits_of, by_layer, depth, summary


@dataclass(frozen=True, slots=True)
class Cell:
    """A tensor's type: the bits in its name, and how dark it is drawn (0 to 1)."""

    kind: str
    digit: str
    depth: float


@dataclass(frozen=True, slots=True)
class TypeMap:
    """``roles`` are such as "attn_v", each with a cell for every one of ``layers``, None where a
    layer has no such tensor. ``others`` belong to no layer. ``told`` is what was predicted and
    measured, and what the next megabyte buys."""

    layers: tuple[int, ...]
    roles: tuple[tuple[str, tuple[Cell | None, ...]], ...]
    others: tuple[tuple[str, Cell], ...]
    told: str

    @property
    def kinds(self) -> tuple[tuple[Cell, int], ...]:
        """Every type that is in use, the fewest bits first, and how many tensors have it."""
        cells = [cell for _, row in self.roles for cell in row if cell is not None]
        counts: dict[Cell, int] = {}
        for cell in (*cells, *(cell for _, cell in self.others)):
            counts[cell] = counts.get(cell, 0) + 1
        return tuple(sorted(counts.items(), key=lambda found: (found[0].depth, found[0].kind)))


def type_map(entry: FileEntry) -> TypeMap | None:
    """None for a file that was built by a recipe."""
    if entry.allocation is None:
        return None
    layers, others = by_layer(entry.allocation.types)
    names: Iterable[str] = dict.fromkeys(role for row in layers.values() for role in row)
    return TypeMap(
        tuple(layers),
        tuple(
            (name, tuple(_cell(row[name]) if name in row else None for row in layers.values()))
            for name in sorted(names)
        ),
        tuple((name.removesuffix(".weight"), _cell(kind)) for name, kind in others.items()),
        summary(entry, entry.allocation),
    )


def _cell(kind: str) -> Cell:
    found = re.search(r"\d+", kind)
    bits = int(found[0]) if found else round(bits_of(kind))
    return Cell(kind, str(bits) if bits < 10 else "F", depth(kind))
