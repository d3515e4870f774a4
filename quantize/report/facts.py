"""What a manifest's figures amount to: which files are worth having, and which one to take."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from quantize.manifest import FileEntry, Manifest

_Measure = Callable[[FileEntry], float | None]
_LEAST_KL = 1e-7  # below it, single precision decides: drawn and compared as equal


def megabytes(size: int) -> str:
    """Bytes as MB, with a decimal below 100."""
    value = size / 1e6
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def title(entry: FileEntry) -> str:
    """Such as "4-bit ONNX (onnx-int4)"."""
    return f"{entry.bits}-bit {entry.format.upper()} ({entry.recipe})"


def divergence(entry: FileEntry) -> float | None:
    """Mean KL divergence in nats, at least 1e-7; None when not measured or not a number."""
    if entry.fidelity is None or not math.isfinite(entry.fidelity.kl_mean):
        return None
    return max(entry.fidelity.kl_mean, _LEAST_KL)


def decode_speed(entry: FileEntry) -> float | None:
    """Tokens a second with one row."""
    return entry.speed.decode_tps_1 if entry.speed and entry.speed.decode_tps_1 > 0 else None


def batch_speed(entry: FileEntry) -> float | None:
    """Tokens a second with 16 rows."""
    return entry.speed.decode_tps_16 if entry.speed and entry.speed.decode_tps_16 > 0 else None


def pareto_front(entries: Sequence[FileEntry]) -> list[FileEntry]:
    """The files for which no other is as small and diverges less; by size."""
    front: list[FileEntry] = []
    measured = [(e.bytes, kl, e) for e in entries if (kl := divergence(e)) is not None]
    for _, kl, entry in sorted(measured, key=lambda item: item[:2]):
        if not front or kl < (divergence(front[-1]) or 0.0):
            front.append(entry)
    return front


def recommended(entries: Sequence[FileEntry]) -> FileEntry | None:
    """The file on the front that is best on the whole; None when nothing was measured.

    Size, divergence, and both speeds together count alike: each as its place between the best and
    the worst of the measured files, on a logarithmic scale.
    """
    measured = [entry for entry in entries if divergence(entry) is not None]
    front = pareto_front(measured)
    if not front:
        return None

    def score(entry: FileEntry) -> tuple[float, int]:
        speed = _place(entry, measured, decode_speed, high=True)
        speed += _place(entry, measured, batch_speed, high=True)
        size = _place(entry, measured, lambda e: float(e.bytes))
        return size + _place(entry, measured, divergence) + speed / 2, entry.bytes

    return min(front, key=score)


def sentence(manifest: Manifest, entry: FileEntry) -> str:
    """Such as "4-bit ONNX (onnx-int4): 3.1x smaller than the original, 2.0x faster here than q8_0,
    96.8% same top token", as much of it as was measured."""
    parts = []
    if manifest.model.bytes and entry.bytes:
        parts.append(f"{manifest.model.bytes / entry.bytes:.1f}x smaller than the original")
    largest = max(manifest.files, key=lambda e: (decode_speed(e) is not None, e.bytes))
    mine, other = decode_speed(entry), decode_speed(largest)
    if mine and other and largest != entry:
        ratio = mine / other
        faster = f"{ratio:.1f}x faster" if ratio >= 1 else f"{1 / ratio:.1f}x slower"
        parts.append(f"{faster} here than {largest.recipe}")
    elif mine:
        parts.append(f"{mine:,.0f} tokens a second here")
    if entry.fidelity:
        parts.append(f"{entry.fidelity.same_top:.1%} same top token")
    if entry.quality:
        parts.append(f"{entry.quality.task_accuracy:.1%} of the graded questions right")
    return f"{title(entry)}: {', '.join(parts)}" if parts else title(entry)


def alternatives(manifest: Manifest) -> list[tuple[str, FileEntry]]:
    """The extremes: what each is best at, and the file."""
    found: list[tuple[str, FileEntry]] = []
    measures: tuple[tuple[str, _Measure, bool], ...] = (
        ("closest to the original", divergence, False),
        ("smallest", lambda e: float(e.bytes), False),
        ("fastest for one conversation", decode_speed, True),
        ("fastest for 16 at once", batch_speed, True),
    )
    for label, measure, high in measures:
        known = [(value, e) for e in manifest.files if (value := measure(e)) is not None]
        if len(known) > 1:
            pick = max if high else min
            found.append((label, pick(known, key=lambda item: item[0])[1]))
    return found


def _place(
    entry: FileEntry, among: Sequence[FileEntry], measure: _Measure, *, high: bool = False
) -> float:
    """0 for the best, 1 for the worst, on a logarithmic scale; 1 when not measured."""
    value = measure(entry)
    known = [math.log(v) for e in among if (v := measure(e))]
    if not value or not known:
        return 1.0 if known else 0.0
    low, top = min(known), max(known)
    if low == top:
        return 0.0
    place = (math.log(value) - low) / (top - low)
    return 1 - place if high else place
