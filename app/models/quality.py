"""What a file stores for a weight, and how far that has moved it from the original."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from app.models.entries import ModelEntry
from quantize.recipes.bits import gguf_bits
from runtimes.errors import ModelError
from runtimes.models.gguf import read_parts

_LEAST_KL = 0.0001  # of what four places can say


@dataclass(frozen=True, slots=True)
class FileQuality:
    """Of one file; None where nobody knows."""

    bytes: int | None = None
    bits: float | None = None  # a weight, scales included, as the file really stores them
    kl: float | None = None  # nats from the original, the mean over the tokens of a text
    same_top: float | None = None  # the share of tokens (0 to 1) with the original's likeliest one
    accuracy: float | None = None  # the share of right answers on tasks (0 to 1)


def file_quality(entry: ModelEntry) -> FileQuality:
    """What the manifest beside the file has measured of this very file, else what its header says.

    Reading the header of a GGUF file with a large vocabulary takes up to half a second.
    """
    if entry.broken:  # what the manifest says is of another file than this one is now
        entry = replace(entry, bytes=None, fidelity=None, quality=None, bits_per_weight=None)
    fidelity, quality, bits = entry.fidelity, entry.quality, entry.bits_per_weight
    if bits is None and entry.format == "gguf":
        try:
            bits = _bits(entry.path, entry.path.stat().st_mtime_ns)
        except (ModelError, OSError):  # damaged, or without tensors
            bits = None
    return FileQuality(
        bytes=entry.bytes,
        bits=bits,
        kl=fidelity.kl_mean if fidelity else None,
        same_top=fidelity.same_top if fidelity else None,
        accuracy=quality.task_accuracy if quality else None,
    )


def with_bits(entry: ModelEntry) -> ModelEntry:
    """``entry`` with what its file stores for a weight; see ``file_quality``."""
    return replace(entry, bits_per_weight=file_quality(entry).bits)


@lru_cache(maxsize=256)
def _bits(path: Path, changed: int) -> float:
    """``changed`` makes a file that was replaced another one."""
    return gguf_bits(read_parts(path)[0])


def quality_text(found: FileQuality) -> str:
    """Such as "4.6 bits · KL 0.041"; what is not known is left out."""
    parts = [f"{found.bits:.1f} bits"] if found.bits is not None else []
    if found.kl is not None:
        parts.append(kl_text(found.kl))
    elif found.accuracy is not None:
        parts.append(f"{found.accuracy:.0%} of tasks")
    return " · ".join(parts)


def kl_text(kl: float) -> str:
    """Such as "KL 0.041": nats, with two digits that count."""
    if kl < _LEAST_KL:
        return f"KL <{_LEAST_KL}"
    return f"KL {kl:.3f}" if kl >= 0.01 else f"KL {kl:.4f}"


def quality_of(entry: ModelEntry) -> str:
    """A picker's cell: how far from the original, else the share of right answers on tasks."""
    if entry.fidelity is not None:
        return kl_text(entry.fidelity.kl_mean)
    return f"{entry.quality.task_accuracy:.1%}" if entry.quality is not None else ""


def quality_order(entry: ModelEntry) -> tuple[int, float]:
    """Sorts the nearest to the original first, then by tasks, then what was not measured."""
    if entry.fidelity is not None:
        return 0, entry.fidelity.kl_mean
    return (1, -entry.quality.task_accuracy) if entry.quality is not None else (2, 0.0)
