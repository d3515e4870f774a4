"""Whether a device computes attention as the processor does."""

import logging
from typing import Any

import numpy as np

from runtimes.errors import ModelError
from runtimes.models.modelfile import ModelFile
from runtimes.onnx.device import Target, open_session
from runtimes.onnx.device_graphs import attention

log = logging.getLogger(__name__)

_TOKENS = 80  # more than kernels take at a time
_LENGTHS = (5, _TOKENS - 1, 30)  # of rows that go together
_TOLERANCE = 0.05  # of values around 0.3; floats of 16 bits leave a tenth of it


def prompts_are_right(target: Target, model: ModelFile, dtype: Any) -> bool:
    """Try the attention of a prompt, with the model's heads.

    Where kernels take a device for another than it is, keys are left out: those of ONNX Runtime
    1.27 for WebGPU are wrong on a device of software, whose subgroups have four lanes.
    """
    given = _random_rows(model, dtype, rows=1, tokens=_TOKENS)
    given["before"] = np.array([_TOKENS - 1], np.int32)
    return _is_right(target, model, given, "of a prompt")


def rows_are_right(target: Target, model: ModelFile, dtype: Any) -> bool:
    """Try the attention of rows of different lengths in one pass: WebGPU's takes all of them for
    as long as the longest (ONNX Runtime 1.27)."""
    random = np.random.default_rng(1)
    shape = len(_LENGTHS), model.kv_heads, _TOKENS, model.head_dim
    given = _random_rows(model, dtype, rows=len(_LENGTHS), tokens=1)
    for name in ("past.key", "past.value"):
        given[name] = random.standard_normal(shape).astype(dtype)
    given["before"] = np.array(_LENGTHS, np.int32)
    return _is_right(target, model, given, "of rows together")


def _random_rows(model: ModelFile, dtype: Any, rows: int, tokens: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    counts = {"query": model.heads, "key": model.kv_heads, "value": model.kv_heads}
    shapes = {name: (rows, tokens, count * model.head_dim) for name, count in counts.items()}
    return {name: random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def _is_right(target: Target, model: ModelFile, given: dict[str, Any], what: str) -> bool:
    nbytes, past = given["query"].itemsize, "past.key" in given
    graph = attention(model.heads, model.kv_heads, model.head_dim, nbytes, past=past)
    given["all"] = np.array([given["before"].max() + 1], np.int32)
    found = [_mixed(graph, where, given) for where in (target, None)]
    worst = float(np.abs(found[0] - found[1]).max())
    log.debug("attention %s on %s: off by %.5f", what, target.name, worst)
    return worst <= _TOLERANCE


def _mixed(graph: bytes, target: Target | None, given: dict[str, Any]) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    try:
        return open_session(graph, options, target).run(["mixed"], given)[0].astype(np.float32)
    except Exception as error:  # onnxruntime's exceptions share no base class but Exception
        name = target.name if target else "the processor"
        raise ModelError(f"ONNX Runtime cannot compute attention on {name}: {error}") from error
