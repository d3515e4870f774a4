"""Scheduler: chooses the sequences of the next step. Pure Python: no runtime, no text, no clock of
its own.

Continuous batching at the level of steps (Orca, OSDI 2022): a waiting sequence takes a free slot,
its prompt goes in by chunks, and it leaves the step in which it ends. Every one that can decode
does so before prompt tokens get what is left of the step's token budget. A runtime that cannot mix
the two gets prefill of one sequence and decode of all in turn; prefill keeps decoding ones waiting
for ``max_stall_s`` at a time, going by how fast prefill has been.

Planning computes nothing: ``commit`` moves the sequences on, and a step that fails is simply not
committed.
"""

import bisect
import itertools
from collections.abc import Iterable
from typing import NamedTuple

from runtimes.engine import policy
from runtimes.engine.draft import Draft
from runtimes.engine.kv_cache import KvCache
from runtimes.engine.metrics import Tokens, averaged
from runtimes.engine.prefix_pool import common_prefix
from runtimes.engine.propose import Proposer
from runtimes.engine.sequence import RowTokens, Sequence
from runtimes.runner import StepRow, StepRows
from runtimes.settings import SchedulerSettings


class Step(NamedTuple):
    """A planned step: what the runner executes, and the sequences behind it in the same order."""

    rows: StepRows
    sequences: tuple[Sequence, ...]
    sampled: tuple[Sequence, ...]  # those whose tokens are all in, in the same order
    prefill: int  # tokens of sequences that were not decoding
    decoded: bool  # whether any sequence was
    expired: list[Sequence]  # out of time, and out of their slots
    proposed: RowTokens  # behind the tokens of these rows, with logits after each
    drafting_s: float  # that the draft took for them


class Scheduler:
    """Sequences over the slots of ``kv``."""

    def __init__(
        self, kv: KvCache, settings: SchedulerSettings, draft: Draft | None = None
    ) -> None:
        self.kv = kv
        self.preemptions = 0
        self._capabilities = kv.capabilities
        self._settings = settings
        self._waiting: list[Sequence] = []  # in the order of their ranks
        self._deadlines: dict[Sequence, float] = {}
        self._arrivals = itertools.count()
        self._stalled = 0.0  # seconds of prefill since sequences last decoded
        self._prefill_rate: float | None = None  # tokens a second
        self._speculates = (settings.speculation or draft is not None) and kv.chunk == 1
        guesses = self._speculates and kv.capabilities.verifies
        self.proposer = Proposer(draft) if guesses else None

    @property
    def waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """True when there is nothing to do."""
        return not self._waiting and not self.kv.busy

    def add(self, sequence: Sequence) -> None:
        """Queue the first sample of a request; or another one, before whatever arrived later."""
        state = sequence.state
        if sequence.index == 0:
            state.key = state.submitted + state.request.priority * self._settings.aging_s
            state.order = next(self._arrivals)
        sequence.chunk = self.kv.chunk
        bisect.insort(self._waiting, sequence, key=Sequence.rank)
        if state.deadline is not None:
            self._deadlines[sequence] = state.deadline

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, finished or not; its slot is free for the next step."""
        if sequence.slot >= 0:
            self.kv.release(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        self._deadlines.pop(sequence, None)
        if self.proposer:
            self.proposer.forget(sequence)

    def schedule(self, now: float) -> Step:
        """The next step; without sequences when none can run ``now``."""
        expired = [one for one, deadline in self._deadlines.items() if now >= deadline]
        for one in expired:
            self.remove(one)
        if self.proposer:
            self.proposer.begin()
        if self._waiting:
            self._preempt()
            self._admit(now)
        reading = [one for one in self.kv.running if not one.decoding]
        prefill = self._choose_prefill(reading) if reading else {}
        if prefill and not self._capabilities.mixed_batch:
            return self._step({}, prefill, expired, {})
        decoding = self.kv.decoding if reading else list(self.kv.running)
        for lost in self.kv.compact(decoding):  # one may be a sequence that reads
            self._requeue(lost)
        decoding = [one for one in decoding if one.slot >= 0]
        decode = self._decode_shares(decoding, sum(prefill.values()))
        proposed = {} if prefill else self._propose(decode)
        return self._step(decode, prefill, expired, proposed)

    def takes_forced(self, sequence: Sequence) -> bool:
        """Whether tokens that its constraint forces may be put behind it without sampling."""
        return self._speculates and not sequence.request.params.wants_logprobs

    def _decode_shares(self, decoding: list[Sequence], prefill: int) -> dict[Sequence, int]:
        """How many tokens of each decoding row go in, in a step with ``prefill`` others: also
        forced ones, where they do not cost a pass of their own.
        """
        together = self._capabilities.mixed_batch or len(decoding) == 1
        spare = self._capabilities.batch - prefill - len(decoding) if together else 0
        shares: dict[Sequence, int] = {}
        for one in decoding:
            more = min(one.pending - 1, max(spare, 0)) if one.forced else 0
            shares[one], spare = 1 + more, spare - more
        return shares

    def _propose(self, shares: dict[Sequence, int]) -> RowTokens:
        """Guesses that go in behind what is known of decoding rows."""
        one = self._capabilities
        if not shares or not self.proposer or not (one.mixed_batch or len(shares) == 1):
            return {}
        most = min(one.batch - sum(shares.values()), one.most_logits - len(shares))
        most = min(most, *(one.context - row.position - n for row, n in shares.items()))
        # A step with a row's first token counts as prefill: nothing is learned from it.
        rows = [row for row, n in shares.items() if n == row.pending and row.output]
        return self.proposer.propose(rows, most) if len(rows) == len(shares) and most > 0 else {}

    def _preempt(self) -> None:
        """Send running sequences back to the queue for its head, if that makes room for it."""
        head, kv = self._waiting[0], self.kv
        if self._settings.strategy != "continuous":
            return
        while not (kv.free_slots and kv.fits(head, kv.running)):
            running = kv.running
            victims = policy.preemptible(head, running)
            if not victims or not kv.fits(head, [one for one in running if one not in victims]):
                return
            kv.release(victims[-1])
            self._requeue(victims[-1])
            self.preemptions += 1

    def _requeue(self, sequence: Sequence) -> None:
        """Back into the queue; its tokens stay, its slot is another's."""
        sequence.computed, sequence.needs_prefix, sequence.requeued = 0, True, True
        sequence.forced = 0
        bisect.insort(self._waiting, sequence, key=Sequence.rank)

    def _admit(self, now: float) -> None:
        """Give waiting sequences free slots."""
        kv = self.kv
        free, apart = len(kv.free_slots), self._capabilities.adapters_apart
        waiting = self._waiting
        for sequence in policy.admissible(
            waiting, kv.running, free, now, self._settings, adapters_apart=apart
        ):
            if not kv.fits(sequence, kv.running):
                break
            kv.place(sequence)
            waiting.remove(sequence)
            sequence.started = sequence.started or now

    def _choose_prefill(self, waiting: list[Sequence]) -> dict[Sequence, int]:
        """How many prompt tokens of which sequences go in now; their slots are made ready."""
        running, capabilities = self.kv.running, self._capabilities
        decoding = sum(one.pending for one in running if one.decoding)
        budget = policy.prefill_budget(
            self._settings,
            batch=capabilities.batch,
            rate=self._prefill_rate,
            stalled=self._stalled,
            decoding=decoding > 0,
        )
        if capabilities.mixed_batch:
            budget = min(budget, capabilities.batch - decoding)
        shares: dict[Sequence, int] = {}
        spare = capabilities.most_logits - len(running)  # each may want one row of logits
        for sequence in sorted(waiting, key=Sequence.rank):
            if budget <= 0:
                break
            if sequence.needs_prefix and not self.kv.reuse_prefix(sequence):
                continue
            if sequence.pending == 1:  # all but a token was cached: it decodes with the others
                budget -= capabilities.mixed_batch
                continue
            chunked = sequence.chunk > 1
            share = sequence.next_chunk if chunked else min(sequence.before_stop, budget)
            if (scores := sequence.state.scores) is not None:
                share = min(share, scores.most_tokens(sequence.computed, 1 + max(spare, 0)))
                spare -= max(scores.rows(sequence.computed, share) - 1, 0)
            shares[sequence] = share
            if capabilities.equal_prefills and not chunked and scores is None:
                return self._together(sequence, share, waiting, min(budget, policy.MOST_TOGETHER))
            if not capabilities.mixed_batch:
                break
            budget -= share
        return shares

    def _together(
        self, first: Sequence, share: int, waiting: Iterable[Sequence], most: int
    ) -> dict[Sequence, int]:
        """``first`` with the prompts in slots next to its own, as many tokens of each as the
        shortest piece has, ``most`` in all: a pass of few tokens costs nearly as much as one of
        many."""
        by_slot, shares = {one.slot: one for one in waiting}, {first: share}
        if 2 * share > most:
            return shares
        for step in (-1, 1):
            slot = first.slot + step
            while (one := by_slot.get(slot)) and one.chunk == 1 and one.state.scores is None:
                if one.request.priority > first.request.priority:
                    break
                if one.needs_prefix and not self.kv.reuse_prefix(one):
                    break
                least = min(share, one.before_stop)
                if one.pending == 1 or least * (len(shares) + 1) > most:
                    break
                shares[one], share = share, least
                slot += step
        return dict.fromkeys(shares, share)

    def _step(
        self,
        decode: dict[Sequence, int],
        prefill: dict[Sequence, int],
        expired: list[Sequence],
        proposed: RowTokens,
    ) -> Step:
        rows, sampled, shares = list[StepRow](), list[Sequence](), {**decode, **prefill}
        sequences = tuple([one for one in self.kv.running if one in shares])
        top_k = self._capabilities.top_k_logits
        for one in sequences:
            share, request = shares[one], one.state.request
            tokens = one.tokens(one.computed, share)
            logits = last = int(share == one.pending)
            if (scores := one.state.scores) is not None:
                logits = max(scores.rows(one.computed, share), last)
            if guesses := proposed.get(one):
                tokens += guesses
                logits += len(guesses)
            top = request.params.top_k_needed if top_k else 0
            rows.append(StepRow(one.slot, one.position, tokens, logits, top, request.adapter))
            if last:
                sampled.append(one)
        decoding = sum(share for one, share in decode.items() if one.output)
        return Step(
            rows,
            sequences,
            tuple(sampled),
            prefill=sum(shares.values()) - decoding,
            decoded=decoding > 0,
            expired=expired,
            proposed=proposed,
            drafting_s=self.proposer.drafting_s if self.proposer else 0.0,
        )

    def commit(self, step: Step, tokens: Iterable[list[int]], seconds: float = 0.0) -> Tokens:
        """Record that the step took ``seconds``, and which tokens go on each of ``step.sampled``:
        any number of them. Those that begin like what was proposed for a row are in its slot;
        returns how many were proposed, and how many these are.
        """
        if step.prefill >= policy.LEAST_CHUNK and seconds > 0:
            self._prefill_rate = averaged(self._prefill_rate, step.prefill / seconds)
            self.kv.token_s = 1 / self._prefill_rate
        self._stalled = 0.0 if step.decoded else self._stalled + seconds
        for sequence, row in zip(step.sequences, step.rows, strict=True):
            sequence.computed += len(row.tokens)
            if sequence.stops:
                self.kv.take_checkpoint(sequence)
        accepted: list[tuple[Sequence, int]] = []
        total, proposer = Tokens(), self.proposer
        for sequence, new in zip(step.sampled, tokens, strict=True):
            sequence.output += new
            if proposer and (guessed := step.proposed.get(sequence)):
                right = common_prefix(guessed, new[:-1])
                accepted.append((sequence, right))
                sequence.computed -= len(guessed) - right
                found = Tokens(proposed_tokens=len(guessed), accepted_tokens=right)
                if sequence in proposer.drafted:
                    found.update(drafted_tokens=len(guessed), accepted_drafts=right)
                sequence.guessed.update(found)
                total.update(found)
                if right < len(guessed) and not self.kv.cut(sequence):
                    self._requeue(sequence)
        if proposer and not step.prefill:
            more = sum(len(row.tokens) for row in step.rows) - len(step.sequences)
            took = seconds - step.drafting_s
            proposer.learn(len(step.sequences), more, took, accepted)
        return total
