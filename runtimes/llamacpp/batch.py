"""A ``llama_batch`` over NumPy arrays: filling it costs microseconds, not a call per token."""

import ctypes
from typing import Any

import numpy as np

from runtimes.llamacpp.native import library
from runtimes.runner import StepPlan


class Batch:
    """Room for ``capacity`` tokens, each in one sequence."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._token = np.zeros(capacity, np.int32)
        self._pos = np.zeros(capacity, np.int32)
        self._seq = np.zeros(capacity, np.int32)
        self._counts = np.ones(capacity, np.int32)
        self._logits = np.zeros(capacity, np.int8)
        # Token i's list of sequences is element i of _seq: wired once, only values change.
        self._seq_pointers = (
            self._seq.ctypes.data + np.arange(capacity, dtype=np.uintp) * self._seq.itemsize
        ).astype(np.uintp)
        self.native = self._wire()

    def _wire(self) -> Any:
        lib = library()
        int32 = ctypes.POINTER(ctypes.c_int32)
        native = lib.llama_batch()
        native.embd = None
        native.token = ctypes.cast(self._token.ctypes.data, int32)
        native.pos = ctypes.cast(self._pos.ctypes.data, int32)
        native.n_seq_id = ctypes.cast(self._counts.ctypes.data, int32)
        native.seq_id = ctypes.cast(self._seq_pointers.ctypes.data, ctypes.POINTER(int32))
        native.logits = ctypes.cast(self._logits.ctypes.data, ctypes.POINTER(ctypes.c_int8))
        return native

    def fill(self, plan: StepPlan, *, every: bool = False) -> int:
        """Lay the plan's rows out one after another; return how many rows of logits there will be:
        those that rows ask for, or with ``every`` one for each token.
        """
        at = outputs = 0
        for row in plan.rows:
            end = at + len(row.tokens)
            self._token[at:end] = row.tokens
            self._pos[at:end] = range(row.position, row.position + len(row.tokens))
            self._seq[at:end] = row.slot
            self._logits[at:end] = every
            if row.logits and not every:
                self._logits[end - row.logits : end] = 1
                outputs += row.logits
            at = end
        self.native.n_tokens = at
        return at if every else outputs
