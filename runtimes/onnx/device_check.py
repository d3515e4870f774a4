"""Whether a device computes attention as the processor does.

Keys and values are written in place, as steps do it: devices have kernels of their own for that.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from runtimes.errors import ModelError
from runtimes.models.modelfile import ModelFile
from runtimes.onnx.device import Target, open_session
from runtimes.onnx.device_graphs import attention, copy
from runtimes.onnx.graph import bind_input, run

log = logging.getLogger(__name__)

_TOKENS = 80  # more than kernels take at a time
_CONTEXT = _TOKENS + 16
_LENGTHS = (5, _TOKENS, 30)  # of rows that go together
_TOLERANCE = 0.05  # of values around 0.3; floats of 16 bits leave a tenth of it


def prompts_are_right(target: Target, model: ModelFile, dtype: Any) -> bool:
    """Try the attention of a prompt, with the model's heads.

    Where kernels take a device for another than it is, keys are left out: those of ONNX Runtime
    1.27 for WebGPU are wrong on a device of software, whose subgroups have four lanes.
    """
    return _is_right(target, model, dtype, (0,), _TOKENS)


def rows_are_right(target: Target, model: ModelFile, dtype: Any) -> bool:
    """Try the attention of rows of different lengths in one pass: WebGPU's takes all of them for
    as long as the longest (ONNX Runtime 1.27)."""
    return _is_right(target, model, dtype, _LENGTHS, 1)


def _is_right(
    target: Target, model: ModelFile, dtype: Any, lengths: Sequence[int], tokens: int
) -> bool:
    """For rows that hold so many tokens, and get so many more."""
    random, rows = np.random.default_rng(0), len(lengths)
    counts = {"query": model.heads, "key": model.kv_heads, "value": model.kv_heads}
    kept = rows, model.kv_heads, _CONTEXT, model.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        name: (rows, tokens, count * model.head_dim) for name, count in counts.items()
    }
    shapes |= {"past.key": kept, "past.value": kept}
    given = {name: random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    given["before"] = np.array(lengths, np.int32) + np.int32(tokens - 1)
    given["all"] = given["before"].max(keepdims=True) + np.int32(1)
    found = [_mixed(model, where, given) for where in (target, None)]
    worst = float(np.abs(found[0] - found[1]).max())
    what = f"{tokens} tokens of {rows} rows"
    log.debug("attention of %s on %s: off by %.5f", what, target.name, worst)
    return worst <= _TOLERANCE


def _mixed(model: ModelFile, target: Target | None, given: dict[str, Any]) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    nbytes = given["query"].itemsize
    graph = attention(model.heads, model.kv_heads, model.head_dim, nbytes)
    try:
        session = open_session(graph, options, target)
        mover = open_session(copy(1, nbytes), options, target)
        return _computed(session, mover, target, given)
    except Exception as error:  # onnxruntime's exceptions share no base class but Exception
        name = target.name if target else "the processor"
        said = f"ONNX Runtime cannot compute attention on {name}: {error}"
        # What is on the device must not live on in the traceback, behind the sessions.
        raise ModelError(said) from error.with_traceback(None)


def _computed(session: Any, mover: Any, target: Target | None, given: dict[str, Any]) -> Any:
    """What is allocated on a device here is gone before the sessions that did it, as it must."""
    binding = session.io_binding()
    binding.bind_output("mixed", "cpu")
    for name, value in given.items():
        if name.startswith("past."):
            there = _placed(mover, target, value)
            binding.bind_ortvalue_input(name, there)
            binding.bind_ortvalue_output(name.replace("past", "present"), there)
        else:
            bind_input(binding, name, value)
    run(session, binding)
    return binding.get_outputs()[0].numpy().astype(np.float32)


def _placed(mover: Any, target: Target | None, value: Any) -> Any:
    """A copy in the memory where a graph runs."""
    binding, end = mover.io_binding(), np.array([_CONTEXT])
    bind_input(binding, "from.0", value)
    bind_input(binding, "tokens", end)
    memory, index = (target.provider.memory, target.index) if target else ("cpu", 0)
    binding.bind_output("to.0", memory, index)
    run(mover, binding)
    return binding.get_outputs()[0]
