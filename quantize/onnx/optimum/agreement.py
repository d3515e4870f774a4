"""Runs in a child process: whether an exported graph computes what transformers computes.

An export through another version of transformers can be wrong without a word: a setting that it
does not know, a weight that it does not find. So float is compared with float before anything is
made of the export.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantize.errors import CheckError
from quantize.source import SourceModel

_TOKENS = 48
_FIRST = 32  # in one step, without a past; the others one by one, so that the past is tried too

# Mean KL divergence in nats. Float against float: kernels differ in the last digits only. Measured
# on the random models of the tests: below 1e-8.
_MOST_DIVERGENCE = 1e-4

Floats = npt.NDArray[np.float64]


def require_agreement(source: SourceModel, graph: Path) -> None:
    """Raise CheckError when ``graph`` computes something else than the original.

    Compared in 32 bits over random tokens, one after the other in memory.
    """
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        source.folder, dtype=torch.float32, trust_remote_code=source.trust_remote_code
    ).eval()
    most = min(_TOKENS, getattr(model.config, "max_position_embeddings", _TOKENS))
    ids = np.random.default_rng(0).integers(0, model.config.vocab_size, (1, most))
    with torch.inference_mode():
        wanted = _log_softmax(model(torch.from_numpy(ids)).logits[0].numpy())
    del model
    found = float((np.exp(wanted) * (wanted - _exported(graph, ids))).sum(axis=-1).mean())
    if not found <= _MOST_DIVERGENCE:  # nan fails too
        raise CheckError(
            f"optimum's export does not compute what the original model computes (mean KL"
            f" divergence {found:.2g} nats, at most {_MOST_DIVERGENCE} is rounding); use --to gguf"
        )


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
