"""Rounding that makes up for its errors: GPTQ (E. Frantar et al., arXiv:2210.17323, algorithm 1).

Columns are rounded one after the other, and those that are left take what an error changes in the
outputs, as far as their inputs are correlated with the inputs of the column that has it.
"""

from collections.abc import Callable
from contextlib import suppress

import numpy as np

from quantize.arrays import Array, Bytes, Floats, Ints

NORMS = "norms.npz"  # lengths of the columns of each tensor, in a folder of `write_moments`
_DAMPINGS = (0.01, 0.1, 1.0)  # of the mean of the moments' diagonal: the first that is enough

# What rounds a column of a block: its weights [outputs] and its place there -> codes, and the
# weights that these stand for.
Nearest = Callable[[Floats, int], tuple[Array, Floats]]


def compensated(
    weight: Array, moments: Floats, block: int, begin: Callable[[int, Floats], Nearest]
) -> Bytes:
    """Codes [outputs, blocks, block] of ``weight`` [outputs, inputs], whose blocks fill its rows.

    ``moments`` [inputs, inputs] are the mean of x x' over inputs x. ``begin`` is called with the
    number of a block and what its weights [outputs, block] are by then, and finds their scales.
    """
    (outputs, inputs), energy = weight.shape, np.diagonal(moments)
    blocks, places = _order(energy.reshape(-1, block))
    order = (blocks[:, None] * block + places).ravel()
    x = np.asarray(weight, np.float32)[:, order]
    upper = _upper(moments[np.ix_(order, order)])
    codes = np.empty((outputs, inputs // block, block), np.uint8)
    errors = np.empty((outputs, block), np.float32)
    for turn, (at, inside) in enumerate(zip(blocks, places, strict=True)):
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
