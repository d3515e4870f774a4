"""Whether a device computes prompts as the processor does."""

import logging
from typing import Any

import numpy as np

from runtimes.errors import ModelError
from runtimes.models.modelfile import ModelFile
from runtimes.onnx.device import Target, open_session
from runtimes.onnx.device_graphs import attention

log = logging.getLogger(__name__)

_TOKENS = 80  # more than kernels take at a time
_TOLERANCE = 0.05  # of values around 0.3; floats of 16 bits leave a tenth of it


def prompts_are_right(target: Target, model: ModelFile, dtype: Any) -> bool:
    """Try the attention of a prompt, with the model's heads.

    Where kernels take a device for another than it is, keys are left out: those of ONNX Runtime
    1.27 for WebGPU are wrong on a device of software, whose subgroups have four lanes.
    """
    heads, kv_heads, size = model.heads, model.kv_heads, model.head_dim
    graph = attention(heads, kv_heads, size, np.dtype(dtype).itemsize)
    random = np.random.default_rng(0)
    given = {
        name: random.standard_normal((1, _TOKENS, count * size)).astype(dtype)
        for name, count in (("query", heads), ("key", kv_heads), ("value", kv_heads))
    }
    given["before"] = np.array([_TOKENS - 1], np.int32)
    given["all"] = np.array([_TOKENS], np.int32)
    found = [_mixed(graph, where, given) for where in (target, None)]
    worst = float(np.abs(found[0] - found[1]).max())
    log.debug("attention of a prompt on %s: off by %.5f", target.name, worst)
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
