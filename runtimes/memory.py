"""How much memory a model needs with given settings, known before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from runtimes.errors import OutOfMemoryError
from runtimes.modelfile import ModelFile

# llama.cpp keeps keys and values in f16; the CPU graphs of the ONNX builder in f32.
_LEAST_CONTEXT = 64  # a smaller one is no advice
_KV_ELEMENT_BYTES = {"llamacpp": 2, "onnx": 4}


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of weights, and of keys and values for every slot. Compute buffers come on top."""

    weights: int
    kv: int

    @property
    def total(self) -> int:
        """Weights, keys and values."""
        return self.weights + self.kv


def estimate(model: ModelFile, slots: int, context: int) -> MemoryEstimate:
    """What ``slots`` slots of ``context`` tokens need at the least.

    A model with a sliding window is counted as if every layer had it, since llama.cpp allocates
    only the window for such layers: a lower bound.
    """
    tokens = context
    if model.runtime == "llamacpp" and model.sliding_window:
        tokens = min(context, model.sliding_window)
    per_token = model.kv_bytes_per_token(_KV_ELEMENT_BYTES[model.runtime])
    return MemoryEstimate(model.nbytes, slots * tokens * per_token)


def require_fit(model: ModelFile, slots: int, context: int, available: int) -> None:
    """Raise OutOfMemoryError, saying what would fit, if ``available`` bytes are too few."""
    need = estimate(model, slots, context)
    if need.total <= available:
        return
    if need.weights >= available:
        raise OutOfMemoryError(
            f"{model.path} needs {_gib(need.weights)} for its weights alone; "
            f"{_gib(available)} of memory are free"
        )
    per_token = model.kv_bytes_per_token(_KV_ELEMENT_BYTES[model.runtime])
    room = (available - need.weights) // per_token  # tokens over all slots
    fits = [f"--slots {max(1, room // context)} --context {min(context, room)}"]
    if room // slots >= _LEAST_CONTEXT:
        fits.append(f"--slots {slots} --context {room // slots}")
    raise OutOfMemoryError(
        f"{model.path} with {slots:,} slots x {context:,} tokens needs {_gib(need.total)}; "
        f"{_gib(available)} are free. What fits: {', or '.join(fits)}"
    )


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
