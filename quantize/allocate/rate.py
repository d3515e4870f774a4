"""What the types of a format cost and lose, tried on a tensor's weights."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantize.allocate.sweep import Array, Matrix
from quantize.allocate.table import Unit
from runtimes.errors import ModelError

SAMPLE = 1 << 18  # weights of a tensor that are rounded in every type; of more a sample of rows

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rater:
    """How a format's table is made: ``rate`` tells what each of its types takes and loses, of a
    tensor whose sensitivities were summed over so many tokens. It is called in a child process.
    ``key`` is a hash of what decides the table besides the code in this folder."""

    key: str
    rate: Callable[[Matrix, int], Unit]


def losses(
    tensor: Matrix, kinds: Iterable[str], stored: Callable[[Array, str, int], Array]
) -> dict[str, float]:
    """The divergence by type, summed over the tokens, that ``stored`` causes: it makes of rows of
    the tensor's matrix of that number what the type stores. Raises ModelError."""
    found = dict.fromkeys(kinds, 0.0)
    most = SAMPLE // len(tensor.weight)
    for i, (weight, fisher) in enumerate(zip(tensor.weight, tensor.fisher, strict=True)):
        rows, scale = _sampled(weight, fisher, most)
        weight, worth = weight[rows], fisher[rows] * scale[:, None]
        for kind in found:
            moved = stored(weight, kind, i) - weight
            found[kind] += 0.5 * float((worth * moved**2).sum(dtype=np.float64))
    if not np.isfinite(list(found.values())).all():
        raise ModelError(f"{tensor.name} has weights or gradients that are not finite")
    return found


def _sampled(weight: Array, fisher: Array, most: int) -> tuple[Ints, Array]:
    """Rows whose errors stand for those of all, and how many rows each stands for: those that
    matter most by themselves, and of the rest some that are drawn."""
    rows, keep = len(weight), max(64, most // weight.shape[1])
    if rows <= keep:
        return np.arange(rows), np.ones(rows, np.float32)
    order = np.argsort(-np.einsum("ij,ij,ij->i", fisher, weight, weight))
    top, rest = order[: keep // 2], order[keep // 2 :]
    drawn = np.random.default_rng(0).choice(rest, keep - len(top), replace=False)
    scale = np.ones(keep, np.float32)
    scale[len(top) :] = len(rest) / len(drawn)
    return np.concatenate([top, drawn]), scale
