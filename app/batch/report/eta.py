"""Time left of a running job, from the rows that have ended and those that run: a survival estimate
of answer lengths (``LengthCounts``, ``fit``), and the rest of the job played through at measured
speeds (``time_left``, ``Forecast``)."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from app.batch.input.source import Row
from app.figures import duration
from app.openai.validation import Problem
from runtimes.engine.metrics import EngineStats
from runtimes.request import Completion, SamplingParams
from runtimes.untrusted import Fields

_PER_OCTAVE = 16  # bins: lengths within 4% of each other count as equal
_TAIL = 0.5  # beyond what has ended, half of the answers stay below 2**_TAIL times that
_DRAWN = 64
_NEAR = 0.9  # of the limit: what is so long already becomes little longer
_UNSEEN = 0.5  # answers that may be longer than any that ended


class LengthCounts(Counter[int]):
    """Answers by the logarithm of their tokens: bounded memory for any number of rows."""

    def add(self, tokens: int) -> None:
        """Count an answer."""
        self[_bin(tokens)] += 1

    def add_record(self, answer: Fields) -> None:
        """Count the answers of a row of the journal; of several only their mean is known."""
        several = len(answer.get("choices") or answer.get("responses") or (None,))
        tokens = answer.get("usage", {}).get("completion_tokens", 0) // several
        self[_bin(tokens)] += several


@dataclass(slots=True)
class RowCounts:
    """Outcomes of rows so far."""

    answered: int = 0
    failed: int = 0
    retried: int = 0
    crashes: int = 0  # deaths of the worker process
    prompt_tokens: int = 0  # tokens are of finished rows
    cached_tokens: int = 0
    completion_tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter)  # failures by their code
    lengths: LengthCounts = field(default_factory=LengthCounts)  # of earlier runs too

    def finished(self, problem: Problem | None, completions: Iterable[Completion] = ()) -> None:
        """Count a row: why it failed, if it did, and what it was answered."""
        if problem is None:
            self.answered += 1
        else:
            self.failed += 1
            self.errors[problem.code] += 1
        for completion in completions:
            self.prompt_tokens += completion.usage.prompt_tokens
            self.cached_tokens += completion.usage.cached_tokens
            for choice in completion.choices:
                tokens = choice.usage.completion_tokens
                self.completion_tokens += tokens
                self.lengths.add(tokens)


def fit(counts: LengthCounts, running: Iterable[int], most: int) -> tuple[list[float], float]:
    """Lengths that answers have equally often, in order: up to the longest that ended as they were,
    above it a Pareto distribution, cut off at ``most``. And the part of them that nobody has seen.

    From at least one answer that is there, and the tokens that each running one has so far."""
    begun = Counter(_bin(tokens) for tokens in running if tokens > 0)
    lengths, parts, left = [], [], 1.0
    at_least = counts.total() + begun.total()
    for place in sorted(counts.keys() | begun.keys()):
        if ended := counts[place]:
            left *= 1 - ended / (at_least + _UNSEEN)
            lengths.append(_tokens(place))
            parts.append(1 - left)
        at_least -= ended + begun[place]
    drawn = []
    for number in range(_DRAWN):
        part = (number + 0.5) / _DRAWN
        at = bisect_left(parts, part)
        beyond = ((1 - part) / left) ** -_TAIL if at == len(parts) else 1.0
        drawn.append(min(most, lengths[min(at, len(parts) - 1)] * beyond))
    # Of those that are longer than any that ended, nobody knows how long they become; but for those
    # that the limit cuts off.
    reached = max(lengths[-1], *map(_tokens, begun), 0.0)
    return drawn, left if reached < _NEAR * most else 0.0


def _bin(tokens: int) -> int:
    return round(_PER_OCTAVE * math.log2(max(1, tokens)))


def _tokens(place: int) -> float:
    return 2 ** (place / _PER_OCTAVE)


# The rest of the job is played through: each slot takes the next row when its row ends, as the
# scheduler does, at the measured speeds. Lengths of answers are drawn evenly from the estimate of
# them, which counts the answers that have ended, and those that run with their tokens so far.

# What a step with hardly any rows takes of the time of a full one: reading the weights. Between a
# processor's fifth and a GPU's nearly all; known from no measurement before rows run out.
_EMPTY_STEP = 0.4
_PLAYED = 256  # answers that are played through; more of them go into the mean speed
_GOLDEN = (math.sqrt(5) - 1) / 2
_SPREAD = 1.3  # standard deviations that a range has on each side: four of five fall into it
_SURE = 1.5  # a number that may be further off than by this factor is told as a range


@dataclass(frozen=True, slots=True)
class RowPace:
    """Measured speeds."""

    prefill_tps: float
    row_tps: float  # tokens a second of one row
    rows: float  # that decode meanwhile
    overhead: float = 1.0  # what wall time is of the time in steps

    def token_s(self, rows: int) -> float:
        """Seconds for a token of each of ``rows`` rows."""
        share = min(1.0, rows / max(self.rows, 1.0))
        return (_EMPTY_STEP + (1 - _EMPTY_STEP) * share) / self.row_tps


@dataclass(frozen=True, slots=True)
class Rest:
    """Work that is left."""

    running: Sequence[tuple[int, int]]  # of each answer in a slot: tokens so far, and the most
    waiting: int  # answers
    most: int  # tokens of one that waits, on the mean
    prompt_tokens: float  # still to be read
    slots: int


@dataclass(frozen=True, slots=True)
class Left:
    """Seconds to the end."""

    low_s: float
    likely_s: float | None  # None: unknown
    high_s: float

    @property
    def sure(self) -> bool:
        """Whether the likely figure can stand alone."""
        return self.likely_s is not None and self.high_s <= _SURE**2 * max(self.low_s, 1.0)

    def after(self, seconds: float) -> Left:
        """Estimate from so many seconds later. A clock that was set back, or a time that was
        rounded up, adds nothing."""
        seconds = max(0.0, seconds)
        likely = None if self.likely_s is None else max(0.0, self.likely_s - seconds)
        return Left(max(0.0, self.low_s - seconds), likely, max(0.0, self.high_s - seconds))

    def __str__(self) -> str:
        if self.likely_s is None:
            return f"at most {duration(self.high_s)} left"
        if self.sure:
            return f"about {duration(self.likely_s)} left"
        return f"{duration(self.low_s)} to {duration(self.high_s)} left"


def left_json(left: Left | None) -> dict[str, float | None]:
    """As events, the journal and the status have it."""
    values = (None,) * 3 if left is None else (left.likely_s, left.low_s, left.high_s)
    names = "left_s left_least_s left_most_s".split()
    return {n: None if v is None else round(v, 1) for n, v in zip(names, values, strict=True)}


def left_of(values: Fields) -> Left | None:
    """Read back the values of ``left_json``."""
    low, high = values.get("left_least_s"), values.get("left_most_s")
    return None if low is None or high is None else Left(low, values.get("left_s"), high)


def time_left(rest: Rest, counts: LengthCounts, pace: RowPace) -> Left:
    """Before any answer is there, only the limits of answers tell something: the most it takes."""
    longest = _played(rest, [math.inf], pace)
    if not counts:
        return Left(0.0, None, longest)
    drawn, unseen = fit(counts, [tokens for tokens, _ in rest.running], rest.most)
    likely = min(longest, _played(rest, drawn, pace))
    # Sums of many answers scatter less than one, but all share the error of the model.
    scatter = stdev(drawn) / fmean(drawn)
    alone = 1 / counts.total() + 1 / max(1, rest.waiting + len(rest.running))
    off = math.exp(min(_SPREAD * math.hypot(scatter * math.sqrt(alone), unseen), 3.0))
    return Left(likely / off, likely, min(longest, likely * off))


def _played(rest: Rest, lengths: Sequence[float], pace: RowPace) -> float:
    """Seconds, if answers have these ``lengths`` equally often."""
    place = 0.5

    def drawn(most: int, above: int = 0) -> float:
        # Draws fill the distribution evenly, the same in each estimate.
        nonlocal place
        place = (place + _GOLDEN) % 1.0
        longer = lengths[bisect_right(lengths, above) :] or [above * (1 - place) ** -_TAIL]
        return min(float(most), longer[int(place * len(longer))])

    running = [max(0.0, drawn(most, tokens) - tokens) for tokens, most in rest.running]
    seconds = rest.prompt_tokens / pace.prefill_tps if pace.prefill_tps else 0.0
    played = min(rest.waiting, _PLAYED)
    waiting = [drawn(rest.most) for _ in range(played)]
    if rest.waiting > played:
        work = (rest.waiting - played) * fmean(waiting)
        seconds += work * pace.token_s(rest.slots) / rest.slots
    slots = [*running, *[0.0] * (rest.slots - len(running))]
    heapq.heapify(slots)
    for length in waiting:
        heapq.heapreplace(slots, slots[0] + length)
    now = 0.0
    for left, end in zip(range(len(slots), 0, -1), sorted(slots), strict=True):
        seconds += (end - now) * pace.token_s(left)
        now = end
    return seconds * pace.overhead


_WINDOW_S = 20.0  # speeds are those of the last so many seconds, or of half the run


@dataclass(slots=True)
class BegunRows:
    """Sums over the rows that were asked."""

    rows: int = 0
    characters: int = 0  # of their first prompts
    tokens: int = 0
    answers: int = 0  # that they get
    most: int = 0  # tokens of all of these

    def add(self, row: Row, tokens: int, params: SamplingParams) -> None:
        """Count a row that is asked for the first time."""
        answers = row.task.asked - 1 + params.samples
        self.rows += 1
        self.characters += row.task.characters
        self.tokens += tokens
        self.answers += answers
        self.most += answers * params.max_tokens


@dataclass(frozen=True, slots=True)
class RowProgress:
    """Progress of a row that has a slot."""

    answers: Sequence[tuple[int, int]]  # of this turn: tokens so far, and the most
    later: int  # answers that it gets after this turn
    unread: int  # tokens of the prompt, until the answer's first token is there


@dataclass(slots=True)
class Forecast:
    """Keeps the speeds of the last seconds."""

    rows: int  # that the model has to answer, as are the characters
    characters: int
    began: float  # when the first row could, in the seconds that ``left`` is called with
    samples: deque[tuple[float, EngineStats]] = field(default_factory=deque)

    def left(
        self,
        now: float,
        stats: EngineStats,
        working: Sequence[RowProgress],
        counts: RowCounts,
        begun: BegunRows,
        *,
        draining: bool,
    ) -> Left | None:
        """None before any speed is measured."""
        if not begun.most:  # nothing is generated: rows take what rows took
            done = counts.answered + counts.failed
            if not done:
                return None
            rows = (begun.rows if draining else self.rows) - done
            seconds = (now - self.began) / done * rows
            return Left(seconds, seconds, seconds)
        pace = self._pace(now, stats)
        if pace is None:
            return None
        waiting, prompt_tokens = 0, float(sum(row.unread for row in working))
        if not draining:
            settled = counts.answered + counts.failed + len(working)
            rows = max(0, self.rows - settled)
            waiting = round(rows * begun.answers / begun.rows) + sum(row.later for row in working)
            characters = max(0, self.characters - begun.characters)
            unread = characters * begun.tokens / max(1, begun.characters)
            # Rows that wait in an engine are begun, and have not been read.
            unread += max(0, begun.rows - settled) * begun.tokens / begun.rows
            found = stats.prompt_tokens + stats.cached_tokens
            prompt_tokens += unread * (stats.prompt_tokens / found if found else 1.0)
        rest = Rest(
            running=[answer for row in working for answer in row.answers],
            waiting=waiting,
            most=max(1, round(begun.most / begun.answers)),
            prompt_tokens=prompt_tokens,
            slots=max(1, stats.slots),
        )
        return time_left(rest, counts.lengths, pace)

    def _pace(self, now: float, stats: EngineStats) -> RowPace | None:
        samples = self.samples
        if samples and stats.decode_tokens < samples[-1][1].decode_tokens:
            samples.clear()  # a process that was started anew counts anew
        samples.append((now, stats))
        window = max(_WINDOW_S, (now - self.began) / 2)
        while len(samples) > 2 and samples[1][0] <= now - window:
            samples.popleft()
        begun, first = samples[0]
        tokens = stats.decode_tokens - first.decode_tokens
        decode_s = stats.decode_s - first.decode_s
        rows = [one.decoding for _, one in samples if one.decoding]
        if tokens <= 0 or decode_s <= 0 or not rows:
            return None
        occupied = fmean(rows)
        steps_s = decode_s + stats.prefill_s - first.prefill_s
        overhead = (now - begun) / steps_s if steps_s else 1.0
        return RowPace(
            prefill_tps=stats.prefill_tps,
            row_tps=tokens / decode_s / occupied,
            rows=occupied,
            overhead=min(max(overhead, 1.0), 3.0),
        )
