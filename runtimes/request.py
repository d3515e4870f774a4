"""The data that crosses the engine's border: what is asked for, and what comes back."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from runtimes.errors import RequestError

_ids = itertools.count(1)


class Priority(IntEnum):
    """Admission order; a lower value is admitted first."""

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"  # an end-of-sequence token or a stop string
    LENGTH = "length"  # max_tokens reached
    CONTEXT = "context"  # the slot's context is full
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. ``temperature=0`` is greedy.

    ``top_k=0``, ``top_p=1``, ``min_p=0``, ``repetition_penalty=1`` and zero presence/frequency
    penalties each switch their step off. ``seed=None`` draws a fresh seed for the request; the same
    seed gives the same text whatever other rows share the batch.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = False

    def __post_init__(self) -> None:
        """Raises RequestError naming the first field that is out of its range."""
        checks: tuple[tuple[str, float, bool, str], ...] = (
            ("max_tokens", self.max_tokens, self.max_tokens >= 1, "at least 1"),
            ("temperature", self.temperature, self.temperature >= 0, "0 or more"),
            ("top_k", self.top_k, self.top_k >= 0, "0 (off) or more"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "in (0, 1]"),
            ("min_p", self.min_p, 0 <= self.min_p <= 1, "in [0, 1]"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                self.repetition_penalty > 0,
                "above 0",
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                -2 <= self.presence_penalty <= 2,
                "in [-2, 2]",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                -2 <= self.frequency_penalty <= 2,
                "in [-2, 2]",
            ),
        )
        for name, value, good, rule in checks:
            if not (good and math.isfinite(value)):
                raise RequestError(f"{name} must be {rule}, not {value!r}")
        if any(not text for text in self.stop):
            raise RequestError("a stop string must not be empty")


@dataclass(slots=True)
class Request:
    """One prompt, already tokenized, with its sampling parameters."""

    prompt: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: Priority = Priority.NORMAL
    id: str = field(default_factory=lambda: f"req-{next(_ids)}")

    def __post_init__(self) -> None:
        """Raises RequestError for an empty prompt."""
        if not self.prompt:
            raise RequestError("the prompt has no tokens")


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one completion."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds on a monotonic clock, relative to submission.

    TTFT is submission to first token; TPOT the mean gap between later tokens (MLPerf inference's
    definitions).
    """

    queue_s: float
    prefill_s: float
    ttft_s: float
    decode_s: float
    total_s: float
    prompt_tokens: int
    completion_tokens: int

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds per output token after the first; None below two tokens."""
        return self.decode_s / (self.completion_tokens - 1) if self.completion_tokens > 1 else None

    @property
    def prefill_tps(self) -> float | None:
        """Prompt tokens per second of prefill."""
        return self.prompt_tokens / self.prefill_s if self.prefill_s > 0 else None

    @property
    def decode_tps(self) -> float | None:
        """Output tokens per second after the first."""
        return 1 / self.tpot_s if self.tpot_s else None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of streamed text with the tokens that made it."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """What a finished request produced. ``error`` is set only with ``FinishReason.ERROR``."""

    id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    logprobs: tuple[float, ...] | None = None
    error: str | None = None
