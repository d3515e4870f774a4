"""One token for every row of which only the largest logits are at hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from runtimes.engine.runner import Shortlist
from runtimes.sampling.draw import draw_among
from runtimes.sampling.state import SamplerState
from runtimes.sampling.step import BrokenLogitsError

Ints = npt.NDArray[np.int64]


def sample_shortlist(shortlist: Shortlist, states: Sequence[SamplerState]) -> Ints:
    """One token id a row, as ``sample`` would have chosen it from all of the row's logits.

    The rows' parameters must need no others (``SamplingParams.enough``). Changes no state. Raises
    BrokenLogitsError.
    """
    # Draws go through the tokens by ascending id.
    order = shortlist.ids.argsort(axis=1)
    ids = np.take_along_axis(shortlist.ids, order, axis=1)
    values = np.take_along_axis(shortlist.values, order, axis=1)
    tops = values.max(axis=1)
    finite = np.isfinite(tops)
    if not finite.all():
        raise BrokenLogitsError(np.flatnonzero(~finite).tolist())
    places: Ints = values.argmax(axis=1)
    drawn = [i for i, state in enumerate(states) if state.params.temperature > 0]
    if drawn:
        # Cold rows may overflow to -inf, whose weight is 0, as it should be.
        with np.errstate(over="ignore"):
            places[drawn] = draw_among(values[drawn], tops[drawn], [states[i] for i in drawn])
    return np.take_along_axis(ids, places[:, None], axis=1)[:, 0].astype(np.int64)
