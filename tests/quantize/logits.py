"""Log-probabilities of models and files, and how far they are from each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runtimes.engine.loading import load_runner
from runtimes.models.registry import read_model
from runtimes.settings import RunnerSettings

Table = npt.NDArray[np.float64]


def log_softmax(logits: npt.NDArray[np.floating]) -> Table:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True)))


def divergence(original: Table, other: Table) -> float:
    """Mean Kullback-Leibler divergence in nats."""
    return float((np.exp(original) * (original - other)).sum(axis=-1).mean())


def scored(path: Path, *texts: Sequence[int], **settings: Any) -> Table:
    """After each token of the ``texts``, by the runtime of the file or folder ``path``."""
    asked = RunnerSettings(**{"slots": 1, "context": 128, "scored": 64, **settings})
    runner = load_runner(read_model(path), asked)
    try:
        return log_softmax(np.concatenate([runner.score(text) for text in texts]))
    finally:
        runner.close()


def of_transformers(folder: Path, tokens: Sequence[int], **settings: Any) -> Table:
    """After each of ``tokens``, by transformers in single precision."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **settings).eval()
    with torch.inference_mode():
        return log_softmax(model(torch.tensor([[*tokens]])).logits[0].numpy())
