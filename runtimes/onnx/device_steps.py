"""Steps on a graph whose keys and values are on a device, written in place there.

A step copies token ids, mask and positions to the device, and the rows of logits that were asked
for from it, or their largest, nothing else. A prompt goes in for one slot at a time. Rows that
decode go together where the device attends to each row for as long as it is; else each is a pass of
its own.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from runtimes.models.modelfile import ModelFile
from runtimes.onnx.device_check import prompts_are_right, rows_are_right
from runtimes.onnx.device_kv import DeviceCache
from runtimes.onnx.device_tensors import LIKELIEST, Mover
from runtimes.onnx.graph import Graph, bind_input
from runtimes.onnx.steps import MOST_BINDINGS, Steps
from runtimes.runner import Logits, StepRow, TopKLogits, consecutive_runs
from runtimes.settings import RunnerSettings

log = logging.getLogger(__name__)


class DeviceSteps(Steps):
    """On a graph that writes in place."""

    def __init__(
        self,
        graph: Graph,
        kv: DeviceCache,
        vocab_size: int,
        *,
        whole_prompts: bool,
        likeliest: bool = False,
    ) -> None:
        """Without ``whole_prompts`` tokens go in one by one. With ``likeliest`` rows that need a
        few of the largest logits are given these only."""
        super().__init__(graph)
        self.kv, self._vocab_size = kv, vocab_size
        self._whole_prompts = whole_prompts
        self.likeliest = likeliest

    def prefill(
        self,
        slot: int,
        position: int,
        tokens: Sequence[int],
        *,
        wanted: int = 1,
        adapter: str | None = None,
    ) -> Logits:
        """See ``Steps.prefill``; no more logits than are wanted."""
        if not self._whole_prompts:
            return self._one_by_one(slot, position, tokens, wanted, adapter)
        graph, kv, end = self._graph, self.kv, position + len(tokens)
        place, first = kv.place[slot], np.array([-wanted])
        # Not kept: its logits may be many.
        binding = self._bound(place, place + 1, logits=bool(wanted))
        if wanted > 1 and graph.logits_from:
            bind_input(binding, graph.logits_from, first)
        self._run(binding, [(position, tokens)], [adapter])
        kv.hold(slot, end)
        if not wanted:
            return self._nothing()
        logits = binding.get_outputs()[0]
        given = logits.shape()[1]
        return kv.mover.picked(logits, range(max(given - wanted, 0), given))

    def decode(self, rows: Sequence[StepRow]) -> Logits | TopKLogits:
        """See ``Steps.decode``."""
        together = self.kv.together
        passes = consecutive_runs(rows, full=self.kv.full()) if together else [[r] for r in rows]
        asked = [row.top_k_needed for row in rows if row.logits]
        # Less than the whole width: a list that is cut among equal logits is cut below them.
        few = self.likeliest and bool(asked) and all(0 < most < LIKELIEST for most in asked)
        found = [self._decode(part, few) for part in passes]
        lists = [one for one in found if isinstance(one, TopKLogits)]
        if not lists:
            return np.concatenate([one for one in found if not isinstance(one, TopKLogits)])
        ids, values = [one.ids for one in lists], [one.values for one in lists]
        return TopKLogits(np.concatenate(ids), np.concatenate(values))

    def _decode(self, rows: Sequence[StepRow], few: bool) -> Logits | TopKLogits:
        """A pass for slots that lie side by side, or for one slot."""
        kv, slots = self.kv, range(rows[0].slot, rows[-1].slot + 1)
        # Rows that are thrown away write one position past what their slots hold, where the next
        # real token will go.
        texts: dict[int, tuple[int, Sequence[int]]] = {s: (kv.lengths[s], (0,)) for s in slots}
        texts.update((row.slot, (row.position, row.tokens)) for row in rows)
        wanted, low = [row.slot - slots[0] for row in rows if row.logits], kv.place[slots[0]]
        binding = self._binding(low, low + len(slots), logits=bool(wanted))
        adapters = {row.slot: row.adapter for row in rows}
        self._run(binding, list(texts.values()), [adapters.get(slot) for slot in slots])
        for row in rows:
            kv.hold(row.slot, row.position + 1)
        if not wanted:
            return self._nothing()
        logits = binding.get_outputs()[0]
        return kv.mover.likeliest(logits, wanted) if few else kv.mover.picked(logits, wanted)

    def _one_by_one(
        self, slot: int, position: int, tokens: Sequence[int], wanted: int, adapter: str | None
    ) -> Logits:
        silent = len(tokens) - wanted
        steps = [
            StepRow(slot, position + i, (token,), int(i >= silent), adapter=adapter)
            for i, token in enumerate(tokens)
        ]
        found = [self._decode((step,), few=False) for step in steps]
        return np.concatenate([one for one in found if not isinstance(one, TopKLogits)])

    def _nothing(self) -> Logits:
        return np.empty((0, self._vocab_size), np.float32)

    def _run(
        self,
        binding: Any,
        texts: Sequence[tuple[int, Sequence[int]]],
        adapters: Sequence[str | None],
    ) -> None:
        """Each row's position and tokens, of which all have as many, and its adapter."""
        dtype, tokens = self._graph.index_dtype, len(texts[0][1])
        longest = max(position for position, _ in texts) + tokens
        # These arrays must outlive the run.
        ids = np.array([ids for _, ids in texts], dtype)
        positions = np.array([[p] for p, _ in texts], dtype) + np.arange(tokens, dtype=dtype)
        mask = (np.arange(longest) <= positions[:, -1:]).astype(dtype)
        self._graph.bind_rows(binding, ids, mask, positions)
        if self.adapters:
            self.adapters.bind_rows(binding, self.adapters.span(adapters), adapters)
        self._graph.run(binding)

    def _binding(self, low: int, high: int, *, logits: bool) -> Any:
        """What these places are bound to; it is kept."""
        key = low, high, logits
        if key not in self._bindings:
            if len(self._bindings) >= MOST_BINDINGS:
                self._bindings.clear()
            self._bindings[key] = self._bound(low, high, logits=logits)
        return self._bindings[key]

    def _bound(self, low: int, high: int, *, logits: bool) -> Any:
        binding = self._graph.session.io_binding()
        if logits:  # bound first, it is the first output
            self.kv.mover.bind_new(binding, self._graph.logits)
        views = self.kv.places(low, high)
        for tensor, view in zip(self._graph.cache, views, strict=True):
            view.bind_input(binding, tensor.past)
            view.bind_output(binding, tensor.present)
        if self.adapters:
            self.adapters.bind(binding, self.adapters.span(()))
        return binding


def open_steps(
    graph: Graph, model: ModelFile, settings: RunnerSettings, slots: int, context: int
) -> DeviceSteps:
    """The steps on the graph's device, as far as it computes right. Raises OutOfMemoryError or
    ModelError."""
    target, dtype = graph.target, graph.cache[0].dtype
    if target is None:
        raise ValueError("the graph is on the processor")
    together = target.provider.addresses and slots > 1 and not settings.reproducible
    if together and not rows_are_right(target, model, dtype):
        log.warning("%s attends to rows wrongly that decode together: they go apart", target.name)
        together = False
    mover = Mover(graph, target, model.vocab_size)
    cache = DeviceCache(graph, mover, slots, context, together=together)
    whole = prompts_are_right(target, model, dtype)
    if not whole:
        text = "%s computes the attention of prompts wrongly: they go in token by token: slow"
        log.warning(text, target.name)
    likeliest = settings.device_sampling and mover.finds_likeliest
    return DeviceSteps(graph, cache, model.vocab_size, whole_prompts=whole, likeliest=likeliest)
