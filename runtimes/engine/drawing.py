"""One token for each of several samples, with the log-probabilities that they ask for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from runtimes.engine.generation import Generation
from runtimes.engine.runner import Logits, Shortlist
from runtimes.sampling import (
    BrokenLogitsError,
    SamplerState,
    log_probability,
    sample,
    sample_shortlist,
    top_log_probabilities,
)

Ints = npt.NDArray[np.int64]

NO_TOKEN = -1


def draw(
    generations: Sequence[Generation], logits: Logits | Shortlist
) -> tuple[list[int], str | None]:
    """A token for each generation from its row of ``logits``; NO_TOKEN where none can be drawn.

    The second value says why, if there are such rows. Log-probabilities are added to those
    generations whose requests ask for them.
    """
    states = [generation.sampler for generation in generations]
    try:
        tokens = _tokens(logits, states)
    except BrokenLogitsError as error:
        good = np.setdiff1d(np.arange(len(states)), error.rows)
        tokens = np.full(len(states), NO_TOKEN, np.int64)
        if len(good):
            tokens[good] = _tokens(logits[good], [states[i] for i in good])
        _note_logprobs([generations[i] for i in good], logits[good], tokens[good])
        return tokens.tolist(), str(error)
    _note_logprobs(generations, logits, tokens)
    return tokens.tolist(), None


def _tokens(logits: Logits | Shortlist, states: Sequence[SamplerState]) -> Ints:
    if isinstance(logits, Shortlist):
        return sample_shortlist(logits, states)
    return sample(logits, states)


def _note_logprobs(
    generations: Sequence[Generation],
    logits: Logits | Shortlist,
    tokens: Ints,
) -> None:
    wanted = [i for i, g in enumerate(generations) if g.request.params.wants_logprobs]
    if not wanted or isinstance(logits, Shortlist):  # a shortlist is never given to such rows
        return
    if len(wanted) < len(generations):
        logits, tokens = logits[wanted], tokens[wanted]
        generations = [generations[i] for i in wanted]
    most = max(g.request.params.top_logprobs for g in generations)
    if not most:
        for generation, value in zip(
            generations, log_probability(logits, tokens).tolist(), strict=True
        ):
            generation.logprobs.append(value)
        return
    found = top_log_probabilities(logits, tokens, most)
    for i, generation in enumerate(generations):
        generation.logprobs.append(float(found.chosen[i]))
        count = generation.request.params.top_logprobs
        generation.top_logprobs.append(dict(list(found.as_mapping(i).items())[:count]))
