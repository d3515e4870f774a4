"""The contract between the engine and a native runtime."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from runtimes.errors import ModelError

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Logits = Floats
Indices = Sequence[int] | Ints
SavedKv = bytes | memoryview  # one slot's keys and values, in the runner's own format


@dataclass(frozen=True, slots=True)
class TopKLogits:
    """The largest logits of each row: ``ids`` int32 and ``values`` float32, both [rows, width].

    In any order. Indexed by rows like full logits.
    """

    ids: npt.NDArray[np.int32]
    values: Logits

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.ids)

    def __getitem__(self, rows: Indices) -> TopKLogits:
        """Select these rows, in this order."""
        return TopKLogits(self.ids[rows], self.values[rows])


StepLogits = Logits | TopKLogits  # of the rows of a step


def joined(parts: Sequence[StepLogits]) -> StepLogits:
    """The rows of several passes; those without outputs are full logits of no rows."""
    short = [part for part in parts if isinstance(part, TopKLogits)]
    if not short:
        return np.concatenate([require_full_logits(part) for part in parts])
    ids, values = [part.ids for part in short], [part.values for part in short]
    return TopKLogits(np.concatenate(ids), np.concatenate(values))


def require_full_logits(found: StepLogits) -> Logits:
    """The logits of a step whose rows asked for all of them."""
    if isinstance(found, TopKLogits):
        raise TypeError("top-k logits where all were asked for")
    return found


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Sizes and abilities of the loaded runner."""

    runtime: str
    slots: int
    context: int  # tokens per slot
    batch: int  # most tokens in one step
    vocab_size: int
    mixed_batch: bool  # one step may hold prefill of several rows and decode together
    # One step may hold prefill of several rows: as many tokens of each, in slots side by side.
    equal_prefills: bool = False
    kv_bytes_per_token: int = 0  # over all layers
    # False where a slot can only be emptied, continued, brought back to a checkpoint, or cut to
    # ``KvSlots.shortest``: a sliding window's cache has lost what lies before the window, a
    # recurrent state has all tokens in one.
    can_trim: bool = True
    whole_checkpoints: bool = False  # a checkpoint is all that a slot holds: there is no attention
    # False where logits behind a restored checkpoint differ by rounding: a window's cells come to
    # lie in another order.
    exact_checkpoints: bool = True
    can_shift: bool = False  # whether ``KvSlots.shift`` works
    kv_tokens: int | None = None  # that all slots may hold together; None: each its own context
    lone_rows: bool = False  # a step makes a pass for each row, in whatever slots they are
    most_logits: int = 1  # rows of logits that a step may ask for
    # False where logits after each of a row's tokens take a pass for each.
    every_logits: bool = True
    adapters_apart: bool = False  # a step makes a pass for each adapter of its rows
    gpu_layers: int = 0  # of the model, that are computed on a GPU
    top_k_logits: bool = False  # rows that say what is ``top_k_needed`` may get a TopKLogits

    @property
    def verifies(self) -> bool:
        """Whether a step can check guesses: logits after each, and wrong ones are forgotten."""
        return self.can_trim and self.every_logits and not self.top_k_logits


class StepRow(NamedTuple):
    """One slot's share of a step: ``tokens`` go in at ``position``."""

    slot: int
    position: int
    tokens: Sequence[int]
    logits: int  # after how many of its last tokens logits are wanted
    top_k_needed: int = 0  # how many of the largest logits will do; 0: all of them
    adapter: str | None = None  # what changes the weights for this row; one that is loaded


# One forward pass: rows in ascending slot order, no slot twice
StepRows = Sequence[StepRow]


def consecutive_runs(
    rows: Sequence[StepRow], most_missing: int = 2, full: Container[int] = ()
) -> list[list[StepRow]]:
    """Rows in ascending slot order, cut wherever more than ``most_missing`` slots are missing.

    A runner that needs consecutive slots fills the few that are missing inside a run with rows that
    are thrown away; beyond that, another pass over the weights is cheaper. So it is where one of
    them is ``full``: it has no room for such a row.
    """
    if rows[-1].slot - rows[0].slot == len(rows) - 1:
        return [list(rows)]
    runs = [list(rows[:1])]
    for row in rows[1:]:
        missing = range(runs[-1][-1].slot + 1, row.slot)
        if len(missing) <= most_missing and not any(slot in full for slot in missing):
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs


class Tokenizer(Protocol):
    """Text to ids and back, exactly as the model file defines it."""

    vocab_size: int  # how many ids there are
    bos_token: str  # the text of the BOS token, or nothing; chat templates ask for it
    eos_token: str

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends a generation."""

    @property
    def infill(self) -> tuple[int, int, int] | None:
        """The tokens before a prefix, a suffix and the middle that is to be filled in; None for a
        model that has not all of them."""

    def encode(
        self, text: str, *, add_special: bool = False, parse_special: bool = True
    ) -> list[int]:
        """Ids of ``text``; ``add_special`` adds BOS/EOS as the model wants them."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; empty for control tokens."""


class KvSlots(ABC):
    """The keys and values of every slot. A slot that no step has written is empty.

    ``lengths`` is how many tokens each slot holds, ``context`` how many it may.
    """

    def __init__(self, slots: int, context: int) -> None:
        self.context = context
        self.lengths = [0] * slots

    def full(self) -> set[int]:
        """Slots that hold as many tokens as they can."""
        return {slot for slot, length in enumerate(self.lengths) if length >= self.context}

    def require_held(self, slot: int, length: int) -> None:
        """Raise ModelError where the slot holds fewer tokens."""
        if length > self.lengths[slot]:
            raise ModelError(f"slot {slot} holds {self.lengths[slot]} tokens, not {length}")

    def require_room(self, length: int) -> None:
        """Raise ModelError for more saved tokens than a slot may hold."""
        if length > self.context:
            raise ModelError(f"{length} saved tokens do not fit a context of {self.context}")

    @abstractmethod
    def copy(self, source: int, target: int, length: int) -> None:
        """Make ``target`` hold the first ``length`` tokens of ``source``, and nothing else.

        Without ``can_trim`` the length must be all that the source holds.
        """

    @abstractmethod
    def trim(self, slot: int, length: int) -> None:
        """Forget what the slot holds from position ``length`` on; 0 frees it."""

    def shortest(self, slot: int) -> int:
        """Fewest tokens, beside none, that ``trim`` can leave."""
        return 0

    def checkpoint(self, slot: int) -> SavedKv:
        """State at the end of the slot's tokens that later steps overwrite: recurrent states and
        the cells of sliding windows. Empty where ``trim`` needs none.
        """
        return b""

    def rewind(self, slot: int, data: SavedKv, length: int) -> None:
        """Bring a slot back to its first ``length`` tokens, whose ``checkpoint`` is ``data``. After
        ModelError the slot is empty.
        """
        self.trim(slot, length)

    @abstractmethod
    def swap(self, first: int, second: int) -> None:
        """Exchange what two slots hold, whole. After ModelError neither is to be trusted."""

    @abstractmethod
    def save(self, slot: int) -> SavedKv:
        """All that the slot holds."""

    @abstractmethod
    def load(self, slot: int, data: SavedKv, length: int) -> None:
        """Make the slot hold what ``save`` gave of ``length`` tokens, by a runner of this model
        with the same ``kv_type``. Raises ModelError if it cannot, and leaves the slot empty.
        """

    def shift(self, slot: int, keep: int, discard: int) -> None:
        """Drop ``discard`` tokens behind the first ``keep``; the later ones move down.

        Raises ModelError without ``can_shift``.
        """
        raise ModelError("this runtime cannot shift a slot's tokens; submit the shorter text again")


class AdapterSlots(Protocol):
    """LoRA adapters that rows may ask for by name."""

    @property
    def names(self) -> frozenset[str]:
        """Names of the loaded adapters."""

    def load(self, name: str, path: Path) -> None:
        """Load one under a name that is free. Raises ModelError for a file that does not fit."""

    def unload(self, name: str) -> None:
        """Free one that no further row will ask for."""


class Runner(Protocol):
    """Executes steps over KV slots. Owned by one thread; not thread-safe."""

    @property
    def capabilities(self) -> Capabilities:
        """Fixed once loaded."""

    @property
    def kv(self) -> KvSlots:
        """The slots."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""

    @property
    def adapters(self) -> AdapterSlots | None:
        """The adapters; None where there can be none."""

    @property
    def graphs_reused(self) -> int | None:
        """How many forward passes went without building a new graph; None where not known."""

    def execute(self, rows: StepRows) -> StepLogits:
        """Run one step: float32 [logits asked for, vocab_size], in the order of rows and tokens.

        Where every such row says that fewer logits are enough, it may be TopKLogits of at least as
        many. The result is valid until the next call. Raises OutOfMemoryError or ModelError, and
        leaves every slot as it was.
        """

    def score(self, tokens: Sequence[int], first: int = 0) -> Logits:
        """Logits after every position from ``first`` on: [len(tokens) - first, vocab_size].
        Empties slot 0."""

    def embed(self, tokens: Sequence[int]) -> Floats:
        """The text's embedding, of length 1. Touches no slot. Raises ModelError, RequestError where
        the file gives none, or OutOfMemoryError."""

    def close(self) -> None:
        """Free native memory. A second call does nothing."""
