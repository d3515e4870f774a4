"""What the engine does in a step: schedule, make slots ready, run, sample, hand out, commit.

Everything here belongs to one thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from runtimes.engine.drawing import NO_TOKEN, draw
from runtimes.engine.gaps import Gaps
from runtimes.engine.generation import Generation, Ticket
from runtimes.engine.metrics import Metrics
from runtimes.engine.prefix import LEAST_SHARED, PrefixCache, common_prefix
from runtimes.engine.row import Row
from runtimes.engine.runner import Logits, Runner, Shortlist
from runtimes.engine.scheduler import Scheduler, Step
from runtimes.errors import IngotError
from runtimes.request import FinishReason
from runtimes.settings import PROMPT_CHUNK, RunnerSettings, SchedulerSettings

logger = logging.getLogger(__name__)

# A shift keeps the first tokens, on which attention leans (StreamingLLM, arXiv:2309.17453), and
# drops half of the others, as llama.cpp's server does.
_SINK_TOKENS = 4


class EngineCore:
    """The state of all requests over one runner."""

    def __init__(
        self,
        runner: Runner,
        settings: RunnerSettings,
        scheduling: SchedulerSettings,
        prefix_bytes: int,
    ) -> None:
        caps = runner.capabilities
        chunk = PROMPT_CHUNK if settings.reproducible else 1
        self.metrics = Metrics()
        self.prefix = PrefixCache(
            runner,
            caps,
            budget=prefix_bytes if scheduling.prefix_cache else 0,
            retain=not caps.mixed_batch,
            enabled=scheduling.prefix_cache,
            chunk=chunk,
        )
        self.scheduler = Scheduler(
            slots=caps.slots,
            batch=caps.batch,
            mixed_batch=caps.mixed_batch,
            context=caps.context,
            kv_tokens=caps.kv_tokens,
            shortlists=caps.shortlists,
            chunk=chunk,
            settings=scheduling,
            choose_slot=lambda row, free: self.prefix.choose_slot(row.tokens(0, row.length), free),
            attach=self._attach,
        )
        # Rows of a shared cache run in any order. A window's tokens come to lie in another order in
        # the slot that they move to, and so are added up in another.
        scattered = caps.mixed_batch or caps.lone_rows or not (caps.can_trim or chunk == 1)
        self._gaps = (
            None if scattered else Gaps(self.scheduler, self.prefix, caps.kv_bytes_per_token)
        )
        self._runner = runner
        self._context = caps.context
        self.kv_capacity = caps.kv_tokens or caps.slots * caps.context  # tokens
        self._shifts = settings.context_shift and caps.can_shift
        if settings.context_shift and not caps.can_shift:
            logger.warning("this file's context cannot be shifted: answers end where it is full")
        self._tickets: dict[str, Ticket] = {}
        self._of_row: dict[Row, Generation] = {}
        self._deadlines: dict[str, float] = {}
        self._graphs_reused = runner.graphs_reused

    @property
    def idle(self) -> bool:
        """True when there is nothing to do."""
        return self.scheduler.idle

    def add(self, ticket: Ticket) -> None:
        """Take a request in."""
        request = ticket.request
        generation = Generation(
            ticket, Row(request), self._runner.tokenizer
        )  # may fail: comes first
        row = generation.row = self.scheduler.add(request, ticket.submitted)
        ticket.samples.append(generation)
        self._of_row[row] = generation
        if request.id in self._tickets:
            self._end(generation, FinishReason.ERROR, "a request with this id is already running")
            return
        self._tickets[request.id] = ticket
        if ticket.deadline is not None:
            self._deadlines[request.id] = ticket.deadline

    def cancel(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """End what is left of a request; unknown ids are ignored."""
        ticket = self._tickets.get(request_id)
        for generation in list(ticket.samples) if ticket else ():
            if generation.row in self._of_row:
                self._end(generation, reason)

    def end_all(self, reason: FinishReason, error: str | None) -> None:
        """End every request."""
        for generation in list(self._of_row.values()):
            if generation.row in self._of_row:
                self._end(generation, reason, error)

    @property
    def graphs_reused(self) -> int | None:
        """See ``Runner.graphs_reused``; the value of the last step."""
        return self._graphs_reused

    def live(self) -> dict[int, Sequence[int]]:
        """What the slots of running rows hold."""
        return {row.slot: row.held() for row in self.scheduler.running}

    def step(self) -> bool:
        """Run one step; False when no row can run now."""
        begin = time.perf_counter()
        now = time.monotonic()
        self._expire(now)
        self._admit(now)
        step = self.scheduler.plan()
        if step and step.decoded and self._gaps and self._gaps.close():
            step = self.scheduler.plan()
        if step is None:
            return False
        self._run(step, begin)
        return True

    def _run(self, step: Step, begin: float) -> None:
        try:
            native_begin = time.perf_counter()
            logits = self._runner.execute(step.plan)
            native = time.perf_counter() - native_begin
            if self._gaps:
                self._gaps.stepped(step, native)
            tokens, broken = self._draw(step, logits)
        except IngotError as error:
            self._fail(step, str(error))
            return
        except Exception as error:
            logger.exception("a step failed")
            self._fail(step, f"the engine failed in a step: {error}")
            return
        decoded = sum(1 for row in step.sampled if row.output)
        self._graphs_reused = self._runner.graphs_reused
        self.scheduler.commit(step, tokens, time.perf_counter() - begin)
        ended = self._accept(step, tokens)
        ended += self._fork(step, logits)
        self.metrics.step(
            prompt=step.prefill,
            sampled=len(tokens),
            decoded=decoded,
            native=native,
            whole=time.perf_counter() - begin,
        )
        # Last, so that whoever sees a completion sees its tokens in the figures too.
        for generation, reason in ended:
            self._end(generation, reason, _why(generation, broken, reason))

    def _draw(self, step: Step, logits: Logits | Shortlist) -> tuple[list[int], str | None]:
        return (
            draw([self._of_row[row] for row in step.sampled], logits)
            if step.sampled
            else ([], None)
        )

    def _expire(self, now: float) -> None:
        if self._deadlines:
            for request_id in [r for r, deadline in self._deadlines.items() if now >= deadline]:
                self.cancel(request_id, FinishReason.DEADLINE)

    def _admit(self, now: float) -> None:
        while (victim := self.scheduler.preempt()) is not None:
            slot, held = victim.slot, victim.held()
            self.scheduler.requeue(victim)
            self.prefix.release(slot, held)
            self.metrics.preemptions += 1
        for row in self.scheduler.admit(now):
            generation = self._of_row[row]
            generation.started = generation.started or now

    def _attach(self, row: Row) -> bool:
        """Make the row's slot ready; False to wait for another that computes what both begin with.

        Rows of one request share their prompt's prefill also where the prefix cache is off.
        """
        tokens = row.tokens(0, row.length)
        peers = [
            other
            for other in self.scheduler.running
            if other is not row
            and (self.prefix.enabled or other.request.id == row.request.id)
            and not other.dropped
        ]
        live = {other.slot: other.held() for other in peers}
        match = self.prefix.find(tokens, live, prefer=row.slot)
        for other in peers:
            if other.fresh or other.decoding:
                continue
            coming = self.prefix.cut(common_prefix(tokens[:-1], other.coming()))
            if coming - match.length >= LEAST_SHARED:
                return False
        row.cached = self.prefix.attach(row.slot, match)
        row.fresh = False
        if not (row.requeued or row.index):
            row.reused = row.cached
            self.metrics.lookup(wanted=row.length, found=row.cached)
        return True

    def _make_room(self, row: Row) -> bool:
        """Shift the row's context if its next token does not fit; False when that is not done."""
        if row.position < self._context:
            return True
        keep = min(_SINK_TOKENS, self._context // 4)
        discard = max(1, (self._context - keep) // 2)
        try:
            self._runner.shift(row.slot, keep, discard)
        except IngotError as error:
            logger.warning("the context could not be shifted: %s", error)
            return False
        row.dropped += discard
        return True

    def _accept(self, step: Step, tokens: Sequence[int]) -> list[tuple[Generation, FinishReason]]:
        """Hand out the sampled tokens; return which samples end with them, and why."""
        ended = []
        context = None if self._shifts else self._context
        for row, token in zip(step.sampled, tokens, strict=True):
            generation = self._of_row[row]
            if token == NO_TOKEN:
                row.output.pop()
                row.dropped = row.dropped or row.cached  # what its slot holds is no better
                ended.append((generation, FinishReason.ERROR))
                continue
            reason = generation.accept(token, context)
            if reason is not None:
                ended.append((generation, reason))
            elif self._shifts and not self._make_room(row):
                ended.append((generation, FinishReason.CONTEXT))
        return ended

    def _fork(
        self, step: Step, logits: Logits | Shortlist
    ) -> list[tuple[Generation, FinishReason]]:
        """Draw the first tokens of further samples from the logits that their first one used."""
        ended = []
        for number, row in enumerate(step.sampled):
            count = row.request.params.samples
            if count == 1 or row.index or len(row.output) != 1:
                continue
            ticket = self._of_row[row].ticket
            others = []
            for index in range(1, count):
                placeholder = Row(row.request)  # until its first token is known
                other = Generation(ticket, placeholder, self._runner.tokenizer, index)
                other.started = self._of_row[row].started
                others.append(other)
            first, _ = draw(others, logits[[number] * len(others)])
            for other, token in zip(others, first, strict=True):
                other.row = self.scheduler.fork(row, other.index, token)
                other.row.reused = len(row.request.prompt)
                self._of_row[other.row] = other
                ticket.samples.append(other)
                reason = other.accept(token, None if self._shifts else self._context)
                if reason is not None:
                    ended.append((other, reason))
        return ended

    def _fail(self, step: Step, message: str) -> None:
        """End the rows of a failed step; the others go on."""
        for row in step.rows:
            row.dropped = row.dropped or row.cached  # nothing in its slot is to be trusted
            self._end(self._of_row[row], FinishReason.ERROR, message)

    def _end(self, generation: Generation, reason: FinishReason, error: str | None = None) -> None:
        row, ticket = generation.row, generation.ticket
        self._of_row.pop(row, None)
        slot, held, ready = row.slot, row.held(), not row.fresh
        self.scheduler.remove(row)
        if slot >= 0 and ready:
            try:
                self.prefix.release(slot, held)
            except IngotError as problem:
                error = error or str(problem)
        self._forget_ended(ticket)
        self.metrics.completed(generation.complete(reason, error).timings)

    def _forget_ended(self, ticket: Ticket) -> None:
        if any(sample.row in self._of_row for sample in ticket.samples):
            return
        if self._tickets.get(ticket.request.id) is ticket:
            del self._tickets[ticket.request.id]
            self._deadlines.pop(ticket.request.id, None)

    def states(self) -> Mapping[str, int]:
        """Rows by what they are doing."""
        running = self.scheduler.running
        decoding = sum(row.decoding for row in running)
        return {
            "waiting": self.scheduler.waiting,
            "prefilling": len(running) - decoding,
            "decoding": decoding,
        }

    def held_tokens(self) -> int:
        """Tokens whose keys and values the slots hold."""
        return self.prefix.left_tokens() + sum(row.position for row in self.scheduler.running)


def _why(generation: Generation, broken: str | None, reason: FinishReason) -> str | None:
    """What was wrong with a row that no token could be drawn for."""
    guide = generation.sampler.guide
    return (guide.error if guide else None) or broken if reason is FinishReason.ERROR else None
