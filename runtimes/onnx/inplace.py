"""Steps on a graph that writes keys and values in place (``GroupQueryAttention``).

Every layer's array [slots, kv heads, context, head size] is bound as past and as present at once,
so that new tokens go where they belong and nothing is copied. A prompt goes in for one slot at a
time (the operator refuses several rows with a past and more than one new token); decode runs a
contiguous range of slots together.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from runtimes.onnx.binding import bind_all_rows, bind_input, bind_output, bind_tokens, run
from runtimes.onnx.graph import Graph
from runtimes.onnx.kv import SlotCache
from runtimes.runner import Logits, StepRow, consecutive_runs


class InPlaceSteps:
    """Runs tokens through the graph, and keeps the slot cache up to date."""

    def __init__(self, graph: Graph, kv: SlotCache, vocab_size: int) -> None:
        self.pair_lone_rows = False  # whether a lone row is decoded beside one that is thrown away
        self._graph, self._kv = graph, kv
        slots = len(kv.lengths)
        self._ids = np.zeros((slots, 1), graph.index_dtype)
        self._positions = np.zeros((slots, 1), graph.index_dtype)
        self._logits = np.zeros((slots, 1, vocab_size), graph.logits_dtype)
        self._bindings: dict[tuple[int, int], Any] = {}

    def prefill(
        self, slot: int, position: int, tokens: Sequence[int], *, every: bool = False
    ) -> Logits:
        """One slot's tokens behind the ``position`` it holds.

        Logits [1, vocab], or [len(tokens), vocab] with ``every`` where the graph has the choice,
        and always where it gives no other.
        """
        graph, end = self._graph, position + len(tokens)
        # These arrays must outlive the run.
        ids = np.array([tokens], graph.index_dtype)
        mask = np.ones((1, end), graph.index_dtype)
        positions = np.arange(position, end, dtype=graph.index_dtype)[None]
        binding = bind_tokens(graph, ids, mask, positions)
        if every:
            bind_all_rows(binding, graph)
        # Bound first, it is the first output; a full graph's shape is known only afterwards.
        binding.bind_output(graph.logits, "cpu")
        self._bind_cache(binding, slot, slot + 1)
        run(graph, binding)
        self._kv.hold(slot, end)
        logits: Logits = binding.get_outputs()[0].numpy()[0].astype(np.float32, copy=False)
        return logits

    def decode(self, rows: Sequence[StepRow]) -> Logits:
        """One token for each row, in ascending slot order; logits of the rows that want them.

        They are valid until the next call.
        """
        runs = consecutive_runs(rows, full=self._kv.full())
        if len(runs) == 1:
            return self._decode(runs[0])
        return np.concatenate([self._decode(part).copy() for part in runs])

    def close(self) -> None:
        """Drop the bindings."""
        self._bindings.clear()

    def _decode(self, rows: Sequence[StepRow]) -> Logits:
        """One token for each row. A hole in the range of slots is filled with a row that is thrown
        away: it writes one position past what its slot holds, where the next real token will go.
        """
        kv, slots = self._kv, [row.slot for row in rows]
        low, high = self._range(slots[0], slots[-1] + 1)
        self._ids[slots, 0] = [row.tokens[0] for row in rows]
        positions = [row.position for row in rows]
        self._positions[slots, 0] = positions
        kv.mask[slots, positions] = 1
        busy = set(slots)
        fillers = [slot for slot in range(low, high) if slot not in busy]
        for slot in fillers:
            self._ids[slot, 0] = 0
            self._positions[slot, 0] = kv.lengths[slot]
            kv.mask[slot, kv.lengths[slot]] = 1
        try:
            run(self._graph, self._binding(low, high))
        finally:
            for slot in fillers:
                kv.mask[slot, kv.lengths[slot]] = 0
        for slot, position in zip(slots, positions, strict=True):
            kv.lengths[slot] = position + 1
        picked = [row.slot for row in rows if row.logits]
        whole = bool(picked) and picked[-1] - picked[0] + 1 == len(picked)
        at = slice(picked[0], picked[-1] + 1) if whole else picked  # a slice copies nothing
        logits: Logits = self._logits[at, 0]
        return logits.astype(np.float32, copy=False)

    def _range(self, low: int, high: int) -> tuple[int, int]:
        """The slots to run for [low, high): a lone one beside a neighbour that has room."""
        if high - low == 1 and self.pair_lone_rows:
            full = self._kv.full()
            if high < len(self._ids) and high not in full:
                return low, high + 1
            if low > 0 and low - 1 not in full:
                return low - 1, high
        return low, high

    def _binding(self, low: int, high: int) -> Any:
        """The binding for slots [low, high), made once: shapes and addresses never change."""
        binding = self._bindings.get((low, high))
        if binding is None:
            graph, mask = self._graph, self._kv.mask[low:high]
            binding = bind_tokens(graph, self._ids[low:high], mask, self._positions[low:high])
            self._bind_cache(binding, low, high)
            bind_output(binding, graph.logits, self._logits[low:high])
            self._bindings[low, high] = binding
        return binding

    def _bind_cache(self, binding: Any, low: int, high: int) -> None:
        for tensor, array in zip(self._graph.cache, self._kv.arrays, strict=True):
            part = array[low:high]
            bind_input(binding, tensor.past, part)
            bind_output(binding, tensor.present, part)
