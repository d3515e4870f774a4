"""Guesses of how rows go on, where computing several tokens at once pays.

Text repeats itself: what followed the last tokens of a row when they came before, in its prompt or
its answer, is likely to follow again (prompt lookup decoding). A draft model, where there is one,
guesses what it would say itself. A step that has guesses of a row gives the logits after each of
them. The tokens are sampled from these as always, for as long as
they are what was guessed; so guesses change how fast an answer comes, and nothing else.

Whether they pay depends on the machine, the model and the text, so all three are measured: how much
longer a step takes by its rows and further tokens, how long the draft takes, and how often a row's
guesses of each kind were right. There are no guesses while a step with them is not expected to give
more tokens a second; only one step in many then tries again. Steps of the draft are paid out of a
credit that they have to earn back, so that what it can lose is bounded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Sequence as Row
from dataclasses import dataclass

from runtimes.engine.draft import Draft
from runtimes.engine.metrics import SMOOTHING, averaged
from runtimes.engine.sequence import RowTokens, Sequence

_GRAM = 3  # tokens that must have come before, in this order
_LONGEST_MATCH = 16  # longer ones count as this long
_DEPTHS = (2, 4, 8, 16)  # guesses for a row that are considered
_DRAFT_DEPTHS = (1, 2, 3, 5, 8)  # where a draft makes some
_AT_LEAST = 0.8  # of what a row costs, a further token does
_GAIN = 1.05  # expected, below which it is not worth the risk
_FIRST_WAIT, _LONGEST_WAIT = 16, 128  # decode steps between trials
_MOST_SEEN = 10  # steps that a mean is of: by chance a few are fast, and would be taken for a gain
_PRIOR = 2.0  # guesses that what is known of others counts as
_DRAFT = 0  # the ``match`` of a draft's guesses
_FIRST_DRAFT = (3.0, 1.0)  # right ones, wrong ones, until some are known
# What drafts may lose, in steps without guesses: at first, at most, and earned by each step.
_FIRST_CREDIT, _MOST_CREDIT, _STEP_CREDIT = 4.0, 16.0, 0.005
_REST = 16  # decode steps until a draft that would not pay is considered again
_TRIAL_DEPTH = 2
_LEAST_HORIZON = 16  # tokens that are expected to come still, before more have come


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens that may come next, and how many before them have come in this order before."""

    tokens: list[int]
    match: int


@dataclass(frozen=True, slots=True)
class _Offer:
    """Proposals for one row."""

    sequence: Sequence
    chance: float  # that a guess is right when those before it were
    most: int  # how many there are
    guess: Guess | None  # None: the draft has to make it
    behind: float = 0.0  # seconds, once, until the draft has caught up
    share: float = 0.0  # of them that a guess has to bear


@dataclass(frozen=True, slots=True)
class _Choice:
    """Offers that are taken, up to ``depth`` guesses of each, and how many times as many tokens a
    second as without are expected of that; 0 where nothing like it has been tried."""

    offers: list[_Offer]
    depth: int
    gain: float


@dataclass(slots=True)
class GuessRecord:
    """How many guesses were right, and how often one was wrong; old ones count less."""

    right: float = 0.0
    wrong: float = 0.0

    def learn(self, right: int, *, wrong: bool) -> None:
        """Note guesses of a step, and whether one was wrong."""
        self.right = SMOOTHING * self.right + right
        self.wrong = SMOOTHING * self.wrong + wrong

    def chance(self, others: GuessRecord) -> float:
        """That the next one is right, where ``others`` is known of guesses like it."""
        usual = others.right / (others.right + others.wrong)
        return (self.right + _PRIOR * usual) / (self.right + self.wrong + _PRIOR)


class History:
    """Finds where the last tokens of one row came before."""

    def __init__(self) -> None:
        self.found, self.drafted = GuessRecord(), GuessRecord()
        self._tokens: list[int] = []
        self._follows: dict[tuple[int, ...], int] = {}  # where the last one of each n-gram ends

    def guess(self, sequence: Sequence, most: int) -> Guess | None:
        """Up to ``most`` tokens."""
        tokens, known = self._tokens, len(self._tokens)
        tokens += sequence.tokens(known, sequence.length - known)
        for end in range(max(known, _GRAM), len(tokens)):
            self._follows[tuple(tokens[end - _GRAM : end])] = end
        start = self._follows.get(tuple(tokens[-_GRAM:]))
        if start is None or most < 1:
            return None
        found = list[int]()
        for at in range(start, start + most):  # what repeats itself now may go on doing so
            found.append(tokens[at] if at < len(tokens) else found[at - len(tokens)])
        return Guess(found, self._match(start))

    def _match(self, start: int) -> int:
        tokens, end, length = self._tokens, len(self._tokens), _GRAM
        while length < min(_LONGEST_MATCH, start) and (
            tokens[start - length - 1] == tokens[end - length - 1]
        ):
            length += 1
        return length


class Proposer:
    """Guesses for the rows of an engine. For its thread only."""

    def __init__(self, draft: Draft | None = None) -> None:
        self.draft = draft
        self.drafted: frozenset[Sequence] = frozenset()  # whose guesses the draft has made
        self.drafting_s = 0.0  # that it took for the step that is planned
        self._histories: dict[Sequence, History] = defaultdict(History)
        self._plain: dict[int, float] = {}  # seconds of a step with that many rows
        # How many times as long it takes, by rows and the further tokens' number of bits.
        self._times: dict[tuple[int, int], float] = {}
        self._seen: dict[tuple[int, int], int] = {}  # how many steps that is the mean of
        self._records = defaultdict(lambda: GuessRecord(1.0, 1.0))  # guesses by match
        self._records[_DRAFT] = GuessRecord(*_FIRST_DRAFT)
        self._waited, self._wait = 0, _FIRST_WAIT
        self._since_plain = 0
        self._guesses: dict[Sequence, Guess] = {}  # in the step that runs
        self._credit, self._rest, self._trial = _FIRST_CREDIT, 0, False

    def begin(self) -> None:
        """Forget what is of the step before."""
        self.drafted, self.drafting_s = frozenset(), 0.0

    def forget(self, sequence: Sequence) -> None:
        """Forget a row that has ended."""
        self._histories.pop(sequence, None)
        self._guesses.pop(sequence, None)
        if self.draft is not None:
            self.draft.forget(sequence)

    def propose(self, decoding: Row[Sequence], most: int) -> RowTokens:
        """Guesses for rows that decode in the next step, and no more than ``most`` in all."""
        self._guesses = {}
        rows = len(decoding)
        if rows not in self._plain or self._since_plain >= _LONGEST_WAIT:
            self._since_plain = 0  # comparisons need a step without guesses, of these days
            return {}
        self._waited += 1
        offers = [offer for one in decoding if (offer := self._found(one, most))]
        choice = self._best(rows, offers, most, _DEPTHS) if offers else None
        drafting = self._drafting(decoding, offers, most, choice.gain if choice else 0.0)
        if drafting is not None:
            return self._take(drafting)
        if choice is None:
            return {}
        if choice.gain < _GAIN:
            if self._waited < self._wait:
                return {}
            self._waited, self._wait = 0, min(2 * self._wait, _LONGEST_WAIT)
        return self._take(choice)

    def _take(self, choice: _Choice) -> RowTokens:
        """Make the chosen proposals; the draft makes its part of them."""
        depth = choice.depth
        self._guesses = {
            one.sequence: Guess(one.guess.tokens[:depth], one.guess.match)
            for one in choice.offers
            if one.guess is not None
        }
        wanted = {o.sequence: min(depth, o.most) for o in choice.offers if o.guess is None}
        found = self._ask_draft(wanted)
        self._guesses |= {one: Guess(guessed, _DRAFT) for one, guessed in found.items()}
        return {one: guess.tokens for one, guess in self._guesses.items()}

    def _ask_draft(self, wanted: dict[Sequence, int]) -> RowTokens:
        """So many guesses of the draft for each of these rows."""
        if not wanted or self.draft is None:
            return {}
        found = self.draft.guess(wanted)
        self.drafted = frozenset(found)
        self.drafting_s = self.draft.seconds + self.draft.caught_up_s
        return found

    def _found(self, sequence: Sequence, most: int) -> _Offer | None:
        """Propose tokens from the row's own text (prompt lookup)."""
        history = self._histories[sequence]
        guess = history.guess(sequence, min(_DEPTHS[-1], _left(sequence), most))
        if guess is None:
            return None
        chance = history.found.chance(self._records[guess.match])
        return _Offer(sequence, chance, len(guess.tokens), guess)

    def _drafting(
        self, decoding: Row[Sequence], offers: list[_Offer], most: int, other: float
    ) -> _Choice | None:
        """Choose the best proposals with the draft; None where it does not promise more than the
        gain of the ``other`` choice, and is not to be tried."""
        if self.draft is None or self.draft.lost:
            return None
        self._rest -= 1
        if self._rest > 0:
            return None
        rows, found = len(decoding), {offer.sequence: offer for offer in offers}
        pays = self._could_pay(rows)
        mine = (self._drafted(one, found.get(one), most) for one in decoding if pays)
        every = [offer for offer in mine if offer is not None]
        self._trial = False
        if drafts := [offer for offer in every if offer.guess is None]:
            choice = self._best(rows, every, most, _DRAFT_DEPTHS)
            if choice.gain >= _GAIN and choice.gain > other and self._credit > 0:
                return choice
            # A few guesses of the row that costs least, where the credit pays for them.
            one = min(drafts, key=lambda offer: offer.behind)
            cost = self._draft_times(rows, 1, _TRIAL_DEPTH, one.behind)
            if other < _GAIN and cost <= self._credit:
                self._trial, self._rest = True, _REST
                return _Choice([one], _TRIAL_DEPTH, 0.0)
        self._rest = _REST
        return None

    def _drafted(self, sequence: Sequence, found: _Offer | None, most: int) -> _Offer | None:
        """The draft's offer of a row, or the one that was found in its text if that is better."""
        draft, left = self.draft, _left(sequence)
        chance = self._histories[sequence].drafted.chance(self._records[_DRAFT])
        if draft is None or (found is not None and found.chance >= chance):
            return found
        size = min(_DRAFT_DEPTHS[-1], left, most, draft.room(sequence))
        if size < 1:
            return found
        behind = draft.behind(sequence)
        horizon = min(left, max(_LEAST_HORIZON, 2 * len(sequence.output)))
        return _Offer(sequence, chance, size, None, behind, behind / horizon)

    def _could_pay(self, rows: int) -> bool:
        """Whether the draft would, if all that it guesses were right."""
        times = (
            (depth, (self._time(rows, rows * depth) or 1.0) + self._draft_times(rows, rows, depth))
            for depth in _DRAFT_DEPTHS
        )
        return any(1 + depth >= _GAIN * took for depth, took in times)

    def _draft_times(self, rows: int, drafted: int, depth: int, further: float = 0.0) -> float:
        """How many steps of ``rows`` rows without guesses the draft takes for its own."""
        if not drafted or self.draft is None:
            return 0.0
        return (self.draft.cost(drafted, depth) + further) / self._plain[rows]

    def _best(self, rows: int, offers: list[_Offer], most: int, depths: tuple[int, ...]) -> _Choice:
        """The rows and numbers of guesses that promise most."""
        ranked = sorted(offers, key=lambda offer: -offer.chance)
        best = 0, depths[1], 0.0
        for depth in depths:
            more = drafted = 0
            gained = behind = 0.0
            for count, offer in enumerate(ranked, 1):
                size, chance = min(depth, offer.most), offer.chance
                more += size
                gained += chance * (1 - chance**size) / (1 - chance) if chance < 1 else size
                drafted += offer.guess is None
                behind += offer.share * size
                times = self._time(rows, more)
                if times is None and drafted:
                    times = 1.0  # the draft's own time is known
                if more > most or times is None:
                    break
                times += self._draft_times(rows, drafted, depth, behind)
                gain = (rows + gained) / (rows * times)
                if gain > best[2]:
                    best = count, depth, gain
        count, depth, gain = best
        return _Choice(ranked[: max(count, 1)], depth, gain)

    def _time(self, rows: int, more: int) -> float | None:
        """How many times as long a step takes with ``more`` tokens than with one a row."""
        bits = more.bit_length()
        if (known := self._times.get((rows, bits))) is not None:
            return max(known, 1 + more * self._row_cost(rows))
        # As much a token as the nearest number that is known.
        near = [b for r, b in self._times if r == rows]
        if not near:
            return None
        nearest = min(near, key=lambda b: (abs(b - bits), b))
        likely = 1 + (self._times[rows, nearest] - 1) * 2.0 ** (bits - nearest)
        return max(likely, 1 + more * self._row_cost(rows))

    def _row_cost(self, rows: int) -> float:
        """Cost that each of ``rows`` rows adds to a step, as a part of it, by what a step of half
        as many takes or fewer; 0 where that is not known. A further token costs about as much:
        where single measurements say less, they are of a fast moment.
        """
        fewer = [count for count in self._plain if count <= rows // 2]
        if not fewer:
            return 0.0
        least = max(fewer)
        more = (self._plain[rows] - self._plain[least]) / (rows - least)
        return max(_AT_LEAST * more / self._plain[rows], 0.0)

    def learn(
        self, rows: int, more: int, seconds: float, accepted: Iterable[tuple[Sequence, int]]
    ) -> None:
        """Note what a step of ``rows`` decoding rows and ``more`` further tokens took, without the
        draft, and how many guesses of each row that had some were right."""
        total, drafted = 0, list[Sequence]()
        for sequence, right in accepted:
            guess = self._guesses.get(sequence)
            total += right
            if guess is None:
                continue
            own = self._histories[sequence].found
            if guess.match == _DRAFT:
                own = self._histories[sequence].drafted
                drafted.append(sequence)
            for record in (own, self._records[guess.match]):
                record.learn(right, wrong=right < len(guess.tokens))
        if self.draft is not None:
            self.draft.settle(drafted)
        if seconds <= 0:
            return
        plain = self._plain.get(rows)
        self._account(rows, total, seconds)
        if not more:
            self._plain[rows] = averaged(plain, seconds)
            self._since_plain = 0
        elif plain is not None:
            self._since_plain += 1
            key, times = (rows, more.bit_length()), max(seconds / plain, 1.0)
            count = self._seen[key] = min(self._seen.get(key, 0) + 1, _MOST_SEEN)
            self._times[key] = self._times.get(key, 0.0) * (1 - 1 / count) + times / count
            if self._guesses and (rows + total) / (rows * times) >= _GAIN:
                self._wait = _FIRST_WAIT

    def _account(self, rows: int, right: int, seconds: float) -> None:
        """Account for the draft's gain or loss in a step whose other part took ``seconds``. What it
        had to catch up is paid by later steps, but not in a trial."""
        plain = self._plain.get(rows)
        self._credit = min(self._credit + _STEP_CREDIT, _MOST_CREDIT)
        if plain is None or self.draft is None or not self.drafting_s:
            return
        took = seconds + (self.drafting_s if self._trial else self.draft.seconds)
        self._credit = min(self._credit + (rows + right) / rows - took / plain, _MOST_CREDIT)


def _left(sequence: Sequence) -> int:
    """How many guesses may go in before the last token that it may have."""
    return sequence.request.params.max_tokens - len(sequence.output) - 1
