"""Steps on llama.cpp through its C interface."""

import ctypes
import logging
import weakref
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runtimes.errors import ModelError, OutOfMemoryError
from runtimes.llamacpp.context import keeps_state, load_model, make_context, mixes_experts
from runtimes.llamacpp.encoder import Embedder
from runtimes.llamacpp.kv import LlamaSlotCache
from runtimes.llamacpp.memory import MOST_PROBED, sequences
from runtimes.llamacpp.native import NativeBatch, library, offloaded_layers, offloads, recent_errors
from runtimes.llamacpp.omp_wait import OmpWaitPolicy
from runtimes.llamacpp.shapes import Alike, filled, find_alike, parted
from runtimes.llamacpp.tokenizer import LlamaTokenizer
from runtimes.llamacpp.top_k import TopKSamplers
from runtimes.machine.cpu import available_cores
from runtimes.models.modelfile import ModelFile
from runtimes.runner import (
    Capabilities,
    Logits,
    StepLogits,
    StepRow,
    StepRows,
    consecutive_runs,
    joined,
)
from runtimes.settings import MOST_SLOTS, RunnerSettings, kv_bits, outputs_at_once

# LoRA adapters beside a model in llama.cpp, which applies one to all rows of a pass; or all as a
# stack, of which each slot uses one, where llama.cpp has been built with ``adapters.h``.


class LlamaAdapters:
    """Implements ``runtimes.runner.AdapterSlots``. Their memory goes with the model's."""

    def __init__(self, model: Any, context: Any, slots: int, *, offloaded: bool) -> None:
        self._lib = library()
        self._model, self._context = model, context
        self._loaded: dict[str, Any] = {}
        self._used: str | None = None
        self.stacks = hasattr(self._lib._lib, "ingot_stack_adapters") and not offloaded
        self._stack: Any = None
        self._stale = False  # whether what is loaded has changed since it was stacked
        self._places: dict[str | None, int] = {}  # in the stack
        self._by_slot = np.zeros(slots, np.int32)  # places

    @property
    def names(self) -> frozenset[str]:
        """See ``AdapterSlots.names``."""
        return frozenset(self._loaded)

    def load(self, name: str, path: Path) -> None:
        """See ``AdapterSlots.load``."""
        recent_errors()
        adapter = self._lib.llama_adapter_lora_init(self._model, str(path).encode())
        if not adapter:
            raise ModelError(
                f"llama.cpp cannot load the adapter {path}: {recent_errors() or 'no reason given'}"
            )
        if self._lib.llama_adapter_get_alora_n_invocation_tokens(adapter):
            self._lib.llama_adapter_lora_free(adapter)
            raise ModelError(f"{path} is an activated LoRA (aLoRA), which is not supported")
        self._unstack()
        self._loaded[name] = adapter

    def unload(self, name: str) -> None:
        """See ``AdapterSlots.unload``."""
        self._unstack()
        self._lib.llama_adapter_lora_free(self._loaded.pop(name))

    def _unstack(self) -> None:
        """Use none: another one may come to lie where one was."""
        self._apply(None)
        self._used = None
        self._lib.llama_adapter_lora_free(self._stack)
        self._stack, self._stale = None, self.stacks

    def _restack(self) -> None:
        """Stack what is loaded. There is no stack where one changes experts or embeddings."""
        self._unstack()
        self._stale = False
        kind, count = self._lib.llama_adapter_lora_p_ctypes, len(self._loaded)
        stacked = self._lib._lib.ingot_stack_adapters
        stacked.restype = kind
        every = (kind * count)(*self._loaded.values())
        self._stack = stacked(ctypes.c_void_p(self._model), every, ctypes.c_size_t(count))
        if self._stack:
            self._places = {name: at for at, name in enumerate([None, *self._loaded])}
            self._apply(self._stack)

    def use(self, rows: StepRows) -> None:
        """The next pass is of these rows, which ``groups`` has put together. Without a stack a
        change of the adapter costs a plan of llama.cpp's work memory."""
        if self._stack:
            for row in rows:
                self._by_slot[row.slot] = self._places[row.adapter]
            ids, count = ctypes.c_void_p(self._by_slot.ctypes.data), len(self._by_slot)
            self._lib._lib.ingot_use_adapters(self._stack, ids, ctypes.c_size_t(count))
        elif (name := rows[0].adapter) != self._used:
            self._apply(self._loaded[name] if name else None)
            self._used = name

    def _apply(self, adapter: Any) -> None:
        """Have llama.cpp add this adapter or stack, or nothing."""
        some = (self._lib.llama_adapter_lora_p_ctypes * 1)(adapter)
        scales = (ctypes.c_float * 1)(1.0)
        self._lib.llama_set_adapters_lora(self._context, some, int(bool(adapter)), scales)

    def groups(self, rows: StepRows) -> list[StepRows]:
        """Group what can run together: all rows with a stack; else those of one adapter, in
        their order, the group that needs no change first."""
        if self._stale and any(row.adapter for row in rows):
            self._restack()
        if self._stack or all(row.adapter == self._used for row in rows):
            return [rows]
        by_adapter = sorted(rows, key=lambda row: (row.adapter != self._used, row.adapter or ""))
        return [list(group) for _, group in groupby(by_adapter, key=lambda row: row.adapter)]


logger = logging.getLogger(__name__)

# llama_decode's result codes (llama.h)
_NO_SLOT, _OUT_OF_MEMORY = 1, -2


def _free(
    lib: Any, context: Any, model: Any, omp_wait: OmpWaitPolicy, top_k: TopKSamplers | None
) -> None:
    omp_wait.close()
    lib.llama_free(context)
    if top_k:
        top_k.close()
    lib.llama_model_free(model)


class LlamaRunner:
    """Implements ``runtimes.runner.Runner``: slot i is llama.cpp's sequence i.

    By default each sequence has a cache of its own. llama.cpp then makes an extra pass for every
    hole in the sequence ids of a batch, and splits batches of unequal rows; so a prompt goes in by
    itself, or with pieces of others that are as long, and decoding rows go together with unused
    rows in the holes. With ``unified_kv`` all rows go in one batch, whatever they are. With
    ``reproducible`` decoding rows go in passes that compute a row alike (``shapes``), by themselves
    where nothing else does, and prompts by themselves.
    """

    def __init__(self, model_file: ModelFile, settings: RunnerSettings) -> None:
        """Load the file; ``settings.context`` None means the model's own length.

        Raises ModelError, OutOfMemoryError or RuntimeMissingError.
        """
        self._lib = library()
        slots = min(max(settings.slots, 1), MOST_SLOTS)
        context_length = settings.context or model_file.context_length
        caches, length = slots, context_length
        if settings.reproducible:
            caches, length = sequences(slots), context_length + MOST_PROBED
        model = load_model(model_file, settings)
        context = self._context = make_context(model, model_file, settings, caches, length)
        self.tokenizer = LlamaTokenizer(model)
        vocabulary = self.tokenizer.vocab_size
        window, stateful = self._lib.llama_model_n_swa(model), keeps_state(model)
        self.kv = LlamaSlotCache(
            context,
            caches,
            length,
            unified=settings.unified_kv,
            # Whether every layer still has the keys and values before a slot's tail.
            can_trim=window == 0 and not stateful,
            window=0 if stateful else window,
        )
        # Rounding with an adapter would depend on the number of rows in other ways.
        self.adapters: LlamaAdapters | None = None
        if not settings.reproducible:
            self.adapters = LlamaAdapters(model, context, caches, offloaded=offloads(settings))
        # Rows of logits that a call may ask for
        self._outputs = outputs_at_once(settings, caches)
        self.capabilities = Capabilities(
            runtime="llamacpp",
            slots=slots,
            context=context_length,
            batch=max(settings.batch, slots),
            vocab_size=vocabulary,
            mixed_batch=settings.unified_kv,
            equal_prefills=not (settings.unified_kv or settings.reproducible),
            kv_tokens=settings.kv_tokens if settings.unified_kv else None,
            kv_bytes_per_token=model_file.kv_bytes_per_token(kv_bits(settings.kv_type) / 8),
            can_trim=self.kv.can_trim,
            whole_checkpoints=bool(self._lib.llama_model_is_recurrent(model)),
            exact_checkpoints=window == 0,
            can_shift=self.kv.can_shift,
            adapters_apart=not (self.adapters and self.adapters.stacks),
            gpu_layers=offloaded_layers(settings, model_file.layers),
            top_k_logits=settings.device_sampling,
            most_logits=self._outputs,
        )
        self._embedder: Embedder | None = None
        self._embedding = model, model_file.architecture, context_length, settings
        self._batch = NativeBatch(max(self.capabilities.batch, self._outputs))
        self._top_k = TopKSamplers(context, slots, vocabulary) if settings.device_sampling else None
        # Unused slots that a step may run along to stay in one pass. A recurrent state cannot
        # forget the token that fills a hole.
        self._most_holes = 0 if stateful else 2
        self._views: dict[tuple[int, int], Logits] = {}
        self._omp_wait = OmpWaitPolicy(settings.threads or available_cores())
        self._finalizer = weakref.finalize(
            self, _free, self._lib, context, model, self._omp_wait, self._top_k
        )
        self._alike: Alike | None = None
        if settings.reproducible:
            # Kernels of a GPU choose how to add up by more than the number of rows.
            unlike = offloads(settings) or mixes_experts(model, model_file)
            if self.kv.can_trim and not unlike:
                self._alike = find_alike(self._first_tokens)
                self.kv.remove(0, 0)
            if self._alike is None:
                self.capabilities = replace(self.capabilities, lone_rows=True)
            logger.info("rows are computed alike in passes of %s", self._alike or "one row")

    @property
    def graphs_reused(self) -> int:
        """llama.cpp's own count; it keeps it whether or not it measures times."""
        return int(self._lib.llama_perf_context(self._context).n_reused)

    def execute(self, rows: StepRows) -> StepLogits:
        """Run one step; see ``Runner.execute``. A failed step leaves every slot as it was."""
        parts: list[StepLogits] = []
        groups = self.adapters.groups(rows) if self.adapters else [rows]
        calls = [call for group in groups for call in self._calls(group)]
        together = not self.capabilities.mixed_batch and all(len(row.tokens) == 1 for row in rows)
        if self._top_k:
            self._top_k.ready(rows)
        try:
            for call in calls:
                if self.adapters:
                    self.adapters.use(call)
                found = self._pass(call, together=together)
                parts.append(found if len(calls) == 1 else found[np.arange(len(found))])
        except Exception:
            for row in rows:
                self.kv.remove(row.slot, row.position)
                self.kv.lengths[row.slot] = row.position
            raise
        if len(parts) == 1:
            return parts[0]
        found = joined(parts)
        return found if len(groups) == 1 else found[_places(rows, calls)]

    def _calls(self, rows: StepRows) -> list[list[StepRow]]:
        """The batches that a step is made of."""
        if self.capabilities.mixed_batch:
            return [list(rows)]
        if self.capabilities.lone_rows:
            return [[row] for row in rows]
        if any(len(row.tokens) > 1 for row in rows):
            equal = self.capabilities.equal_prefills and len({len(row.tokens) for row in rows}) == 1
            return consecutive_runs(rows, 0) if equal else [[row] for row in rows]
        runs = consecutive_runs(rows, self._most_holes, self.kv.full())
        if self._alike is None:
            return runs
        slots = len(self.kv.lengths)
        return [part for run in runs for part in parted(run, slots, self._alike)]

    def _pass(self, asked: list[StepRow], *, together: bool) -> StepLogits:
        """One call of llama.cpp: the logits of the rows that want them."""
        kv, alike = self.kv, self._alike if together else None
        fill = together and not self.capabilities.lone_rows
        rows = filled(asked, kv.lengths, alike) if fill else asked
        try:
            # Tokens without logits would be left out by the kernels of the last layer.
            outputs = self._batch.fill(rows, every=alike is not None)
            if outputs > self._outputs:  # llama.cpp would end the process
                raise ModelError(f"{outputs} rows of logits in a call; {self._outputs} fit")
            self._decode()
        finally:
            ends = {row.slot: row.position + len(row.tokens) for row in asked}
            for row in rows if rows is not asked else ():
                end = ends.get(row.slot, row.position)
                if row.position + len(row.tokens) > end:
                    kv.remove(row.slot, end)
        for slot, end in ends.items():
            kv.lengths[slot] = end
        if alike is None:
            if outputs and self._top_k and self._top_k.on:
                return self._top_k.read(outputs)
            return self._logits(outputs)
        tokens = len(rows[0].tokens)
        wanted = [at * tokens for at, row in enumerate(rows) if row.logits]
        return self._logits(outputs)[wanted]

    def _first_tokens(self, count: int) -> Logits:
        """Logits of one pass of so many tokens of a slot."""
        self.kv.remove(0, 0)
        return self._scored(range(count), 0)

    def score(self, tokens: Sequence[int], first: int = 0) -> Logits:
        """See ``Runner.score``."""
        if len(tokens) > self.capabilities.context:
            raise ModelError(f"{len(tokens)} tokens do not fit the context")
        self.kv.trim(0, 0)
        if self.adapters:
            self.adapters.use([StepRow(0, 0, tokens, 0)])
        if self._top_k:
            self._top_k.off()
        parts = []
        for start in range(0, len(tokens), self._outputs):
            part = self._scored(tokens[start : start + self._outputs], start)
            parts.append(part[max(first - start, 0) :])
        self.kv.trim(0, 0)
        return np.concatenate(parts)

    def _scored(self, tokens: Sequence[int], start: int) -> Logits:
        self._batch.fill((StepRow(0, start, tokens, len(tokens)),))
        self._decode()
        return self._logits(len(tokens)).copy()

    def embed(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """See ``Runner.embed``."""
        if self._embedder is None:
            self._embedder = Embedder(*self._embedding)
        with self._omp_wait:
            return self._embedder.embed(tokens)

    def close(self) -> None:
        """Free contexts and model."""
        self._views.clear()
        if self._embedder is not None:
            self._embedder.close()
            self._embedder = None
        self._finalizer()

    def _decode(self) -> None:
        with self._omp_wait:
            code = self._lib.llama_decode(self._context, self._batch.native)
        if code == 0:
            self.kv.stepped()
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
            return np.empty((0, self.capabilities.vocab_size), np.float32)
        pointer = self._lib.llama_get_logits(self._context)
        key = (ctypes.addressof(pointer.contents), outputs)
        view = self._views.get(key)
        if view is None:
            shape = (outputs, self.capabilities.vocab_size)
            view = self._views[key] = np.ctypeslib.as_array(pointer, shape)
        return view


def _places(rows: StepRows, calls: Sequence[StepRows]) -> list[int]:
    """Return the positions of the rows' logits in the concatenated output of the calls."""
    starts, at = dict[int, int](), 0
    for row in (row for call in calls for row in call):
        starts[row.slot] = at
        at += row.logits
    return [starts[row.slot] + i for row in rows for i in range(row.logits)]
