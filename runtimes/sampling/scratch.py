"""Buffers of a row's size that are kept: fresh pages would cost a step more than the work."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

BLOCK = 1024  # weights are summed in blocks of this many


class Scratch(threading.local):
    """Each thread's own buffers, of the largest vocabulary that it has met.

    ``copy``, ``weights`` and ``spare`` are float32, ``mask`` is bool. ``weights`` is a multiple of
    ``BLOCK`` long.
    """

    copy: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float32]
    spare: npt.NDArray[np.float32]
    mask: npt.NDArray[np.bool_]

    def __init__(self) -> None:
        self._make(0)

    def fit(self, vocabulary: int) -> Scratch:
        """Itself, with buffers at least that long."""
        if len(self.weights) < vocabulary:
            self._make(-(-vocabulary // BLOCK) * BLOCK)
        return self

    def _make(self, size: int) -> None:
        self.copy, self.weights, self.spare = (np.empty(size, np.float32) for _ in range(3))
        self.mask = np.empty(size, np.bool_)


SCRATCH = Scratch()
