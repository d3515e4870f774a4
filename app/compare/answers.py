"""Questions and answers of a comparison, and where two answers part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

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
    """Stage of one file in a comparison."""

    WAITING = "waiting"
    LOADING = "loading"
    ANSWERING = "answering"
    DONE = "done"
    STOPPED = "stopped"  # by the user: the answer is what was there by then
    FAILED = "failed"  # ``error`` says why

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self in ("done", "stopped", "failed")


@dataclass(frozen=True, slots=True)
class Told:
    """One file's answer; figures are None where they are not known. The reports of files of prompts
    keep the fields as JSON, in this order."""

    text: str = ""
    error: str | None = None
    finish_reason: str | None = None
    tokens: int = 0
    decode_tps: float | None = None
    ttft_s: float | None = None
    right: bool | None = None  # None where nobody says which answer is expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Side(Told):
    """One file's answer as it is now; seconds, tokens per second, bytes."""

    contender: Contender
    label: str
    state: SideState
    file: str | None = None
    runtime: str | None = None
    thought: str = ""
    thought_tokens: int = 0
    unheeded: str | None = None  # why the file thinks in another way than it was asked to
    token_ids: tuple[int, ...] = ()  # of the thought too
    starts: tuple[int, ...] = ()  # of each token in ``written``; its end for one without text
    # From nothing to an engine that is warm: reading the file is not part of the other figures.
    load_s: float | None = None
    prefill_tps: float | None = None
    total_s: float | None = None
    # Of the file's process, resident: weights, keys and values, the runtime itself; not on a GPU.
    peak_bytes: int | None = None
    # Natural log-probabilities of the likeliest tokens, at positions where they were asked for.
    top: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    prompt: tuple[int, ...] = ()  # the question's token ids
    probe: tuple[int, ...] = ()  # those of a fixed text, by which vocabularies are told apart

    @property
    def written(self) -> str:
        """The thought, and below it the answer."""
        return "\n\n".join(filter(None, (self.thought, self.text)))

    @property
    def whole(self) -> bool:
        """Whether the answer ended by itself, so that its end is part of what it says."""
        return self.finish_reason == "stop"

    def ends_at(self, index: int) -> bool:
        """Whether the answer ends with the token at ``index``, or has ended before it."""
        last = len(self.token_ids) - 1
        return index > last or (self.whole and index == last)

    def place(self, index: int) -> int:
        """Position in ``written`` at which the token at ``index`` begins."""
        return self.starts[index] if index < len(self.starts) else len(self.written)

    def piece(self, index: int) -> str:
        """The text of the token at ``index``; empty for one that ends the answer."""
        begin = self.place(index)
        later = (start for start in self.starts[index + 1 :] if start > begin)
        return self.written[begin : next(later, None)]


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
    places: tuple[int, int]  # where these begin in what the two have ``written``
    # How much likelier the best token was than the second best: natural log-probabilities.
    gaps: tuple[float | None, ...] = (None, None)
    # Of ``mine`` and ``theirs``: a pair in each file.
    logprobs: tuple[tuple[float | None, ...], ...] = ((None,) * 2,) * 2

    @property
    def near_tie(self) -> bool | None:
        """Whether one of the files found its two best tokens about equally likely, so that a
        rounding error decided; None when not known."""
        known = [gap for gap in self.gaps if gap is not None]
        return min(known) <= NEAR_TIE if known else None


NEAR_TIE = 0.02


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of an answer with the first file's, counted in ``unit``."""

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


# Where two greedy answers part, and how much of them is equal.


def agreement(first: Side, other: Side) -> Agreement | None:
    """``other`` against ``first``, from their thoughts on; None while one of them has nothing.

    Token by token where both use the same vocabulary, else character by character. An answer that
    was cut (by its length limit or by the user) says nothing of what would have followed: it agrees
    with a longer one that begins with it.
    """
    if not all((first.probe, other.probe, first.token_ids, other.token_ids)):
        return None
    # A token that one of them puts before every text does not count.
    a, b = first.probe, other.probe
    tokens = a == b or a[1:] == b or a == b[1:]
    mine = first.token_ids if tokens else first.written
    theirs = other.token_ids if tokens else other.written
    same = equal_from_start(mine, theirs)
    ended = first.state.ended and other.state.ended
    # Where one is the beginning of the other, the shorter one must have ended there by itself.
    shorter, longer = sorted((len(mine), len(theirs)))
    whole = (first if len(mine) == shorter else other).whole
    make = _at_token if tokens else _at_character
    return Agreement(
        unit="tokens" if tokens else "characters",
        same=same,
        longest=longer,
        common=longest_common(mine, theirs) if ended else None,
        parting=make(first, other, same) if same < (longer if whole else shorter) else None,
        same_prompt=first.prompt == other.prompt or not tokens,
    )


def equal_from_start(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """The length of the common beginning."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


@lru_cache(16)
def longest_common(a: tuple[Hashable, ...] | str, b: tuple[Hashable, ...] | str) -> int:
    """The length of the longest common subsequence.

    Bit-parallel (H. Hyyrö, "Bit-parallel LCS-length computation revisited", 2004): one addition of
    numbers of len(a) bits for each item of ``b``.
    """
    places: dict[Hashable, int] = defaultdict(int)
    for i, item in enumerate(a):
        places[item] |= 1 << i
    row = everything = (1 << len(a)) - 1
    for item in b:
        matches = row & places[item]
        row = ((row + matches) | (row - matches)) & everything
    return len(a) - row.bit_count()


def _at_token(first: Side, other: Side, index: int) -> Parting:
    sides = (first, other)
    pair = [side.token_ids[index] if index < len(side.token_ids) else None for side in sides]
    tops = [side.top.get(index, {}) for side in sides]
    best = [sorted(top.values(), reverse=True) for top in tops]
    mine, theirs = (None if side.ends_at(index) else side.piece(index) for side in sides)
    return Parting(
        index,
        mine,
        theirs,
        (first.place(index), other.place(index)),
        tuple(one[0] - one[1] if len(one) > 1 else None for one in best),
        tuple(tuple(None if id is None else top.get(id) for id in pair) for top in tops),
    )


def _at_character(first: Side, other: Side, index: int) -> Parting:
    mine, theirs = (side.written[index : index + 12] or None for side in (first, other))
    return Parting(index, mine, theirs, (index, index))
