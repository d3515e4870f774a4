"""Steps on llama.cpp through its C interface."""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from runtimes.errors import ModelError, OutOfMemoryError
from runtimes.llamacpp.batch import Batch
from runtimes.llamacpp.native import library, recent_errors
from runtimes.llamacpp.tokenizer import LlamaTokenizer
from runtimes.modelfile import ModelFile
from runtimes.runner import (
    Capabilities,
    Logits,
    StepPlan,
    StepRow,
    consecutive_runs,
)
from runtimes.settings import RunnerSettings

logger = logging.getLogger(__name__)

# llama_decode's result codes (llama.h)
_NO_SLOT, _OUT_OF_MEMORY = 1, -2
_MAX_SLOTS = 256  # LLAMA_MAX_SEQ
_SCORED_AT_ONCE = 32  # bounds the logits buffer while scoring


def _free(lib: Any, context: Any, model: Any) -> None:
    lib.llama_free(context)
    lib.llama_model_free(model)


class LlamaRunner:
    """Implements ``runtimes.runner.Runner``: slot i is llama.cpp's sequence i.

    By default each sequence has a cache of its own. llama.cpp then makes an extra pass for every
    hole in the sequence ids of a batch, and splits batches of unequal rows; so a prompt goes in by
    itself, and decoding rows go together with unused rows in the holes. With ``unified_kv`` all
    rows go in one batch, whatever they are.
    """

    def __init__(
        self, model: Any, context: Any, tokenizer: LlamaTokenizer, capabilities: Capabilities
    ) -> None:
        self._lib = library()
        self._context = context
        self._memory = self._lib.llama_get_memory(context)
        self._batch = Batch(max(capabilities.batch, _SCORED_AT_ONCE))
        self._capabilities = capabilities
        self._tokenizer = tokenizer
        self._lengths = [0] * capabilities.slots
        self._views: dict[tuple[int, int], Logits] = {}
        self._finalizer = weakref.finalize(self, _free, self._lib, context, model)

    @classmethod
    def load(cls, model_file: ModelFile, settings: RunnerSettings) -> LlamaRunner:
        """Load the file; ``settings.context`` None means the model's own length.

        Raises ModelError, OutOfMemoryError or RuntimeMissingError.
        """
        lib = library()
        slots = min(max(settings.slots, 1), _MAX_SLOTS)
        context_length = settings.context or model_file.context_length
        batch = max(settings.batch, slots)
        model = _load_model(lib, model_file, settings)
        params = lib.llama_context_default_params()
        params.n_ctx = context_length * slots
        params.n_batch = params.n_ubatch = batch
        params.n_seq_max = slots
        # llama.cpp sizes its output buffers for every token of a batch unless told.
        params.n_outputs_max = max(slots, _SCORED_AT_ONCE)
        params.kv_unified = settings.unified_kv
        params.no_perf = True
        if settings.threads:
            params.n_threads = params.n_threads_batch = settings.threads
        context = lib.llama_init_from_model(model, params)
        if not context:
            lib.llama_model_free(model)
            raise OutOfMemoryError(
                f"llama.cpp cannot make a context of {slots} slots x {context_length} tokens for "
                f"{model_file.path} ({recent_errors() or 'no reason given'}); "
                "ask for fewer slots or a smaller context"
            )
        tokenizer = LlamaTokenizer(model)
        capabilities = Capabilities(
            runtime="llamacpp",
            slots=slots,
            context=context_length,
            batch=batch,
            vocab_size=tokenizer.vocab_size,
            mixed_batch=settings.unified_kv,
        )
        return cls(model, context, tokenizer, capabilities)

    @property
    def capabilities(self) -> Capabilities:
        """Fixed once loaded."""
        return self._capabilities

    @property
    def tokenizer(self) -> LlamaTokenizer:
        """The vocabulary of the loaded file."""
        return self._tokenizer

    def execute(self, plan: StepPlan) -> Logits:
        """Run one step; see ``Runner.execute``. A failed step leaves every slot as it was."""
        parts = []
        calls = self._calls(plan.rows)
        try:
            for rows in calls:
                outputs = self._batch.fill(StepPlan(tuple(rows)))
                self._decode()
                logits = self._logits(outputs)
                parts.append(logits if len(calls) == 1 else logits.copy())
        except Exception:
            for row in plan.rows:
                self._lib.llama_memory_seq_rm(self._memory, row.slot, row.position, -1)
            raise
        finally:
            self._forget_fillers(plan.rows, calls)
        for row in plan.rows:
            self._lengths[row.slot] = row.position + len(row.tokens)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def trim(self, slot: int, length: int) -> None:
        """Forget what the slot holds from position ``length`` on."""
        if not self._lib.llama_memory_seq_rm(self._memory, slot, length, -1):
            # A sliding window's cache cannot give up its tail alone.
            raise ModelError(f"slot {slot} cannot be cut back to {length} tokens")
        self._lengths[slot] = min(self._lengths[slot], length)

    def _calls(self, rows: Sequence[StepRow]) -> list[list[StepRow]]:
        """The batches that a step is made of."""
        if self._capabilities.mixed_batch:
            return [list(rows)]
        if any(len(row.tokens) > 1 for row in rows):
            return [[row] for row in rows]
        return [self._filled(run) for run in consecutive_runs(rows)]

    def _filled(self, run: list[StepRow]) -> list[StepRow]:
        """A run with a row in every hole, one position past what that slot holds."""
        busy = {row.slot: row for row in run}
        return [
            busy.get(slot) or StepRow(slot, self._lengths[slot], (0,), False)
            for slot in range(run[0].slot, run[-1].slot + 1)
        ]

    def _forget_fillers(self, asked: Sequence[StepRow], calls: list[list[StepRow]]) -> None:
        real = {row.slot for row in asked}
        for rows in calls:
            for row in rows:
                if row.slot not in real:
                    self._lib.llama_memory_seq_rm(self._memory, row.slot, row.position, -1)

    def score(self, tokens: Sequence[int]) -> Logits:
        """Logits after every position: [len(tokens), vocab_size]."""
        if len(tokens) > self._capabilities.context:
            raise ModelError(f"{len(tokens)} tokens do not fit the context")
        self.trim(0, 0)
        parts = []
        for start in range(0, len(tokens), _SCORED_AT_ONCE):
            piece = list(tokens[start : start + _SCORED_AT_ONCE])
            self._batch.fill_scored(piece, start)
            self._decode()
            parts.append(self._logits(len(piece)).copy())
        self.trim(0, 0)
        return np.concatenate(parts)

    def close(self) -> None:
        """Free context and model."""
        self._views.clear()
        self._finalizer()

    def _decode(self) -> None:
        code = self._lib.llama_decode(self._context, self._batch.native)
        if code == 0:
            return
        reason = recent_errors() or f"code {code}"
        if code in (_NO_SLOT, _OUT_OF_MEMORY):
            raise OutOfMemoryError(f"llama.cpp ran out of memory in a step: {reason}")
        raise ModelError(f"llama.cpp failed in a step: {reason}")

    def _logits(self, outputs: int) -> Logits:
        """A view of llama.cpp's output buffer, which it reallocates only when it must grow."""
        if outputs == 0:
            # Still wait for the step: llama_decode may return before a GPU has finished.
            self._lib.llama_synchronize(self._context)
            return np.empty((0, self._capabilities.vocab_size), np.float32)
        pointer = self._lib.llama_get_logits(self._context)
        key = (ctypes.addressof(pointer.contents), outputs)
        view = self._views.get(key)
        if view is None:
            shape = (outputs, self._capabilities.vocab_size)
            view = self._views[key] = np.ctypeslib.as_array(pointer, shape)
        return view


def _load_model(lib: Any, model_file: ModelFile, settings: RunnerSettings) -> Any:
    params = lib.llama_model_default_params()
    params.n_gpu_layers = settings.gpu_layers
    params.use_extra_bufts = settings.extra_buffers
    recent_errors()
    model = lib.llama_model_load_from_file(str(model_file.path).encode(), params)
    if not model:
        raise ModelError(
            f"llama.cpp cannot load {model_file.path}: {recent_errors() or 'no reason given'}"
        )
    return model
