"""Log-probabilities of tokens, from the raw logits: before bias, penalties and temperature."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtimes.runner import Logits
from runtimes.sampling.whole_row import BLOCK, SCRATCH, best

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


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
    """Of each row's token, and of its ``count`` likeliest (at most the vocabulary)."""
    rows, vocabulary = logits.shape
    count = min(count, vocabulary)
    ids = np.zeros((rows, count), np.int64)
    for row in range(rows if count else 0):
        ids[row] = best(logits[row], count)
    total = _log_total(logits)
    chosen = logits[np.arange(rows), tokens] - total
    values = np.take_along_axis(logits, ids, axis=1) - total[:, None]
    return TopLogProbs(chosen.astype(np.float32), ids, values.astype(np.float32))


def _log_total(logits: Logits) -> npt.NDArray[np.float64]:
    """log(sum(exp(logits))) of each row."""
    if logits.size <= BLOCK * len(logits):
        return _log_sum(logits)
    # Row by row in a kept buffer: a temporary as large as the logits would cost more than the sums.
    spare = SCRATCH.fit(logits.shape[1]).spare[: logits.shape[1]]
    return np.concatenate([_log_sum(row, spare[None]) for row in logits[:, None]])


def _log_sum(logits: Logits, out: Floats | None = None) -> npt.NDArray[np.float64]:
    top = logits.max(axis=1)
    weights = np.exp(np.subtract(logits, top[:, None], out=out), out=out)
    total: npt.NDArray[np.float64] = top + np.log(weights.sum(axis=1), dtype=np.float64)
    return total
