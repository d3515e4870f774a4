"""The data that crosses the engine's border: what is asked for, and what comes back."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, fields
from enum import IntEnum, StrEnum
from typing import Any, Literal, TypeVar, get_args

from runtimes.errors import ParameterError, RequestError

_ids = itertools.count(1)

MOST_TOP_LOGPROBS = 20
MOST_SAMPLES = 64
ThinkingLevel = Literal["on", "off", "low", "medium", "high"]
ThinkingPlace = Literal["prompt", "thought", "answer"]
MOST_THINK_TOKENS = 2**31 - 1


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
    DEADLINE = "deadline"  # the request's time was up
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Constraint:
    """Constraint on an answer, as text: a JSON schema, a regular expression, a JSON list of
    choices, or a grammar. ``runtimes.grammars.grammar_of`` says whether it can be used.

    ``tools`` is a JSON object: a ``grammar``, and ``markers``, texts in it. Where the vocabulary
    has a control token of such a text, it stands for the text, also in the answer.
    """

    kind: Literal["json_schema", "regex", "choices", "grammar", "tools"]
    source: str


@dataclass(frozen=True, slots=True)
class ThoughtForm:
    """Texts around a thought: it begins behind ``opens`` and ends before ``closes``. ``then``
    stands between it and the answer; an answer without a thought may begin with ``head``."""

    opens: str
    closes: str
    then: str = "\n\n"
    head: str = ""


@dataclass(frozen=True, slots=True)
class Thinking:
    """How the thought of one request is told from its answer, and when it ends.

    ``at``: where the answer goes on: where the prompt ends, which tells whether the template has
    begun a thought, in the middle of a ``thought``, or in the ``answer``. ``expected``: whether an
    answer under a constraint may have a thought before it that the template has not begun.
    """

    form: ThoughtForm
    at: ThinkingPlace = "prompt"
    expected: bool = True


_Value = TypeVar("_Value")


def _parameter(
    default: _Value, help: str, label: str, range: str, short: str, *flags: str, **more: Any
) -> _Value:
    """A field with what is said of its flag, as ``app.options.option`` takes it, and ``short`` of
    its setting: in the chat's panel and by /set, with what may be typed (``range``)."""
    setting = {"label": label, "range": range, "help": short}
    return field(
        default=default, metadata={"flags": flags, "help": help, "setting": setting, **more}
    )


@dataclass(frozen=True, slots=True)
class UserSampling:
    """Sampling parameters that have a flag and are a setting of the chat."""

    temperature: float = _parameter(
        0.0,
        "0 always takes the likeliest token.",
        "Temperature",
        "0 or more",
        "0 always takes the likeliest",
        "--temperature",
        "-t",
    )
    top_p: float = _parameter(
        1.0,
        "Sample from the likeliest tokens up to this total probability.",
        "Top-p",
        "above 0, to 1 (off)",
        "the likeliest up to this sum",
    )
    top_k: int = _parameter(
        0,
        "Sample from the K likeliest tokens; 0 for all.",
        "Top-k",
        "0 (off) or more",
        "only the k likeliest tokens",
    )
    min_p: float = _parameter(
        0.0,
        "Minimum probability of a token, relative to the likeliest.",
        "Min-p",
        "0 (off) to 1",
        "only tokens this likely, to the likeliest",
    )
    max_tokens: int = _parameter(
        256,
        "Maximum number of tokens in an answer.",
        "Longest answer",
        "1 or more",
        "tokens of an answer at most",
    )
    repetition_penalty: float = _parameter(
        1.0,
        "Above 1 discourages repetition.",
        "Repetition",
        "above 0; 1 is off",
        "above 1 repeats less",
    )
    presence_penalty: float = _parameter(
        0.0,
        "Subtracted from tokens seen once.",
        "Presence",
        "-2 to 2; 0 is off",
        "off tokens seen once",
    )
    frequency_penalty: float = _parameter(
        0.0,
        "Subtracted for each time seen.",
        "Frequency",
        "-2 to 2; 0 is off",
        "off for each time seen",
    )
    # The same seed gives the same text whatever other rows share the batch; None draws one.
    seed: int | None = _parameter(
        None,
        "Makes sampling repeatable.",
        "Seed",
        "a whole number, or nothing",
        "makes answers repeatable",
    )
    stop: tuple[str, ...] = _parameter(
        (),
        "End before this text; repeatable.",
        "Stop texts",
        r"texts, | between, \n a line end",
        "end an answer",
    )
    # What the chat template is told; None: nothing.
    thinking: ThinkingLevel | None = _parameter(
        None,
        "Whether, or how long, a model thinks before it answers: on, off, low, medium or high.",
        "Thinking",
        "on, off, low to high",
        "whether the model thinks before it answers",
        metavar="LEVEL",
    )
    # None: until the thought ends by itself or repeats.
    think_tokens: int | None = _parameter(
        None,
        "Tokens of such a thought at most; then the answer begins.",
        "Longest thought",
        "0 or more, or nothing",
        "tokens of a thought at most",
        min=0,
        metavar="N",
    )


def with_default(name: str, default: _Value, **more: Any) -> _Value:
    """The field of this name of ``UserSampling`` for a class of its kind that has another default,
    and says ``more`` of its flag."""
    said = next(one.metadata for one in fields(UserSampling) if one.name == name)
    return field(default=default, metadata={**said, **more})


@dataclass(frozen=True, slots=True)
class SamplingParams(UserSampling):
    """How the next token is chosen. Every default switches its step off, and the temperature of 0
    is greedy. These are the steps in their order.

    1. Tokens that the row's constraint does not allow are banned.
    2. ``logit_bias`` is added.
    3. Below ``min_tokens`` the end-of-sequence tokens are banned, unless the constraint wants the
       end.
    4. Repetition penalty, then frequency and presence penalties. Repetition counts prompt and
       output tokens (CTRL, arXiv:1909.05858); the others count output tokens only (OpenAI's
       definition).
    5. ``temperature``; 0 takes the likeliest token and ends here.
    6. ``top_k``, then ``top_p`` of what is left, then ``min_p`` of the likeliest.
    7. One draw.
    """

    ignore_eos: bool = False
    # By the model's own logits, before bias, penalties and temperature: the log-probability of each
    # token, and those of so many likeliest tokens at every position.
    logprobs: bool = False
    top_logprobs: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()  # token ids, and what is added to their logits
    min_tokens: int = 0  # below, no end-of-sequence token is sampled and no stop string counts
    # ``n`` completions of ``best_of`` (None: as many), the best by mean log-probability first.
    n: int = 1
    best_of: int | None = None
    # Only what keeps to it is sampled; the answer ends when nothing can follow, whatever
    # ``ignore_eos`` and ``min_tokens`` say.
    constraint: Constraint | None = None
    # Of each prompt token given those before it, and of so many likeliest ones there; with it
    # ``max_tokens`` may be 0. What is cached of the prompt is computed again.
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        """Raises ParameterError naming the first field that is out of its range."""
        least = 1 if self.prompt_logprobs is None else 0
        for name, good, rule in (
            ("max_tokens", self.max_tokens >= least, f"at least {least}"),
            ("temperature", self.temperature >= 0, "0 or more"),
            ("top_k", self.top_k >= 0, "0 (off) or more"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("min_p", 0 <= self.min_p <= 1, "in [0, 1]"),
            ("repetition_penalty", self.repetition_penalty > 0, "above 0"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "in [-2, 2]"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "in [-2, 2]"),
        ):
            number: float = getattr(self, name)
            if not (good and math.isfinite(number)):
                raise ParameterError(f"{name} must be {rule}, not {number!r}", name)
        for name, value, least, most in (
            ("top_logprobs", self.top_logprobs, 0, MOST_TOP_LOGPROBS),
            ("prompt_logprobs", self.prompt_logprobs or 0, 0, MOST_TOP_LOGPROBS),
            ("n", self.n, 1, MOST_SAMPLES),
            ("best_of", self.samples, self.n, MOST_SAMPLES),
            ("min_tokens", self.min_tokens, 0, self.max_tokens),
            ("think_tokens", self.think_tokens or 0, 0, MOST_THINK_TOKENS),
        ):
            if not least <= value <= most:
                message = f"{name} must be from {least} to {most}, not {value!r}"
                raise ParameterError(message, name)
        if not all(math.isfinite(bias) for _, bias in self.logit_bias):
            message = "logit_bias must be finite numbers; -100 bans a token in practice"
            raise ParameterError(message, "logit_bias")
        if self.thinking not in (None, *get_args(ThinkingLevel)):
            levels = ", ".join(get_args(ThinkingLevel))
            message = f"thinking must be one of {levels}, not {str(self.thinking)[:40]!r}"
            raise ParameterError(message, "thinking")
        if any(not text for text in self.stop):
            raise ParameterError("a stop string must not be empty", "stop")

    @property
    def samples(self) -> int:
        """How many completions are made."""
        return self.n if self.best_of is None else self.best_of

    @property
    def top_k_needed(self) -> int:
        """How many of a row's largest logits decide its token; 0 where all of them are needed."""
        whole = (
            self.wants_logprobs
            or self.prompt_logprobs is not None
            or self.logit_bias
            or self.constraint is not None
            or self.min_tokens > 0
            or self.penalised
        )
        if whole:
            return 0
        return self.top_k if self.temperature > 0 else 1

    @property
    def penalised(self) -> bool:
        """Whether tokens that have come are less likely, or more."""
        penalties = self.repetition_penalty, self.presence_penalty, self.frequency_penalty
        return penalties != (1, 0, 0)

    @property
    def wants_logprobs(self) -> bool:
        """Whether the log-probability of each sampled token is needed: asked for, or to rank."""
        return self.logprobs or self.top_logprobs > 0 or self.samples > self.n


@dataclass(slots=True)
class Request:
    """One prompt, already tokenized, with its sampling parameters."""

    prompt: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: Priority = Priority.NORMAL
    timeout_s: float | None = None  # from submission; then it ends with what it has (DEADLINE)
    id: str = field(default_factory=lambda: f"req-{next(_ids)}")
    adapter: str | None = None  # what changes the weights for it; refused where it is not loaded
    # With ``prompt_logprobs``: the first token that has one. What is cached of those before it is
    # not computed again.
    scored_from: int = 1
    embed: bool = False  # the prompt's embedding is wanted, and no token
    thinking: Thinking | None = None  # tells a thought from the answer; None: all of it is text
    followed: bool = True  # a later prompt may go on from this one's messages

    def __post_init__(self) -> None:
        """Raises RequestError for an empty prompt."""
        if not self.prompt:
            raise RequestError("the prompt has no tokens")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise RequestError(f"timeout_s must be above 0, not {self.timeout_s!r}")
        if not 1 <= self.scored_from <= max(1, len(self.prompt) - 1):
            raise RequestError(
                f"scored_from is {self.scored_from}: no token follows, or none leads"
            )


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one completion; ``cached_tokens`` of the prompt were not computed again, and
    ``thought_tokens`` of the completion stand before the answer."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    thought_tokens: int = 0

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
    cached_tokens: int = 0
    forced_tokens: int = 0  # of the answer, that its constraint left no choice about
    proposed_tokens: int = 0  # guessed, and computed together with the token before
    accepted_tokens: int = 0  # of these, the ones that were sampled then
    drafted_tokens: int = 0  # of those guessed, the ones that the draft model guessed
    accepted_drafts: int = 0  # of these, the ones that were sampled then

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds per output token after the first; None below two tokens."""
        return self.decode_s / (self.completion_tokens - 1) if self.completion_tokens > 1 else None

    @property
    def prefill_tps(self) -> float | None:
        """Prompt tokens per second of prefill, those that were cached left out."""
        computed = self.prompt_tokens - self.cached_tokens
        return computed / self.prefill_s if self.prefill_s > 0 and computed > 0 else None

    @property
    def decode_tps(self) -> float | None:
        """Output tokens per second after the first."""
        return 1 / self.tpot_s if self.tpot_s else None


@dataclass(slots=True)
class Chunk:
    """A piece of streamed text with the tokens that have come since the piece before.

    A character may take several tokens; those of the last piece may reach into what is held back
    for a stop string. ``index`` tells samples apart.
    """

    text: str
    token_ids: tuple[int, ...]
    index: int = 0
    thought: bool = False  # the text belongs to the thought before the answer


@dataclass(frozen=True, slots=True)
class Completion:
    """Result of a finished request."""

    id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    logprobs: tuple[float, ...] | None = None  # natural, of each sampled token
    error: str | None = None  # only with FinishReason.ERROR
    top_logprobs: tuple[dict[int, float], ...] | None = None  # at each position, by token id
    token_bytes: dict[int, bytes] | None = None  # of all tokens with log-probabilities
    others: tuple[Completion, ...] = ()  # further samples, with ``n`` above 1
    # Of each prompt token; None of those before ``scored_from``.
    prompt_logprobs: tuple[float | None, ...] | None = None
    prompt_top_logprobs: tuple[dict[int, float] | None, ...] | None = None
    retryable: bool = False  # of an error: the same request may succeed if it is submitted again
    stop: str | None = None  # the stop string that ended it
    embedding: tuple[float, ...] | None = None  # of length 1; where it is wanted
    thought: str | None = None  # before the text; None where there is none
    thinks: bool = False  # it ended within the thought

    @property
    def choices(self) -> tuple[Completion, ...]:
        """Every sample, this one first."""
        return (self, *self.others)
