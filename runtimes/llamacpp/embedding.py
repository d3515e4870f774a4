"""Embeddings: the model's last hidden states, on a context of their own beside the runner's."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from runtimes.errors import ModelError, OutOfMemoryError
from runtimes.llamacpp.native import NativeBatch, library, recent_errors
from runtimes.runner import StepPlan, StepRow
from runtimes.settings import SCORED_CHUNK, RunnerSettings

_LAST = b"3"  # llama.h's LLAMA_POOLING_TYPE_LAST, as the header of a file has it


class Embedder:
    """Made when the first text is embedded: it holds a cache of one slot."""

    def __init__(
        self, model: Any, architecture: str, context: int, settings: RunnerSettings
    ) -> None:
        """Raises OutOfMemoryError."""
        self._lib = library()
        params = self._lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = context, 1
        # llama.cpp computes logits too: few positions at a time keep them small.
        params.n_batch = params.n_ubatch = params.n_outputs_max = SCORED_CHUNK
        params.embeddings, params.no_perf = True, True
        params.pooling_type = self._lib.LLAMA_POOLING_TYPE_NONE  # it would pool each piece apart
        if settings.threads:
            params.n_threads = params.n_threads_batch = settings.threads
        self._context = self._lib.llama_init_from_model(model, params)
        if not self._context:
            raise OutOfMemoryError(f"no context for embeddings: {recent_errors()}")
        self._batch = NativeBatch(SCORED_CHUNK)
        self._width = int(self._lib.llama_model_n_embd(model))
        key, room = f"{architecture}.pooling_type".encode(), ctypes.create_string_buffer(16)
        self._lib.llama_model_meta_val_str(model, key, room, len(room))
        self._last = room.value == _LAST

    def embed(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """The mean of the states after all tokens, or the last where the file says so; of length 1.

        Raises ModelError.
        """
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), False)
        total = np.zeros(self._width, np.float64)
        for start in range(0, len(tokens), SCORED_CHUNK):
            states = self._states(tokens[start : start + SCORED_CHUNK], start)
            total = states[-1].astype(np.float64) if self._last else total + states.sum(axis=0)
        return of_length_one(total)

    def _states(self, tokens: Sequence[int], start: int) -> npt.NDArray[np.float32]:
        count = self._batch.fill(StepPlan((StepRow(0, start, tokens, len(tokens)),)))
        if self._lib.llama_decode(self._context, self._batch.native) != 0:
            raise ModelError(f"llama.cpp failed to embed: {recent_errors()}")
        pointer = self._lib.llama_get_embeddings(self._context)
        return np.ctypeslib.as_array(pointer, (count, self._width)).copy()

    def close(self) -> None:
        """Free the context. Once, and before the model."""
        self._lib.llama_free(self._context)


def of_length_one(total: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """The vector's direction. Raises ModelError where it has none."""
    length = float(np.linalg.norm(total))
    if not (np.isfinite(length) and length > 0):
        raise ModelError("the model gave states that are not numbers; finer weights may help")
    found: npt.NDArray[np.float32] = (total / length).astype(np.float32)
    return found
