"""A draft: a second, smaller model, whose greedy guesses of how rows go on the model verifies.

Its slots are its own. Each holds tokens of one row, whatever slot of the model's cache that row has
or loses, and what wrong guesses have left there is cut off. What an ended row leaves behind serves
the next one that begins alike. For the engine's thread only.
"""

from __future__ import annotations

import collections.abc as abc
import logging
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from runtimes.engine.metrics import averaged
from runtimes.engine.prefix_pool import common_prefix
from runtimes.engine.sequence import RowTokens, Sequence
from runtimes.errors import IngotError
from runtimes.runner import Runner, StepRow, require_full_logits

logger = logging.getLogger(__name__)

_SHORT = 8  # tokens that go in with the first guess; more of them are a pass of their own
_TRIED_TOKENS, _TRIED_STEPS = 16, 2  # by which its speed is first measured


@dataclass(slots=True)
class _Slot:
    held: list[int] = field(default_factory=list)  # the tokens whose keys and values it has
    row: Sequence | None = None
    known: int = 0  # how many of them are the row's for certain


class Draft:
    """Guesses of a loaded model. Once a step of it fails, it is ``lost`` and guesses no more."""

    def __init__(self, name: str, runner: Runner, vocab_size: int) -> None:
        """``vocab_size``: ids from there on are not the model's."""
        self.name, self.lost = name, False
        self.seconds = 0.0  # that the last guesses took, what had to be caught up left out
        self.caught_up_s = 0.0  # and that
        self._runner, self._kv, self._vocab_size = runner, runner.kv, vocab_size
        self._capabilities = runner.capabilities
        self._slots = [_Slot() for _ in range(self._capabilities.slots)]
        self._of: dict[Sequence, int] = {}
        self._step_s: dict[int, float] = {}  # of a step, by rows
        self._token_s = 0.0  # of a token that is caught up

    def close(self) -> None:
        """Free its memory."""
        self.lost = True
        self._runner.close()

    def measure(self) -> None:
        """Find out by a few of them how long a step and a token take. On the engine's thread:
        OpenMP's threads belong to the one that called it, and idle ones slow the others down."""
        count = max(min(_TRIED_TOKENS, self._capabilities.batch, self._capabilities.context - 1), 1)
        tokens, times = [0] * count, list[float]()
        try:
            for _ in range(_TRIED_STEPS):
                self._cut(0, 0)
                begin = time.perf_counter()
                self._runner.execute((StepRow(0, 0, tokens, 0),))
                middle = time.perf_counter()
                self._runner.execute((StepRow(0, count, tokens[:1], 1),))
                self._token_s = (middle - begin) / count
                times.append(time.perf_counter() - middle)
            self._cut(0, 0)
        except IngotError as error:
            self._lose(error)
        self._step_s[1] = min(times, default=math.inf)

    def forget(self, sequence: Sequence) -> None:
        """Release the draft's slot of a row that has ended or will not guess for a while."""
        at = self._of.pop(sequence, None)
        if at is None:
            return
        slot = self._slots[at]
        slot.row, slot.known = None, 0
        if self._capabilities.mixed_batch:  # each step would walk what is left
            try:
                self._cut(at, 0)
            except IngotError as error:
                self._lose(error)

    def room(self, sequence: Sequence) -> int:
        """How many guesses fit its context behind the row's tokens."""
        return max(self._capabilities.context - sequence.length, 0)

    def behind(self, sequence: Sequence) -> float:
        """Seconds that it takes to catch up with the row. Gives it a slot."""
        try:
            missing = sequence.length - self._aligned(sequence).known
        except IngotError as error:
            self._lose(error)
            return math.inf
        return max(missing - _SHORT, 0) * self._token_s

    def cost(self, rows: int, depth: int) -> float:
        """Seconds that ``depth`` guesses for each of so many rows take, as far as is known; it is
        measured where nothing is."""
        if not self._step_s:
            self.measure()
        known = self._step_s.get(rows)
        if known is None:
            known = self._step_s[min(self._step_s, key=lambda other: abs(other - rows))]
        return known * depth

    def guess(self, wanted: Mapping[Sequence, int]) -> RowTokens:
        """So many guesses for each of these rows; for none once it is lost. A row that is far
        behind has none yet: it is caught up by a pass at a time, so that nobody waits long."""
        begin = caught_up = time.perf_counter()
        found: RowTokens = {}
        try:
            self._evict(wanted)
            slots = {one: self._aligned(one) for one in wanted}
            ready = self._catch_up(slots)
            caught_up = time.perf_counter()
            found = self._guess({one: wanted[one] for one in ready}, slots)
        except IngotError as error:
            self._lose(error)
        self.caught_up_s = caught_up - begin
        self.seconds = time.perf_counter() - caught_up
        if found:
            step_s = self.seconds / max(map(len, found.values()))
            self._step_s[len(found)] = averaged(self._step_s.get(len(found)), step_s)
        return found

    def settle(self, rows: Iterable[Sequence]) -> None:
        """Cut wrong guesses off the rows' slots."""
        try:
            for one in rows:
                if one in self._of and not self.lost:
                    self._aligned(one)
        except IngotError as error:
            self._lose(error)

    def _lose(self, error: IngotError) -> None:
        if not self.lost:
            logger.warning("the draft %s failed, and guesses no more: %s", self.name, error)
        self.lost = True

    def _guess(self, wanted: Mapping[Sequence, int], slots: Mapping[Sequence, _Slot]) -> RowTokens:
        found: RowTokens = {one: [] for one in wanted}
        new = {one: one.tokens(slots[one].known, one.length - slots[one].known) for one in wanted}
        while new:
            for one, token in self._run(new).items():
                found[one].append(token)
            new = {one: found[one][-1:] for one in new if len(found[one]) < wanted[one]}
        return found

    def _catch_up(self, slots: Mapping[Sequence, _Slot]) -> list[Sequence]:
        """Take one row further whose slot holds far less than it has; return those that are not
        behind now."""
        short = max(1, min(_SHORT, self._capabilities.batch // max(len(slots), 1)))
        behind = [one for one, slot in slots.items() if one.length - slot.known > short]
        if behind:
            one = min(behind, key=lambda one: one.length - slots[one].known)
            slot, begin = slots[one], time.perf_counter()
            share = min(one.length - slot.known - 1, self._capabilities.batch)
            self._pass({one: one.tokens(slot.known, share)}, logits=0)
            slot.known = len(slot.held)
            self._token_s = averaged(self._token_s, (time.perf_counter() - begin) / share)
        return [one for one, slot in slots.items() if one.length - slot.known <= short]

    def _run(self, new: RowTokens) -> dict[Sequence, int]:
        """The likeliest next token of each row, whose ``new`` tokens go in."""
        together, found = {}, dict[Sequence, int]()
        for one, tokens in new.items():
            if self._capabilities.mixed_batch or len(tokens) == 1:
                together[one] = tokens
            else:
                found |= self._pass({one: tokens})
        return found | self._pass(together) if together else found

    def _pass(self, new: RowTokens, logits: int = 1) -> dict[Sequence, int]:
        """One step of the runner."""
        rows = sorted(new, key=lambda one: self._of[one])
        slots = [self._slots[self._of[one]] for one in rows]
        plan = tuple(
            StepRow(self._of[one], len(slot.held), new[one], logits)
            for one, slot in zip(rows, slots, strict=True)
        )
        given = require_full_logits(self._runner.execute(plan))
        for one, slot in zip(rows, slots, strict=True):
            slot.held += new[one]
        best = np.argmax(given[:, : self._vocab_size], axis=1).tolist() if logits else []
        return dict(zip(rows, best, strict=bool(logits)))

    def _aligned(self, sequence: Sequence) -> _Slot:
        """The row's slot, which holds a beginning of its tokens, but for the last one: the token
        after that is what is wanted."""
        if sequence not in self._of:
            self._place(sequence)
        at = self._of[sequence]
        slot = self._slots[at]
        end = min(len(slot.held), sequence.length - 1)
        own = sequence.tokens(slot.known, end - slot.known)
        slot.known += common_prefix(slot.held[slot.known : end], own) if own else 0
        if slot.known < len(slot.held):
            self._cut(at, slot.known)
        return slot

    def _place(self, sequence: Sequence) -> None:
        """Give it the free slot that holds the longest beginning of its tokens."""
        if len(self._of) == len(self._slots):
            self._evict(())
        free = [at for at, slot in enumerate(self._slots) if slot.row is None]
        tokens = sequence.tokens(0, sequence.length - 1)
        shared = {at: common_prefix(self._slots[at].held, tokens) for at in range(len(self._slots))}
        at = max(free, key=shared.__getitem__)
        source = max(shared, key=shared.__getitem__)
        slot = self._slots[at]
        if shared[source] > shared[at] + _SHORT:  # such as another sample's of this prompt
            self._kv.copy(source, at, shared[source])
            slot.held = self._slots[source].held[: shared[source]]
        slot.row, slot.known = sequence, 0
        self._of[sequence] = at

    def _evict(self, kept: abc.Container[Sequence]) -> None:
        """Take the slots of rows that have none in the model's cache: preempted ones."""
        for one in [one for one in self._of if one.slot < 0 and one not in kept]:
            self.forget(one)

    def _cut(self, at: int, length: int) -> None:
        self._kv.trim(at, length)
        del self._slots[at].held[length:]
