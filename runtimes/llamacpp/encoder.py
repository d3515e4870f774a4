"""Encoders, such as BERT: a text's tokens in, one vector out, or how well two texts go together."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from runtimes.errors import ModelError, OutOfMemoryError, RequestError
from runtimes.llamacpp.context import load_model, said_of, set_positions
from runtimes.llamacpp.kv import LlamaSlotCache
from runtimes.llamacpp.native import NativeBatch, library, recent_errors
from runtimes.llamacpp.omp_wait import OmpWaitPolicy
from runtimes.llamacpp.tokenizer import LlamaTokenizer
from runtimes.machine.cpu import available_cores
from runtimes.models.modelfile import ModelFile
from runtimes.runner import Capabilities, Logits, StepRow, StepRows
from runtimes.settings import SCORED_CHUNK, RunnerSettings

Vector = npt.NDArray[np.float32]
_LAST = b"3"  # llama.h's LLAMA_POOLING_TYPE_LAST, as the header of a file has it

# Embeddings: the model's last hidden states, on a context of their own beside the runner's.


class _States:
    """A context of one slot, for ``step`` tokens at a time, that gives states."""

    def __init__(
        self,
        model: Any,
        what: object,
        length: int,
        step: int,
        pooling: int,
        settings: RunnerSettings,
    ) -> None:
        """Raises OutOfMemoryError, which says of ``what`` there are none."""
        self._lib = lib = library()
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = length, 1
        params.n_batch = params.n_ubatch = params.n_outputs_max = step
        params.embeddings, params.no_perf = True, True
        params.pooling_type = pooling
        set_positions(params, settings)
        if settings.threads:
            params.n_threads = params.n_threads_batch = settings.threads
        self.context = lib.llama_init_from_model(model, params)
        if not self.context:
            raise OutOfMemoryError(f"no context for {what}: {recent_errors()}")
        self._batch = NativeBatch(step)

    def compute(self, tokens: Sequence[int], start: int = 0) -> None:
        """Put tokens in behind ``start`` others; without any, forget what is there."""
        if not start:  # also of an encoder, for which llama.cpp may have a cache all the same
            self._lib.llama_memory_clear(self._lib.llama_get_memory(self.context), False)
        self._batch.fill((StepRow(0, start, tokens, len(tokens)),))
        if self._lib.llama_decode(self.context, self._batch.native) != 0:
            raise ModelError(f"llama.cpp failed to embed: {recent_errors()}")

    def read(self, pointer: Any, rows: int, width: int) -> Vector:
        """A copy of llama.cpp's states."""
        if not pointer:
            raise ModelError(f"llama.cpp gave no embedding: {recent_errors()}")
        return np.ctypeslib.as_array(pointer, (rows, width)).copy()


class Embedder(_States):
    """Made when the first text is embedded: it holds a cache of one slot."""

    def __init__(
        self, model: Any, architecture: str, context: int, settings: RunnerSettings
    ) -> None:
        """Raises OutOfMemoryError."""
        pooling = library().LLAMA_POOLING_TYPE_NONE  # it would pool each piece apart
        # llama.cpp computes logits too: few positions at a time keep them small.
        super().__init__(model, "embeddings", context, SCORED_CHUNK, pooling, settings)
        self._width = int(self._lib.llama_model_n_embd(model))
        self._last = said_of(model, f"{architecture}.pooling_type") == _LAST

    def embed(self, tokens: Sequence[int]) -> Vector:
        """The mean of the states after all tokens, or the last where the file says so; of length 1.

        Raises ModelError.
        """
        total = np.zeros(self._width, np.float64)
        for start in range(0, len(tokens), SCORED_CHUNK):
            part = tokens[start : start + SCORED_CHUNK]
            self.compute(part, start)
            pointer = self._lib.llama_get_embeddings(self.context)
            states = self.read(pointer, len(part), self._width)
            total = states[-1].astype(np.float64) if self._last else total + states.sum(axis=0)
        return of_length_one(total)

    def close(self) -> None:
        """Free the context. Once, and before the model."""
        self._lib.llama_free(self.context)


def of_length_one(total: npt.NDArray[np.float64]) -> Vector:
    """The vector's direction. Raises ModelError where it has none."""
    length = float(np.linalg.norm(total))
    if not (np.isfinite(length) and length > 0):
        raise ModelError("the model gave states that are not numbers; finer weights may help")
    found: Vector = (total / length).astype(np.float32)
    return found


class LlamaEncoder:
    """Implements ``runtimes.runner.Runner`` for a model that only embeds."""

    adapters = None
    graphs_reused: int | None = None

    def __init__(self, model_file: ModelFile, settings: RunnerSettings) -> None:
        """Raises ModelError, OutOfMemoryError or RuntimeMissingError."""
        self._lib = library()
        self._file = model_file
        length = settings.context or model_file.context_length
        self._model = model = load_model(model_file, settings)
        asked = self._lib.LLAMA_POOLING_TYPE_UNSPECIFIED
        if model_file.scores_pairs:
            asked = self._lib.LLAMA_POOLING_TYPE_RANK
        try:  # attention looks ahead: a text goes in whole
            self._states = _States(model, model_file.path, length, length, asked, settings)
        except OutOfMemoryError:
            self._lib.llama_model_free(model)
            raise
        self.tokenizer = LlamaTokenizer(model)
        # They hold nothing: llama.cpp keeps nothing of a text.
        self.kv = LlamaSlotCache(self._states.context, 1, length, unified=False, can_trim=True)
        self.capabilities = Capabilities(
            runtime="llamacpp",
            slots=1,
            context=length,
            batch=1,
            vocab_size=self.tokenizer.vocab_size,
            mixed_batch=False,
        )
        self._omp_wait = OmpWaitPolicy(settings.threads or available_cores())
        pooling = self._lib.llama_pooling_type(self._states.context)
        self._pooled = pooling != self._lib.LLAMA_POOLING_TYPE_NONE
        if pooling == self._lib.LLAMA_POOLING_TYPE_RANK and not model_file.scores_pairs:
            self.close()
            raise ModelError(
                f"{model_file.path} is a classifier, or a reranker that llama.cpp does not compute"
                " as it was trained"
            )
        self._width = (
            1 if model_file.scores_pairs else int(self._lib.llama_model_n_embd_out(self._model))
        )

    def embed(self, tokens: Sequence[int]) -> Vector:
        """Embed a text, pooled as the file says (the mean where it does not), of length 1; of a
        pair, where the file scores such, its score alone. Raises ModelError."""
        with self._omp_wait:
            self._states.compute(tokens)
        lib, context = self._lib, self._states.context
        if self._pooled:
            pointer, count = lib.llama_get_embeddings_seq(context, 0), 1
        else:
            pointer, count = lib.llama_get_embeddings(context), len(tokens)
        found = self._states.read(pointer, count, self._width).sum(axis=0)
        return found if self._file.scores_pairs else of_length_one(found.astype(np.float64))

    def execute(self, rows: StepRows) -> Logits:
        """There are no steps."""
        raise self._refusal()

    def score(self, tokens: Sequence[int], first: int = 0) -> Logits:
        """There are no logits."""
        raise self._refusal()

    def _refusal(self) -> RequestError:
        return RequestError(f"{self._file.path} is an encoder: it continues no text")

    def close(self) -> None:
        """Free context and model."""
        if self._model:
            self._omp_wait.close()
            self._lib.llama_free(self._states.context)
            self._lib.llama_model_free(self._model)
            self._model = None
