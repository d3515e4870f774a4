"""What a comparison is asked, and what it hands out while it runs and at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from app.options import ModelOptions
from runtimes.chat import Message
from runtimes.request import SamplingParams

GREEDY = SamplingParams(max_tokens=256)
# Several scripts, digits, code, white space: vocabularies that cut all of it alike are the same.
PROBE = (
    "The quick brown fox jumps over 1,234 lazy dogs; naïve façade, Grüße aus Köln, Łódź.\n"
    "Съешь же ещё этих мягких французских булок. Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.\n"
    "你好世界。こんにちは。안녕하세요. नमस्ते שלום مرحبا\n"
    "def f(x: int) -> list[str]:\n\treturn [f'{i:>3}' for i in range(x)]  # €5 ½ → ∞ 🙂\n"
)


@dataclass(frozen=True, slots=True)
class Contender:
    """A file to ask, named as on the command line; ``label`` is what people call it."""

    model: str
    options: ModelOptions = field(default_factory=ModelOptions)
    label: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A conversation that ends with what is asked, and how answers are sampled."""

    messages: tuple[Message, ...]
    params: SamplingParams = GREEDY

    @property
    def greedy(self) -> bool:
        """Whether answers can be compared token by token: the likeliest one is always taken."""
        return self.params.temperature == 0


class SideState(StrEnum):
    """How far one file is."""

    WAITING = "waiting"
    LOADING = "loading"
    ANSWERING = "answering"
    DONE = "done"
    STOPPED = "stopped"  # by the user: the answer is what was there by then
    FAILED = "failed"  # ``Side.error`` says why

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self in (SideState.DONE, SideState.STOPPED, SideState.FAILED)


@dataclass(frozen=True, slots=True)
class SideFigures:
    """Seconds, tokens per second, bytes; None while not known."""

    prompt_tokens: int | None = None
    completion_tokens: int = 0
    # From nothing to an engine that is warm: reading the file is not part of the other figures.
    load_s: float | None = None
    ttft_s: float | None = None
    prefill_tps: float | None = None
    decode_tps: float | None = None
    total_s: float | None = None
    # Of the file's process, resident: weights, keys and values, the runtime itself; not on a GPU.
    peak_bytes: int | None = None
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """One file's answer as it is now."""

    contender: Contender
    label: str
    state: SideState
    file: str | None = None
    runtime: str | None = None
    text: str = ""
    token_ids: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()  # of each token in ``text``; its end for one without text
    figures: SideFigures = SideFigures()
    error: str | None = None
    # Natural log-probabilities of the likeliest tokens, at positions where they were asked for.
    top: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    prompt: tuple[int, ...] = ()  # the question's token ids
    probe: tuple[int, ...] = ()  # those of a fixed text, by which vocabularies are told apart

    @property
    def whole(self) -> bool:
        """Whether the answer ended by itself, so that its end is part of what it says."""
        return self.figures.finish_reason == "stop"

    def ends_at(self, index: int) -> bool:
        """Whether the answer ends with the token at ``index``, or has ended before it."""
        last = len(self.token_ids) - 1
        return index > last or (self.whole and index == last)

    def place(self, index: int) -> int:
        """Where the token at ``index`` begins in the text."""
        return self.starts[index] if index < len(self.starts) else len(self.text)

    def piece(self, index: int) -> str:
        """The text of the token at ``index``; empty for one that ends the answer."""
        begin = self.place(index)
        later = (start for start in self.starts[index + 1 :] if start > begin)
        return self.text[begin : next(later, len(self.text))]


@dataclass(frozen=True, slots=True)
class CompareReport:
    """A comparison as it stands."""

    question: Question
    sides: tuple[Side, ...]
    # Of each later side with the first; None where one has no answer or sampling is not greedy.
    agreements: tuple[Agreement | None, ...]
    together: bool = False
    ended: bool = False  # nothing more will come


@dataclass(frozen=True, slots=True)
class Parting:
    """The first difference. Pairs are of the first file and of the other; None is not known."""

    index: int  # in the agreement's unit
    mine: str | None  # what the first file has: None is the end of an answer, and ...
    theirs: str | None  # ... the other; "" is a token without text
    places: tuple[int, int]  # where these begin in the two texts
    # How much likelier the best token was than the second best: natural log-probabilities.
    gaps: tuple[float | None, float | None] = (None, None)
    # Of ``mine`` and ``theirs``: a pair in each file.
    logprobs: tuple[tuple[float | None, ...], tuple[float | None, ...]] = ((None,) * 2,) * 2

    @property
    def near_tie(self) -> bool | None:
        """Whether one of the files found its two best tokens about equally likely, so that a
        rounding error decided; None when not known."""
        known = [gap for gap in self.gaps if gap is not None]
        return min(known) <= NEAR_TIE if known else None


NEAR_TIE = 0.02


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far an answer is the first file's, counted in ``unit``."""

    unit: str
    same: int  # equal from the start on
    longest: int  # the length of the longer answer
    common: int | None = None  # of their longest common subsequence; None until both have ended
    parting: Parting | None = None  # None for answers that are equal as far as both go
    same_prompt: bool = True

    @property
    def same_share(self) -> float:
        """The part of the longer answer that is equal from its start on, 0 to 1."""
        return self.same / self.longest if self.longest else 1.0

    @property
    def share(self) -> float | None:
        """The part of the longer answer that the other has in the same order, 0 to 1."""
        if self.common is None:
            return None
        return self.common / self.longest if self.longest else 1.0
