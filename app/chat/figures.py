"""The figures of an answer: while its prompt is read, while it comes, and those that are kept with
it."""

from collections import deque
from dataclasses import dataclass, replace

from app.chat.store.records import AnswerFigures, Message, State
from runtimes.request import Completion, FinishReason

UNFINISHED = "unfinished"  # the reason in the figures of an answer that was still coming

FEW = 16  # tokens; the time of fewer is that of one step, whatever it computes

_WINDOW_S = 2.0

# What an answer has become.
STATES = {
    FinishReason.STOP: State.DONE,
    FinishReason.LENGTH: State.CUT,
    FinishReason.CONTEXT: State.CUT,
    FinishReason.DEADLINE: State.CUT,
    FinishReason.CANCELLED: State.STOPPED,
    FinishReason.ERROR: State.FAILED,
}


def figures_of(completion: Completion) -> AnswerFigures:
    """As the engine has measured them; no prefill speed where too few tokens were computed."""
    usage, timings = completion.usage, completion.timings
    computed = usage.prompt_tokens - usage.cached_tokens
    return AnswerFigures(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        ttft_s=timings.ttft_s,
        prefill_tps=timings.prefill_tps if computed >= FEW else None,
        decode_tps=timings.decode_tps,
        total_s=timings.total_s,
        finish_reason=str(completion.finish_reason),
    )


def continued(before: AnswerFigures | None, now: AnswerFigures) -> AnswerFigures:
    """Figures of a continued answer: prompt figures of the first part, sums of tokens and seconds,
    and the decode rate over every token but the first of each part.
    """
    if before is None:
        return now
    steps = [(f.completion_tokens - 1, f.decode_tps) for f in (before, now) if f.decode_tps]
    seconds = sum(tokens / tps for tokens, tps in steps)
    return replace(
        before,
        completion_tokens=before.completion_tokens + now.completion_tokens,
        decode_tps=sum(tokens for tokens, _ in steps) / seconds if seconds > 0 else None,
        total_s=before.total_s + now.total_s,
        finish_reason=now.finish_reason,
    )


def can_continue(message: Message) -> bool:
    """Whether an answer ended before its end, with something to go on from."""
    whole = message.state in (State.STREAMING, State.DONE) or bool(message.calls)
    return not whole and bool(message.token_ids or message.text)


@dataclass(frozen=True, slots=True)
class StatusFigures:
    """Figures for the status line while an answer comes; None for a figure that is not known."""

    note: str = ""  # what the engine is at
    decode_tps: float | None = None  # of the last two seconds; of the engine when it is done
    ttft_s: float | None = None
    used: int | None = None  # tokens of the context
    context: int | None = None
    estimated: bool = False


class Meter:
    """Tokens per second over the last two seconds of an answer, from batches that are drained now
    and then.

    Tokens have come between two readings, when exactly is not known: so the rate is taken from one
    reading to another, never from the time of a batch alone, and is right after a long time without
    readings too. Times are monotonic seconds.
    """

    def __init__(self) -> None:
        self.first: float | None = None  # when the first piece came
        self._readings: deque[tuple[float, int]] = deque()  # time, tokens until then
        self.tokens = 0
        self.first_tokens = 1  # those that came with the first piece

    def begin(self, first: float, tokens: int = 1) -> None:
        """The first ``tokens`` came together at ``first``: the rate counts those after them."""
        self.first, self.first_tokens = first, tokens
        self._readings.append((first, tokens))

    def read(self, now: float, tokens: int) -> None:
        """``tokens`` more have come until ``now``, which is not before the last reading."""
        self.tokens += tokens
        if not self._readings:
            return
        self._readings.append((now, self.tokens))
        while len(self._readings) > 2 and self._readings[1][0] <= now - _WINDOW_S:
            self._readings.popleft()

    @property
    def rate(self) -> float | None:
        """Tokens per second; None until there is something to divide."""
        if len(self._readings) < 2:
            return None
        (start, before), (end, after) = self._readings[0], self._readings[-1]
        return (after - before) / (end - start) if end > start else None


# How far the engine has read a prompt, and when it will be through.


@dataclass(frozen=True, slots=True)
class Reading:
    """``read`` of ``total`` tokens; ``left_s`` is None until enough was read to tell."""

    read: int
    total: int
    left_s: float | None = None


class ReadMeter:
    """The rate is that since the first reading that found something read: what was cached is there
    at once, and says nothing of the rest. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._first = self._last = (0.0, 0)  # when, and how many tokens were read then

    def at(self, now: float, read: int, total: int) -> Reading:
        """``read`` tokens of ``total`` have been read at ``now``."""
        read = min(read, total)
        if not self._first[1]:
            self._first = self._last = (now, read)
        elif read != self._last[1]:
            self._last = (now, read)
        (began, before), (then, _) = self._first, self._last
        if read - before < FEW or then <= began:
            return Reading(read, total)
        seconds = (total - read) * (then - began) / (read - before)
        return Reading(read, total, max(0.0, seconds - (now - then)))
