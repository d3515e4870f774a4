"""Guesses of how rows go on, where computing several tokens at once pays.

Text repeats itself: what followed the last tokens of a row when they came before, in its prompt or
its answer, is likely to follow again (prompt lookup decoding). A step that has guesses of a row
gives the logits after each of them. The tokens are sampled from these as always, for as long as
they are what was guessed; so guesses change how fast an answer comes, and nothing else.

Whether they pay depends on the machine, the model and the text, so all three are measured: how much
longer a step takes by its rows and further tokens, and how often a row's guesses were right. There
are no guesses while a step with them is not expected to give more tokens a second; only one step in
many then tries again.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Row
from dataclasses import dataclass
from itertools import accumulate

from runtimes.engine.sequence import Sequence

_GRAM = 3  # tokens that must have come before, in this order
_LONGEST_MATCH = 16  # longer ones count as this long
_DEPTHS = (2, 4, 8, 16)  # guesses for a row that are considered
_GAIN = 1.05  # expected, below which it is not worth the risk
_FIRST_WAIT, _LONGEST_WAIT = 16, 128  # decode steps between trials
_SMOOTHING = 0.8  # of the last estimates
_PRIOR = 2.0  # guesses that what is known of others counts as


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens that may come next, and how many before them have come in this order before."""

    tokens: list[int]
    match: int


class History:
    """Finds where the last tokens of one row came before."""

    def __init__(self) -> None:
        self.right = self.wrong = 0.0  # guesses; old ones count less
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

    def learn(self, right: int, wrong: bool) -> None:
        """Note how many of its guesses were right, and whether one was wrong."""
        self.right = _SMOOTHING * self.right + right
        self.wrong = _SMOOTHING * self.wrong + wrong


class Proposer:
    """Guesses for the rows of an engine. For its thread only."""

    def __init__(self) -> None:
        self._histories: dict[Sequence, History] = {}
        self._plain: dict[int, float] = {}  # seconds of a step with that many rows
        # How many times as long it takes, by rows and the further tokens' number of bits.
        self._times: dict[tuple[int, int], float] = {}
        self._right: dict[int, tuple[float, float]] = {}  # guesses by match: right ones, wrong ones
        self._waited, self._wait = 0, _FIRST_WAIT
        self._since_plain = 0
        self._guesses: dict[Sequence, Guess] = {}  # in the step that runs

    def forget(self, sequence: Sequence) -> None:
        """It has ended."""
        self._histories.pop(sequence, None)
        self._guesses.pop(sequence, None)

    def propose(self, decoding: Row[Sequence], most: int) -> dict[Sequence, list[int]]:
        """Guesses for rows that decode in the next step, and no more than ``most`` in all."""
        self._guesses = {}
        rows = len(decoding)
        if rows not in self._plain or self._since_plain >= _LONGEST_WAIT:
            self._since_plain = 0  # comparisons need a step without guesses, of these days
            return {}
        self._waited += 1
        found = {one: guess for one in decoding if (guess := self._guess(one, most))}
        if not found:
            return {}
        chosen, gain = self._best(rows, found, most)
        if gain is None or gain < _GAIN:
            if self._waited < self._wait:
                return {}
            self._waited, self._wait = 0, min(2 * self._wait, _LONGEST_WAIT)
        self._guesses = chosen
        return {one: guess.tokens for one, guess in chosen.items()}

    def _guess(self, sequence: Sequence, most: int) -> Guess | None:
        params = sequence.request.params
        left = params.max_tokens - len(sequence.output) - 1
        history = self._histories.setdefault(sequence, History())
        return history.guess(sequence, min(_DEPTHS[-1], left, most))

    def _best(
        self, rows: int, found: dict[Sequence, Guess], most: int
    ) -> tuple[dict[Sequence, Guess], float | None]:
        """The rows and numbers of guesses that promise most, and how many times as many tokens a
        second as without; None where nothing like it has been tried."""
        ranked = sorted(
            ((self._chance(one, guess), one, guess) for one, guess in found.items()),
            key=lambda item: -item[0],
        )
        best: tuple[float, int, int] | None = None
        for depth in _DEPTHS:
            sizes = [min(depth, len(guess.tokens)) for _, _, guess in ranked]
            gains = [
                sum(chance**i for i in range(1, size + 1))
                for (chance, _, _), size in zip(ranked, sizes, strict=True)
            ]
            sums = zip(accumulate(sizes), accumulate(gains), strict=True)
            for count, (more, gained) in enumerate(sums, 1):
                times = self._time(rows, more)
                if more > most or times is None:
                    break
                gain = (rows + gained) / (rows * times)
                if best is None or gain > best[0]:
                    best = gain, count, depth
        count, depth = best[1:] if best else (1, _DEPTHS[1])
        chosen = {one: Guess(guess.tokens[:depth], guess.match) for _, one, guess in ranked[:count]}
        return chosen, best[0] if best else None

    def _chance(self, sequence: Sequence, guess: Guess) -> float:
        """That a guess is right when those before it were."""
        history = self._histories[sequence]
        right, wrong = self._right.get(guess.match, (1.0, 1.0))
        usual = right / (right + wrong)
        return (history.right + _PRIOR * usual) / (history.right + history.wrong + _PRIOR)

    def _time(self, rows: int, more: int) -> float | None:
        """How many times as long a step takes with ``more`` tokens than with one a row."""
        bits = more.bit_length()
        if (known := self._times.get((rows, bits))) is not None:
            return known
        # As much a token as the nearest number that is known.
        near = [b for r, b in self._times if r == rows]
        if not near:
            return None
        nearest = min(near, key=lambda b: (abs(b - bits), b))
        return 1 + (self._times[rows, nearest] - 1) * 2.0 ** (bits - nearest)

    def learn(
        self, rows: int, more: int, seconds: float, accepted: Iterable[tuple[Sequence, int]]
    ) -> None:
        """Note what a step of ``rows`` decoding rows and ``more`` further tokens took, and how many
        guesses of each row that had some were right."""
        total = 0
        for sequence, right in accepted:
            guess = self._guesses.get(sequence)
            total += right
            if guess is None:
                continue
            wrong = right < len(guess.tokens)
            self._histories[sequence].learn(right, wrong)
            known = self._right.get(guess.match, (1.0, 1.0))
            self._right[guess.match] = (
                _SMOOTHING * known[0] + right,
                _SMOOTHING * known[1] + wrong,
            )
        if seconds <= 0:
            return
        plain = self._plain.get(rows)
        if not more:
            self._plain[rows] = _averaged(plain, seconds)
            self._since_plain = 0
        elif plain is not None:
            self._since_plain += 1
            key, times = (rows, more.bit_length()), max(seconds / plain, 1.0)
            known_times = self._times.get(key)  # the first one may have been a slow start
            self._times[key] = times if known_times is None else (known_times + times) / 2
            if self._guesses and (rows + total) / (rows * times) >= _GAIN:
                self._wait = _FIRST_WAIT


def _averaged(old: float | None, new: float) -> float:
    return new if old is None else _SMOOTHING * old + (1 - _SMOOTHING) * new
