"""Rounding that makes up for its errors: GPTQ (E. Frantar et al., arXiv:2210.17323, algorithm 1).

Columns are rounded one after the other, and those that are left take what an error changes in the
outputs, as far as their inputs are correlated with the inputs of the column that has it.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from quantize.arrays import Array, Bytes, Floats, Ints

NORMS = "norms.npz"  # lengths of the columns of each tensor, in a folder of `write_moments`
SHARES = "shares.json"  # what `share_left` tells of each tensor, there
_BITS, BLOCK, _ROWS = 4, 32, 64  # what that is told by: blocks as long, and about so many rows
_DAMPINGS = (0.01, 0.1, 1.0)  # of the mean of the moments' diagonal: the first that is enough

# What rounds a column of a block: its weights [outputs] and its place there -> codes, and the
# weights that these stand for.
Nearest = Callable[[Floats, int], tuple[Array, Floats]]


@dataclass(frozen=True, slots=True)
class Turns:
    """The order in which columns are rounded: ``blocks``, and ``places`` [blocks, block] in each.
    By ``upper`` [inputs, inputs] those that are left take their errors."""

    blocks: Ints
    places: Ints
    upper: Floats


def turns_of(moments: Floats, block: int) -> Turns:
    """Turns of blocks as long, for inputs x the mean of whose x x' is ``moments``."""
    blocks, places = _order(np.diagonal(moments).reshape(-1, block))
    order = (blocks[:, None] * block + places).ravel()
    return Turns(blocks, places, _upper(moments[np.ix_(order, order)]))


def compensated(weight: Array, turns: Turns, begin: Callable[[int, Floats], Nearest]) -> Bytes:
    """Codes [outputs, blocks, block] of ``weight`` [outputs, inputs], whose blocks fill its rows.

    ``begin`` is called with the number of a block and what its weights [outputs, block] are by
    then, and finds their scales.
    """
    (outputs, inputs), block, upper = weight.shape, turns.places.shape[1], turns.upper
    x = np.asarray(weight, np.float32)[:, (turns.blocks[:, None] * block + turns.places).ravel()]
    codes = np.empty((outputs, inputs // block, block), np.uint8)
    errors = np.empty((outputs, block), np.float32)
    for turn, (at, inside) in enumerate(zip(turns.blocks, turns.places, strict=True)):
        here = slice(turn * block, (turn + 1) * block)
        part, inner = np.ascontiguousarray(x[:, here]), upper[here, here]
        nearest = begin(int(at), part[:, np.argsort(inside)])
        for column, place in enumerate(inside):
            codes[:, at, place], values = nearest(part[:, column], int(place))
            off = (part[:, column] - values) / inner[column, column]
            part[:, column:] -= np.outer(off, inner[column, column:])
            errors[:, column] = off
        x[:, here.stop :] -= errors @ upper[here, here.stop :]
    return codes


def share_left(weight: Floats, moments: Floats, judges: Floats) -> float:
    """Share of what the outputs lose by rounding ``weight`` to `_BITS` that is left where errors
    are made up for by the ``moments``; with a bit or two more it is nearly the same. Taken over
    some of its rows, which are whole blocks, with another text's moments as ``judges``: a text says
    less of others than of itself."""
    rows = np.ascontiguousarray(weight[:: -(-len(weight) // _ROWS)], np.float32)
    turns = turns_of(moments, BLOCK)
    plain = _lost(rows, judges, replace(turns, upper=np.eye(len(moments), dtype=np.float32)))
    return min(_lost(rows, judges, turns) / plain, 1.0) if plain > 0 else 1.0


def _lost(rows: Floats, moments: Floats, turns: Turns) -> float:
    """Mean square of the outputs' errors, with the scales of the largest weights."""
    half, values = 1 << (_BITS - 1), np.empty_like(rows)

    def begin(at: int, part: Floats) -> Nearest:
        scale = np.abs(part).max(axis=1) / (half - 0.5) + np.finfo(np.float32).tiny
        here = values[:, at * BLOCK : (at + 1) * BLOCK]

        def nearest(x: Floats, place: int) -> tuple[Array, Floats]:
            steps = np.clip(np.rint(x / scale), -half, half - 1)
            here[:, place] = steps * scale
            return steps + half, here[:, place]

        return nearest

    compensated(rows, turns, begin)
    off = values - rows
    return float(np.einsum("oi,oi->", off @ moments, off, dtype=np.float64))


def _order(energy: Floats) -> tuple[Ints, Ints]:
    """Blocks by their ``energy`` [blocks, block], the largest first, and the places in each so:
    what comes late takes the errors of all before it."""
    blocks = np.argsort(-energy.sum(axis=1), kind="stable")
    return blocks, np.argsort(-energy, axis=1, kind="stable")[blocks]


def _upper(moments: Floats) -> Floats:
    """U with U'U the inverse of the ``moments``, whose diagonal is raised a little: a text says
    little of inputs that it hardly has."""
    mean = float(np.diagonal(moments).mean()) or 1.0
    for damping in _DAMPINGS:
        damped = moments.astype(np.float64)
        damped[np.diag_indices_from(damped)] += damping * mean
        with suppress(np.linalg.LinAlgError):
            return np.asarray(np.linalg.cholesky(np.linalg.inv(damped)).T, np.float32)
    return np.eye(len(moments), dtype=np.float32)  # nothing is made up for
