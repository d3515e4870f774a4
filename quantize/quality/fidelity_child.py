"""Runs in a child process: a built file against the float model, on its own runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from quantize.quality.divergence import Scores, compare, mean, perplexity
from quantize.quality.scoring import open_runner, scored_logits
from quantize.quality.store import FloatReference
from runtimes.models.modelfile import ModelFile


def measure(path: Path, reference: FloatReference) -> dict[str, float]:
    """Figures of the file or folder ``path`` against the distributions in ``reference``."""
    scores = _score(ModelFile.read(path), reference)
    kl, found = mean(scores.kl), perplexity(scores.nll)
    return {
        "perplexity": found.value,
        "perplexity_error": found.error,
        "kl_mean": kl.value,
        "kl_error": kl.error,
        "kl_p99": float(np.percentile(scores.kl, 99)),
        "same_top": float(scores.same.mean()),
    }


def _score(model: ModelFile, known: FloatReference) -> Scores:
    """Window after window: no more than one window's logits of each model are held."""
    runner = open_runner(model, known.windows)
    parts = []
    rows = scored_logits(runner, known.windows)
    for (ids, logits), (_, base, tops) in zip(rows, known.blocks(), strict=True):
        targets = np.array(ids[known.windows.first + 1 :], np.int64)
        parts.append(compare(base, tops, logits, targets))
    runner.close()
    return Scores(
        np.concatenate([part.nll for part in parts]),
        np.concatenate([part.kl for part in parts]),
        np.concatenate([part.same for part in parts]),
    )
