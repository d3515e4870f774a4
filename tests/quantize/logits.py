"""Log-probabilities of models and files, and how far they are from each other."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantize.children import run_child
from runtimes.engine.engine import Engine
from runtimes.engine.loading import load_runner
from runtimes.models.registry import read_model
from runtimes.request import Priority, Request, SamplingParams
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
    """After each of ``tokens``, by transformers in single precision; in a child where torch is not
    imported yet."""
    if "torch" not in sys.modules:
        call = partial(of_transformers, folder, tokens, **settings)
        return run_child(call, "computing", folder.parent, torch=True)
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **settings).eval()
    with torch.inference_mode():
        return log_softmax(model(torch.tensor([[*tokens]])).logits[0].numpy())


def in_company(
    path: Path, prompts: Sequence[Sequence[int]], late: Sequence[int], slots: int, context: int
) -> list[tuple[object, object]]:
    """Reproducible answers in so many slots; the last is of a prompt that goes before the others
    when they have begun."""
    params = SamplingParams(max_tokens=8, ignore_eos=True, logprobs=True)
    settings = RunnerSettings(slots=slots, context=context, reproducible=True)
    with Engine.load(path, settings) as engine:
        asked = [Request([*prompt], params, priority=Priority.LOW) for prompt in prompts]
        streams = [engine.submit(request) for request in asked]
        next(iter(streams[0]), None)
        streams.append(engine.submit(Request([*late], params, priority=Priority.CRITICAL)))
        return [(one.result().token_ids, one.result().logprobs) for one in streams]
