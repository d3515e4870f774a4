"""A model file's figures in words."""

import time

from app.figures import rate
from app.models.catalog import Fit
from app.models.entries import Entry, Origin
from quantize.disk import human
from quantize.report.facts import is_steady

_ORIGINS = {
    Origin.LIBRARY: "pulled from the hub",
    Origin.BUILT: "built by quantize",
    Origin.FILE: "a file by itself",
}


def type_of(entry: Entry) -> str:
    """Such as "gguf 6.2 bits", a weight; "gguf 4-bit" after its name where that is not known."""
    bits = f"{entry.bits}-bit" if entry.bits else ""
    if entry.bits_per_weight is not None:
        bits = f"{entry.bits_per_weight:.1f} bits"
    return " ".join(part for part in (entry.format or "", bits) if part) or "?"


def size_of(entry: Entry) -> str:
    """Such as "4.7 MB"."""
    return human(entry.bytes) if entry.bytes is not None else "?"


def speed_of(entry: Entry) -> str:
    """Decode of one row in tokens a second; empty where nobody has measured it."""
    return "" if entry.decode_tps is None else rate(entry.decode_tps).removesuffix(" tok/s")


def quality_of(entry: Entry) -> str:
    """The share of right answers, or of positions with the original's likeliest token ("same")."""
    if entry.quality is not None:
        return f"{entry.quality.task_accuracy:.1%}"
    return f"same {entry.fidelity.same_top:.0%}" if entry.fidelity is not None else ""


def state_of(entry: Entry, fit: Fit | None) -> str:
    """Whether it can be loaded: "fits", "too big", "broken", or empty while that is not known."""
    if entry.broken:
        return "broken"
    if fit is None:
        return ""
    return "fits" if fit.fits else "too big"


def details(entry: Entry, fit: Fit | None) -> list[str]:
    """Lines about one file: what it is, whether it can be used, its speed, its quality, notes."""
    lines = [f"{type_of(entry)} · {size_of(entry)} · {_ORIGINS[entry.origin]}", str(entry.path)]
    if entry.broken:
        return [*lines, f"Cannot be used: {entry.broken}"]
    if fit is not None:
        lines.append(_memory(fit))
    return [*lines, _speed(entry), _quality(entry), *(f"Note: {note}" for note in entry.notes)]


def _memory(fit: Fit) -> str:
    can = "fits" if fit.fits else "does not fit"
    return (
        f"Memory: needs {human(fit.needs)} with {fit.context:,} tokens of context, "
        f"{human(fit.free)} are free: {can} (the model knows up to {fit.file.context_length:,})"
    )


def _speed(entry: Entry) -> str:
    said = []
    if entry.measured is not None:
        figures = entry.measured.figures
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.measured.made))
        chosen = ", its choice" if entry.measured.chosen else ""
        said.append(
            f"{rate(figures.decode_tps[min(figures.decode_tps)])} decode,"
            f" {rate(figures.prefill_tps)} prefill here (ingot plan, {day}{chosen})"
        )
    if entry.speed is not None:
        built = entry.speed
        said.append(
            f"{rate(built.decode_tps_1)} decode, {rate(built.prefill_tps)} prefill,"
            f" {rate(built.decode_tps_16)} with 16 rows where it was built"
            f"{' (a busy machine)' if built.ranges and not is_steady(built) else ''}"
        )
    return "Speed: " + ("; ".join(said) or "not measured; `ingot plan` does it")


def _quality(entry: Entry) -> str:
    said = []
    if entry.quality is not None:
        said.append(
            f"{entry.quality.task_accuracy:.1%} of {entry.quality.questions:,} answers right"
        )
    if entry.fidelity is not None:
        found = entry.fidelity
        said.append(f"the original's likeliest token at {found.same_top:.1%} of positions")
        said.append(f"KL {found.kl_mean:.4f}")
        said.append(f"perplexity {found.perplexity.value:,.4g}")
    if entry.parity is not None:
        differ = entry.parity.differences
        equal = f"{differ:,} of {entry.parity.lines:,} lines differ" if differ else "equal"
        said.append(f"token ids {equal}")
    return "Quality: " + ("; ".join(said) or "not measured")
