"""Runs in a child process: whether an exported graph computes what transformers computes.

An export through another version of transformers can be wrong without a word: a setting that it
does not know, a weight that it does not find. So float is compared with float before anything is
made of the export.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantize.onnx.graphfile import NAME

_TOKENS = 48
_FIRST = 32  # in one step, without a past; the others one by one, so that the past is tried too

Floats = npt.NDArray[np.float64]


def divergence(model: Path, export: Path, *, trust_remote_code: bool) -> float:
    """Mean KL divergence in nats of the graph from the Hugging Face model, over random tokens.

    Both in 32 bits; one after the other in memory.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
    most = min(_TOKENS, getattr(config, "max_position_embeddings", _TOKENS))
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (1, most))
    wanted = _original(model, ids, trust_remote_code=trust_remote_code)
    found = _exported(export / NAME, ids)
    return float((np.exp(wanted) * (wanted - found)).sum(axis=-1).mean())


def _original(model: Path, ids: npt.NDArray[np.int64], *, trust_remote_code: bool) -> Floats:
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, trust_remote_code=trust_remote_code
    ).eval()
    with torch.inference_mode():
        return _log_softmax(loaded(torch.from_numpy(ids)).logits[0].numpy())


def _exported(graph: Path, ids: npt.NDArray[np.int64]) -> Floats:
    import onnxruntime as ort

    session = ort.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    inputs = {node.name: node.shape for node in session.get_inputs()}
    names = [node.name for node in session.get_outputs()]
    past: dict[str, Any] = {
        name: np.zeros((1, shape[1], 0, shape[3]), np.float32)
        for name, shape in inputs.items()
        if name.startswith("past_key_values.")
    }
    rows = []
    steps = [(0, min(_FIRST, ids.shape[1])), *((i, i + 1) for i in range(_FIRST, ids.shape[1]))]
    for begin, end in steps:
        feed = {
            "input_ids": ids[:, begin:end],
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(begin, end)[None],
        }
        given = {name: value for name, value in feed.items() if name in inputs}
        outputs = dict(zip(names, session.run(None, {**given, **past}), strict=True))
        rows.append(outputs["logits"][0])
        past = {name: outputs[name.replace("past_key_values", "present")] for name in past}
    return _log_softmax(np.concatenate(rows))


def _log_softmax(logits: npt.NDArray[Any]) -> Floats:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True)))
