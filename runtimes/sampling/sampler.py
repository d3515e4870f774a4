"""One token for every row of a step, each row by the cheapest way to its own result; and
log-probabilities, from the raw logits: before bias, penalties and temperature."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from runtimes.runner import Floats, Ints, Logits, StepLogits, TopKLogits
from runtimes.sampling.state import SamplerState, States
from runtimes.sampling.whole_row import (
    BLOCK,
    SCRATCH,
    Doubles,
    at_least_best,
    best,
    draw_among,
    draw_whole,
)

# Up to here whole rows are sorted, all at once: a call of NumPy costs more than a row's work.
_SMALL_VOCABULARY = 4096
# Rows with more candidates than this are drawn alone, so that they widen nobody else's.
_WIDE = 4096


class Sampled(NamedTuple):
    """Result of one row's draw: ``token``, or the ``error`` that kept one from being drawn.

    Log-probabilities are there where the row's parameters ask for them.
    """

    token: int | None
    logprob: float | None = None
    top_logprobs: dict[int, float] | None = None
    error: str | None = None


class _BrokenLogitsError(Exception):
    """Rows without a distribution: NaN, infinity, or no token that is allowed."""

    def __init__(self, rows: Sequence[int]) -> None:
        self.rows = rows  # the others could be sampled without them


def sample(logits: StepLogits, states: States) -> list[Sampled]:
    """A token for each row of ``logits``, float32 [rows, vocabulary], which is left as it is.

    Of ``TopKLogits`` the rows' parameters must need no more (``SamplingParams.top_k_needed``).
    Changes no state: the caller accepts the tokens.
    """
    try:
        return _sampled(logits, states)
    except _BrokenLogitsError as error:
        broken = set(error.rows)
    good = [i for i in range(len(states)) if i not in broken]
    drawn = iter(_sampled(logits[good], [states[i] for i in good]) if good else ())
    why = (
        "the model gave logits that are not numbers, or every token is banned "
        f"({len(broken)} rows of the step); finer weights or KV types may help"
    )
    return [
        Sampled(None, error=(state.matcher and state.matcher.error) or why)
        if i in broken
        else next(drawn)
        for i, state in enumerate(states)
    ]


def _sampled(logits: StepLogits, states: States) -> list[Sampled]:
    tokens = _overridden(_choose(logits, states), states)
    sampled = list(map(Sampled, tokens.tolist()))
    wanted = [i for i, state in enumerate(states) if state.scored]
    if not wanted or isinstance(logits, TopKLogits):  # never given to rows that want them
        return sampled
    if len(wanted) < len(states):
        logits, tokens = logits[wanted], tokens[wanted]
    counts = [states[i].params.top_logprobs for i in wanted]
    found = log_probabilities(logits, tokens, max(counts))
    for row, (i, count) in enumerate(zip(wanted, counts, strict=True)):
        top = found.likeliest(row, count) if count else None
        sampled[i] = Sampled(sampled[i].token, float(found.chosen[row]), top)
    return sampled


def _overridden(tokens: Ints, states: States) -> Ints:
    """``tokens``, with those in place that rows have no choice about."""
    for i, state in enumerate(states):
        if state.matcher is not None and (token := state.matcher.override) is not None:
            tokens[i] = token
    return tokens


def _from_top_k(top_k: TopKLogits, states: States) -> Ints:
    # Draws go through the tokens by ascending id.
    order = top_k.ids.argsort(axis=1)
    ids = np.take_along_axis(top_k.ids, order, axis=1)
    values = np.take_along_axis(top_k.values, order, axis=1)
    with np.errstate(over="ignore"):
        places = _choose_places(values, states)
    return np.take_along_axis(ids, places[:, None], axis=1)[:, 0].astype(np.int64)


def _choose(logits: StepLogits, states: States) -> Ints:
    """The tokens; raises _BrokenLogitsError."""
    if isinstance(logits, TopKLogits):
        return _from_top_k(logits, states)
    if all(s.plain or (s.greedy and not s.edits) for s in states):
        tokens: Ints = logits.argmax(axis=1)
        _check(logits[np.arange(len(tokens)), tokens])
        return tokens
    # Cold rows may overflow to -inf, whose weight is 0, as it should be.
    with np.errstate(over="ignore"):
        if logits.shape[1] > _SMALL_VOCABULARY:
            return _large(logits, states)
        edited = [i for i, state in enumerate(states) if state.edits]
        if edited:
            logits = logits.copy()
        for i in edited:
            states[i].edit(logits[i])
        return _choose_places(logits, states)


def _check(tops: Floats) -> None:
    """Refuse rows whose largest logit is not a finite number (NaN counts as largest)."""
    if not all(map(math.isfinite, tops.tolist())):
        raise _BrokenLogitsError(np.flatnonzero(~np.isfinite(tops)).tolist())


def _choose_places(values: Floats, states: States) -> Ints:
    """The place of each row's token in ``values``, where all of its candidates are."""
    tops = values.max(axis=1)
    _check(tops)
    drawn = [i for i, state in enumerate(states) if state.params.temperature > 0]
    if len(drawn) == len(states):
        return draw_among(values, tops, states)
    places: Ints = values.argmax(axis=1)
    if drawn:
        places[drawn] = draw_among(values[drawn], tops[drawn], [states[i] for i in drawn])
    return places


def _large(logits: Logits, states: States) -> Ints:
    """Row by row where whole rows are read; what top-k leaves of them all at once."""
    vocabulary = logits.shape[1]
    tokens = np.zeros(len(states), np.int64)
    broken: list[int] = []
    few: list[_Candidates] = []
    for i, state in enumerate(states):
        row = logits[i]
        top_k = state.params.top_k
        if state.edits:
            row = SCRATCH.fit(vocabulary).copy[:vocabulary]
            np.copyto(row, logits[i])
            state.edit(row)
        if not state.greedy and 0 < top_k < vocabulary:
            ids = at_least_best(row, top_k)
            if len(ids) == 0:
                broken.append(i)
            else:
                few.append(_Candidates(i, ids, row[ids], state))
            continue
        top = int(row.argmax())
        if not np.isfinite(row[top]):
            broken.append(i)
        else:
            tokens[i] = top if state.greedy else draw_whole(row, row[top], state)
    if broken:
        raise _BrokenLogitsError(broken)
    narrow = [one for one in few if len(one.ids) <= _WIDE]
    for group in (narrow, *([one] for one in few if len(one.ids) > _WIDE)):
        if group:
            tokens[[one.row for one in group]] = _draw_candidates(group)
    return tokens


class _Candidates(NamedTuple):
    """Candidates that top-k may keep of a row, by ascending id."""

    row: int
    ids: Ints
    values: Floats
    state: SamplerState


def _draw_candidates(group: Sequence[_Candidates]) -> Ints:
    width = max(len(c.ids) for c in group)
    ids = np.zeros((len(group), width), np.int64)
    values = np.full((len(group), width), -np.inf, np.float32)
    for i, candidates in enumerate(group):
        ids[i, : len(candidates.ids)] = candidates.ids
        values[i, : len(candidates.ids)] = candidates.values
    places = draw_among(values, values.max(axis=1), [c.state for c in group])
    tokens: Ints = ids[np.arange(len(group)), places]
    return tokens


@dataclass(frozen=True, slots=True)
class TopLogProbs:
    """Natural log-probabilities: ``chosen`` [rows] of each row's token, ``values`` [rows, count] of
    its likeliest tokens ``ids`` [rows, count], in descending order, equal ones by ascending id.

    ``-inf`` stands for a token that the model gave no probability.
    """

    chosen: Floats
    ids: Ints
    values: Floats

    def likeliest(self, row: int, count: int) -> dict[int, float]:
        """A row's ``count`` likeliest tokens as ``Completion.top_logprobs`` has them."""
        ids, values = self.ids[row, :count], self.values[row, :count]
        return dict(zip(ids.tolist(), values.tolist(), strict=True))


def log_probabilities(logits: Logits, tokens: Ints, count: int) -> TopLogProbs:
    """Compute log-probabilities of each row's token and of its ``count`` likeliest ones (at most
    the vocabulary)."""
    rows, vocabulary = logits.shape
    count = min(count, vocabulary)
    ids = np.zeros((rows, count), np.int64)
    for row in range(rows if count else 0):
        ids[row] = best(logits[row], count)
    total = _log_total(logits)
    chosen = logits[np.arange(rows), tokens] - total
    values = np.take_along_axis(logits, ids, axis=1) - total[:, None]
    return TopLogProbs(chosen.astype(np.float32), ids, values.astype(np.float32))


def _log_total(logits: Logits) -> Doubles:
    """log(sum(exp(logits))) of each row."""
    if logits.size <= BLOCK * len(logits):
        return _log_sum(logits)
    # Row by row in a kept buffer: a temporary as large as the logits would cost more than the sums.
    spare = SCRATCH.fit(logits.shape[1]).spare[: logits.shape[1]]
    return np.concatenate([_log_sum(row, spare[None]) for row in logits[:, None]])


def _log_sum(logits: Logits, out: Floats | None = None) -> Doubles:
    top = logits.max(axis=1)
    weights = np.exp(np.subtract(logits, top[:, None], out=out), out=out)
    total: Doubles = top + np.log(weights.sum(axis=1), dtype=np.float64)
    return total
