"""The contract between the engine and a native runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """What the engine asks of a runner; ``None`` lets the runner choose.

    ``context`` is tokens per slot, ``batch`` the most tokens in one step, ``extra_buffers`` whether
    llama.cpp may repack weights for the processor's special kernels, ``unified_kv`` whether its
    slots share one cache: steps may then mix prefill and decode in any order, but attention walks
    every slot's cells, so that a row's last digits depend on its companions.
    """

    slots: int = 4
    context: int | None = None
    batch: int = 512
    threads: int | None = None
    gpu_layers: int = -1
    extra_buffers: bool = True
    unified_kv: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the loaded runner can do."""

    runtime: str
    slots: int
    context: int  # tokens per slot
    batch: int  # most tokens in one step
    vocab_size: int
    mixed_batch: bool  # one step may hold prefill of several rows and decode together


@dataclass(frozen=True, slots=True)
class StepRow:
    """One slot's share of a step: ``tokens`` go in at ``position``, logits come after the last."""

    slot: int
    position: int
    tokens: Sequence[int]
    wants_logits: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass. Rows are in ascending slot order, no slot twice."""

    rows: tuple[StepRow, ...]


def consecutive_runs(rows: Sequence[StepRow], most_missing: int = 2) -> list[list[StepRow]]:
    """Rows in ascending slot order, cut wherever more than ``most_missing`` slots are missing.

    A runner that needs consecutive slots fills the few that are missing inside a run with rows that
    are thrown away; beyond that, another pass over the weights is cheaper.
    """
    runs: list[list[StepRow]] = []
    for row in rows:
        if runs and row.slot - runs[-1][-1].slot - 1 <= most_missing:
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs


class Tokenizer(Protocol):
    """Text to ids and back, exactly as the model file defines it."""

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends a generation."""

    def encode(
        self, text: str, *, add_special: bool = False, parse_special: bool = True
    ) -> list[int]:
        """Ids of ``text``; ``add_special`` adds BOS/EOS as the model wants them."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; empty for control tokens."""


class Runner(Protocol):
    """Executes steps over KV slots. Owned by one thread; not thread-safe."""

    @property
    def capabilities(self) -> Capabilities:
        """Fixed once loaded."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""

    def execute(self, plan: StepPlan) -> Logits:
        """Run one step: float32 [rows that want logits, vocab_size], in row order.

        The array is valid until the next call. Raises OutOfMemoryError or ModelError.
        """

    def trim(self, slot: int, length: int) -> None:
        """Forget what the slot holds from position ``length`` on; 0 frees it."""

    def score(self, tokens: Sequence[int]) -> Logits:
        """Logits after every position: [len(tokens), vocab_size]. Needs an idle runner."""

    def close(self) -> None:
        """Free native memory. A second call does nothing."""
