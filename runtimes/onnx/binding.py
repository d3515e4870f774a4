"""Arrays of ours as the session's inputs and outputs, and one run of it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from runtimes.errors import ModelError, OutOfMemoryError
from runtimes.onnx.graph import Graph

_FIRST = np.zeros(1, np.int64)


def bind_input(binding: Any, name: str, array: npt.NDArray[Any]) -> None:
    """Have the graph read ``array``, which must be contiguous and outlive the run."""
    binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def bind_output(binding: Any, name: str, array: npt.NDArray[Any]) -> None:
    """Have the graph write into ``array``, which must be contiguous and of the right shape."""
    binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def bind_tokens(
    graph: Graph, ids: npt.NDArray[Any], mask: npt.NDArray[Any], positions: npt.NDArray[Any]
) -> Any:
    """A binding that reads these rows, and their positions if the graph takes any."""
    binding = graph.session.io_binding()
    bind_input(binding, graph.input_ids, ids)
    bind_input(binding, graph.attention_mask, mask)
    if graph.position_ids:
        bind_input(binding, graph.position_ids, positions)
    return binding


def bind_all_rows(binding: Any, graph: Graph) -> None:
    """Ask for logits after every position, where the graph has the choice."""
    if graph.logits_from:
        bind_input(binding, graph.logits_from, _FIRST)


def run(graph: Graph, binding: Any) -> None:
    """Run the session; raises OutOfMemoryError or ModelError."""
    try:
        graph.session.run_with_iobinding(binding)
    except Exception as error:  # onnxruntime's exceptions share no base class but Exception
        text = str(error).strip()
        if "allocate" in text.lower() or "memory" in text.lower():
            raise OutOfMemoryError(f"ONNX Runtime ran out of memory: {text}") from error
        raise ModelError(f"ONNX Runtime failed in a step: {text}") from error


def check_tokens(tokens: Sequence[int], vocab_size: int) -> None:
    """For an id that its table has not, a graph would read whatever lies behind it."""
    if min(tokens) < 0 or max(tokens) >= vocab_size:
        wrong = min(tokens) if min(tokens) < 0 else max(tokens)
        raise ModelError(f"the model has no token {wrong}")
