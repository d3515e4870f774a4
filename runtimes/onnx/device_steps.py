"""Steps on a graph whose keys and values are on a device, written in place there.

Each slot's keys and values are bound once. A step copies token ids, mask and positions to the
device, and the rows of logits that were asked for from it, nothing else. Each row is a pass of its
own: WebGPU's attention takes all rows of a pass for as long as the longest (ONNX Runtime 1.27).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from runtimes.onnx.device_kv import DeviceCache
from runtimes.onnx.graph import Graph, bind_input, bind_output
from runtimes.onnx.steps import Steps
from runtimes.runner import Logits, StepRow


class DeviceSteps(Steps):
    """On a graph that writes in place."""

    def __init__(
        self, graph: Graph, kv: DeviceCache, vocab_size: int, *, whole_prompts: bool
    ) -> None:
        """Without ``whole_prompts`` tokens go in one by one."""
        self._graph, self._kv, self._vocab_size = graph, kv, vocab_size
        self._logits = np.zeros((1, 1, vocab_size), graph.logits_dtype)
        self._bindings: dict[tuple[int, bool], Any] = {}
        self._whole_prompts = whole_prompts

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
            return self._one_by_one(slot, position, tokens, wanted)
        graph, kv, end = self._graph, self._kv, position + len(tokens)
        if not wanted:
            self._run(self._binding(slot, logits=False), position, tokens)
            kv.hold(slot, end)
            return self._nothing()
        binding, first = graph.session.io_binding(), np.array([-wanted])
        if wanted > 1 and graph.logits_from:
            bind_input(binding, graph.logits_from, first)
        kv.mover.bind_new(binding, graph.logits)  # bound first, it is the first output
        self._bind_cache(binding, slot)
        self._run(binding, position, tokens)
        kv.hold(slot, end)
        return kv.mover.last(binding.get_outputs()[0], wanted)

    def decode(self, rows: Sequence[StepRow]) -> Logits:
        """See ``Steps.decode``; a pass for each row."""
        found = [
            self._token(row.slot, row.position, row.tokens[0], logits=bool(row.logits))
            for row in rows
        ]
        return np.concatenate(found)

    def _one_by_one(self, slot: int, position: int, tokens: Sequence[int], wanted: int) -> Logits:
        silent = len(tokens) - wanted
        found = [
            self._token(slot, position + i, token, logits=i >= silent)
            for i, token in enumerate(tokens)
        ]
        return np.concatenate(found)

    def _token(self, slot: int, position: int, token: int, *, logits: bool) -> Logits:
        """One token of a slot; logits [1, vocab], or none of them."""
        self._run(self._binding(slot, logits=logits), position, (token,))
        self._kv.hold(slot, position + 1)
        return self._logits[0].astype(np.float32) if logits else self._nothing()

    def _nothing(self) -> Logits:
        return np.empty((0, self._vocab_size), np.float32)

    def _run(self, binding: Any, position: int, tokens: Sequence[int]) -> None:
        dtype, end = self._graph.index_dtype, position + len(tokens)
        # These arrays must outlive the run.
        ids = np.array([tokens], dtype)
        mask = np.ones((1, end), dtype)
        positions = np.arange(position, end, dtype=dtype)[None]
        self._graph.bind_rows(binding, ids, mask, positions)
        self._graph.run(binding)

    def _binding(self, slot: int, *, logits: bool) -> Any:
        """What a slot's place is bound to, with one row of logits or without; it is kept."""
        key = self._kv.place[slot], logits
        if key not in self._bindings:
            binding = self._graph.session.io_binding()
            self._bind_cache(binding, slot)
            if logits:
                bind_output(binding, self._graph.logits, self._logits)
            self._bindings[key] = binding
        return self._bindings[key]

    def _bind_cache(self, binding: Any, slot: int) -> None:
        values = self._kv.places[self._kv.place[slot]]
        for tensor, value in zip(self._graph.cache, values, strict=True):
            binding.bind_ortvalue_input(tensor.past, value)
            binding.bind_ortvalue_output(tensor.present, value)
