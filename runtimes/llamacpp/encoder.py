"""Encoders, such as BERT: a text's tokens in, one vector out, or how well two texts go together."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from runtimes.errors import ModelError, OutOfMemoryError, RequestError
from runtimes.llamacpp.context import load_model
from runtimes.llamacpp.embedding import of_length_one
from runtimes.llamacpp.native import NativeBatch, library, recent_errors
from runtimes.llamacpp.omp_wait import OmpWaitPolicy
from runtimes.llamacpp.tokenizer import LlamaTokenizer
from runtimes.machine.cpu import available_cores
from runtimes.models.modelfile import ModelFile
from runtimes.runner import Capabilities, KvSlots, Logits, SavedKv, StepPlan, StepRow
from runtimes.settings import RunnerSettings


class LlamaEncoder:
    """Implements ``runtimes.runner.Runner`` for a model that only embeds."""

    adapters = None
    graphs_reused: int | None = None

    def __init__(self, model_file: ModelFile, settings: RunnerSettings) -> None:
        """Raises ModelError, OutOfMemoryError or RuntimeMissingError."""
        self._lib = library()
        self._file = model_file
        length = settings.context or model_file.context_length
        self._model = load_model(model_file, settings)
        params = self._lib.llama_context_default_params()
        # Attention looks ahead: a text goes in whole.
        params.n_ctx = params.n_batch = params.n_ubatch = params.n_outputs_max = length
        params.n_seq_max, params.embeddings, params.no_perf = 1, True, True
        if model_file.scores_pairs:
            params.pooling_type = self._lib.LLAMA_POOLING_TYPE_RANK
        if settings.threads:
            params.n_threads = params.n_threads_batch = settings.threads
        self._context = self._lib.llama_init_from_model(self._model, params)
        if not self._context:
            self._lib.llama_model_free(self._model)
            raise OutOfMemoryError(f"no context for {model_file.path}: {recent_errors()}")
        self.tokenizer = LlamaTokenizer(self._model)
        self.kv: KvSlots = _NoSlots()
        self.capabilities = Capabilities(
            runtime="llamacpp",
            slots=1,
            context=length,
            batch=1,
            vocab_size=self.tokenizer.vocab_size,
            mixed_batch=False,
        )
        self._batch = NativeBatch(length)
        self._omp_wait = OmpWaitPolicy(settings.threads or available_cores())
        pooling = self._lib.llama_pooling_type(self._context)
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

    def embed(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Of a text, pooled as the file says (the mean where it does not), of length 1; of a pair,
        where the file scores such, its score alone. Raises ModelError."""
        count = self._batch.fill(StepPlan((StepRow(0, 0, tokens, len(tokens)),)))
        with self._omp_wait:
            code = self._lib.llama_encode(self._context, self._batch.native)
        if code != 0:
            raise ModelError(f"llama.cpp failed to embed: {recent_errors()}")
        if self._pooled:
            found = self._read(self._lib.llama_get_embeddings_seq(self._context, 0), 1)[0]
        else:
            found = self._read(self._lib.llama_get_embeddings(self._context), count).sum(axis=0)
        return found if self._file.scores_pairs else of_length_one(found.astype(np.float64))

    def _read(self, pointer: Any, rows: int) -> npt.NDArray[np.float32]:
        if not pointer:
            raise ModelError(f"llama.cpp gave no embedding: {recent_errors()}")
        return np.ctypeslib.as_array(pointer, (rows, self._width)).copy()

    def execute(self, plan: StepPlan) -> Logits:
        """There are no steps."""
        raise self._refusal()

    def score(self, tokens: Sequence[int]) -> Logits:
        """There are no logits."""
        raise self._refusal()

    def _refusal(self) -> RequestError:
        return RequestError(f"{self._file.path} is an encoder: it continues no text")

    def close(self) -> None:
        """Free context and model."""
        if self._context:
            self._omp_wait.close()
            self._lib.llama_free(self._context)
            self._lib.llama_model_free(self._model)
            self._context = None


class _NoSlots:
    """Nothing is kept of a text."""

    def copy(self, source: int, target: int, length: int) -> None: ...

    def trim(self, slot: int, length: int) -> None: ...

    def swap(self, first: int, second: int) -> None: ...

    def save(self, slot: int) -> SavedKv:
        return b""

    def load(self, slot: int, data: SavedKv, length: int) -> None: ...

    def shift(self, slot: int, keep: int, discard: int) -> None: ...
