"""Which build of a model to take on this machine."""

from dataclasses import dataclass
from functools import lru_cache

from app.figures import rate
from app.models.remote import Contents, RemoteBuild, Verdict
from runtimes.machine.installed import find_installed
from runtimes.models.registry import backends

_READING = 10.0  # tokens a second, about as fast as people read
_LOSSLESS = 9.0  # bits a weight: above, files are larger and not better
_GOOD = 4.0  # bits a weight, below which quality falls quickly


@dataclass(frozen=True, slots=True)
class Advice:
    """The build to take, and why in one line."""

    build: RemoteBuild
    why: str


@lru_cache(maxsize=1)
def bandwidth() -> float:
    """Bytes a second that this machine reads from memory; takes half a second the first time."""
    from runtimes.machine.bandwidth import memory_bandwidth
    from runtimes.machine.cpu import available_cores

    return memory_bandwidth(available_cores())


def advise(
    found: Contents, parameters: int | None, free: int, bandwidth: float | None
) -> Advice | None:
    """The largest build that fits with room and answers faster than one reads; None when nothing
    fits. A token of a dense model needs each byte of it once, so ``bandwidth``, in bytes a second,
    bounds its speed."""
    usable = {one.format for one in backends() if find_installed(one.name)}
    there = [build for build in found.builds if build.kept.kind in usable]
    room = [one for one in there if one.need.verdict(free) is Verdict.FITS]
    fitting = room or [one for one in there if one.need.verdict(free) is Verdict.TIGHT][:1]
    useful = [b for b in fitting if (b.bits(parameters) or 0) < _LOSSLESS] or fitting[:1]
    if not useful:
        return None
    best = useful[-1]
    why = "the largest that fits with room" if room else "the only size that fits, without room"
    if len(useful) < len(fitting):
        why = "the largest below 16 bits, which would be no better" if room else why
    if bandwidth is None or found.mixture:
        return Advice(best, f"{best.kept.label}: {why}")
    quick = [one for one in useful if bandwidth / one.kept.size >= _READING]
    if quick and quick[-1] is not best:
        best, why = quick[-1], "the largest that fits and keeps up with reading"
    elif not quick:
        good = [one for one in useful if (one.bits(parameters) or _GOOD) >= _GOOD]
        best, why = (good or useful[-1:])[0], "the quickest of good quality, and still slow here"
    speed = f"; at most {rate(bandwidth / best.kept.size)} (memory bandwidth)"
    return Advice(best, f"{best.kept.label}: {why}" + speed)
