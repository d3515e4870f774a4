"""The choice of a cache's types beside those of the weights: one sum of bytes, one sum of
divergence."""

import math
from collections.abc import Callable, Sequence

from quantize.allocate.solve import TypeChoice
from quantize.quality.fidelity import CacheLosses
from runtimes.settings import KvType


def choose_cache(
    mixes: Sequence[TypeChoice], room: Callable[[KvType], float], found: CacheLosses
) -> KvType:
    """The types of keys and values with which the best weights for what memory they leave,
    ``room(types)`` bytes, are predicted to lose least. ``mixes`` are weights by size, the smallest
    first. Where not even those fit beside any cache, it is the smallest cache."""
    kinds = ["f16", *dict.fromkeys(kind.replace("f16", "").strip(":") for kind in found.losses)]
    pairs = {
        (keys if keys == values else f"{keys}:{values}"): found.of(keys, values)
        for keys in kinds
        for values in kinds
    }
    lost = {pair: loss + _best(mixes, room(pair)) for pair, loss in pairs.items()}
    best = min(lost, key=lambda pair: lost[pair])
    return best if math.isfinite(lost[best]) else max(pairs, key=room)


def _best(mixes: Sequence[TypeChoice], room: float) -> float:
    """Predicted loss of the best weights in so many bytes, between two mixes by a straight line in
    the logarithm of the loss; infinite where none is as small."""
    smaller = [mix for mix in mixes if mix.bytes <= room]
    if not smaller:
        return math.inf
    below = smaller[-1]
    if len(smaller) == len(mixes):
        return below.kl
    above = mixes[len(smaller)]
    if min(below.kl, above.kl) <= 0:
        return below.kl
    part = (room - below.bytes) / (above.bytes - below.bytes)
    return below.kl * math.exp(part * math.log(above.kl / below.kl))
