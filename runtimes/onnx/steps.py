"""Steps on a graph, of either kind, on the processor (``device_steps`` has those elsewhere).

``InPlaceSteps``: the graph writes keys and values in place (``GroupQueryAttention``). Every layer's
array [slots, kv heads, context, head size] is bound as past and as present at once, so that new
tokens go where they belong and nothing is copied. A prompt goes in for one slot at a time (the
operator refuses several rows with a past and more than one new token); decode runs a contiguous
range of slots together.

``ConcatSteps``: the graph gives back present = past + new for every layer (optimum's exporter).
Past and present are two buffers that take turns: what one step wrote is the next one's past, as
long as the same rows go on. Rows of several lengths are aligned at their ends, with masked zeros in
front and positions of their own; so distances between tokens are right, which sliding windows and
relative positions need. A graph that takes no positions may count them from the start, so it gets
rows of one length together. New keys and values are copied to the slot cache after every step.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from runtimes.errors import OutOfMemoryError
from runtimes.onnx.adapters import OnnxAdapters
from runtimes.onnx.graph import Array, Graph, bind_input, bind_output
from runtimes.onnx.kv import SlotCache, Slots
from runtimes.runner import Logits, StepLogits, StepRow, StepRows, consecutive_runs

_FIRST = np.zeros(1, np.int64)
_MOST_BINDINGS = 128  # that are kept; one with adapters takes up to 0.2 MB
_NOBODY = -1  # the slot of a row that is thrown away


class Steps(ABC):
    """Runs tokens through the graph, and keeps the slot cache up to date."""

    pair_lone_rows = False  # whether a lone row is decoded beside one that is thrown away
    likeliest = False  # whether rows that need a few of the largest logits are given these only
    adapters: OnnxAdapters | None = None

    def __init__(self, graph: Graph, kv: Slots) -> None:
        self._graph, self.kv = graph, kv
        self._bindings: dict[Any, Any] = {}  # that are kept

    def _keep(self, key: Any, binding: Any) -> Any:
        """Keep a binding, whose shapes and addresses never change, for the next such step."""
        if len(self._bindings) >= _MOST_BINDINGS:
            self._bindings.clear()
        self._bindings[key] = binding
        return binding

    def forget(self) -> None:
        """Drop what is bound to the graph beside what a step gives it."""
        self._bindings.clear()

    def use(self, graph: Graph | None) -> None:
        """Run another graph of the same model from now on; None drops the one that is there."""
        self.forget()
        self._graph = graph  # type: ignore[assignment]

    @abstractmethod
    def prefill(self, row: StepRow) -> Logits:
        """One row's tokens behind what its slot holds; logits [n, vocab] after the last n.

        At least as many as the row wants, but no more than 1 where the graph gives no other.
        """

    @abstractmethod
    def decode(self, rows: StepRows) -> StepLogits:
        """One token for each row, in ascending slot order; logits of the rows that want them.

        They are valid until the next call.
        """


def singly(row: StepRow, wanted: int) -> list[StepRow]:
    """A row's tokens one by one, with logits after each of the last ``wanted``."""
    silent = len(row.tokens) - wanted
    return [
        StepRow(row.slot, row.position + i, (token,), int(i >= silent), adapter=row.adapter)
        for i, token in enumerate(row.tokens)
    ]


class ProcessorSteps(Steps):
    """On the processor, where logits are handed out whole."""

    kv: SlotCache

    def prefill(self, row: StepRow) -> Logits:
        """See ``Steps.prefill``."""
        graph, end = self._graph, row.position + len(row.tokens)
        # These arrays must outlive the run.
        ids = np.array([row.tokens], graph.index_dtype)
        mask = np.ones((1, end), graph.index_dtype)
        positions = np.arange(row.position, end, dtype=graph.index_dtype)[None]
        binding = graph.bind(ids, mask, positions)
        if self.adapters:
            span = self.adapters.span([row.adapter])
            self.adapters.bind(binding, span)
            self.adapters.bind_rows(binding, span, [row.adapter])
        if row.logits > 1 and graph.logits_from:
            bind_input(binding, graph.logits_from, _FIRST)
        # Bound first, it is the first output; a full graph's shape is known only afterwards.
        binding.bind_output(graph.logits, "cpu")
        self._run_prefill(binding, row.slot, row.position, end)
        self.kv.hold(row.slot, end)
        logits: Logits = binding.get_outputs()[0].numpy()[0].astype(np.float32, copy=False)
        return logits

    @abstractmethod
    def _run_prefill(self, binding: Any, slot: int, position: int, end: int) -> None:
        """Bind the slot's past, run, and keep what is new."""


class InPlaceSteps(ProcessorSteps):
    """On a graph that writes in place."""

    def __init__(self, graph: Graph, kv: SlotCache, vocab_size: int) -> None:
        super().__init__(graph, kv)
        slots = len(kv.lengths)
        self._ids, self._positions = np.zeros((2, slots, 1), graph.index_dtype)
        self._logits = np.zeros((slots, 1, vocab_size), graph.logits_dtype)

    def _run_prefill(self, binding: Any, slot: int, position: int, end: int) -> None:
        self._bind_cache(binding, slot, slot + 1)
        self._graph.run(binding)

    def decode(self, rows: StepRows) -> Logits:
        """See ``Steps.decode``."""
        runs = consecutive_runs(rows, full=self.kv.full())
        if len(runs) == 1:
            return self._decode(runs[0])
        return np.concatenate([self._decode(part).copy() for part in runs])

    def _decode(self, rows: StepRows) -> Logits:
        kv, slots = self.kv, [row.slot for row in rows]
        low, high = self._range(slots[0], slots[-1] + 1)
        self._ids[slots, 0] = [row.tokens[0] for row in rows]
        positions = [row.position for row in rows]
        self._positions[slots, 0] = positions
        kv.mask[slots, positions] = 1
        busy = set(slots)
        fillers = [slot for slot in range(low, high) if slot not in busy]
        # Rows that are thrown away write one position past what their slots hold, where the next
        # real token will go.
        for slot in fillers:
            self._ids[slot, 0] = 0
            self._positions[slot, 0] = kv.lengths[slot]
            kv.mask[slot, kv.lengths[slot]] = 1
        try:
            self._graph.run(self._binding(low, high, {row.slot: row.adapter for row in rows}))
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
            full = self.kv.full()
            if high < len(self._ids) and high not in full:
                return low, high + 1
            if low > 0 and low - 1 not in full:
                return low - 1, high
        return low, high

    def _binding(self, low: int, high: int, names: Mapping[int, str | None]) -> Any:
        """The binding for slots [low, high) with their adapters."""
        adapters = self.adapters
        span = adapters.span(names.values()) if adapters else (0, 0)
        key = low, high, span
        binding = self._bindings.get(key)
        if binding is None:
            graph, mask = self._graph, self.kv.mask[low:high]
            binding = graph.bind(self._ids[low:high], mask, self._positions[low:high])
            self._bind_cache(binding, low, high)
            bind_output(binding, graph.logits, self._logits[low:high])
            if adapters:
                adapters.bind(binding, span)
            self._keep(key, binding)
        if adapters:
            adapters.bind_rows(binding, span, [names.get(slot) for slot in range(low, high)])
        return binding

    def _bind_cache(self, binding: Any, low: int, high: int) -> None:
        for tensor, array in zip(self._graph.cache, self.kv.arrays, strict=True):
            part = array[low:high]
            bind_input(binding, tensor.past, part)
            bind_output(binding, tensor.present, part)


class ConcatSteps(ProcessorSteps):
    """On a graph that gives back past and new together.

    Without ``takes_positions`` only rows of one length go together.
    """

    def __init__(self, graph: Graph, kv: SlotCache, vocab_size: int) -> None:
        """Raises OutOfMemoryError when the buffers cannot be allocated."""
        super().__init__(graph, kv)
        self.takes_positions = graph.position_ids is not None
        rows = max(len(kv.lengths), 2)
        context = kv.mask.shape[1]
        sizes = [rows * t.kv_heads * context * t.head_dim for t in graph.cache]
        try:
            # Not zeroed: pages that no step has reached take no memory.
            self._past, self._present = (
                [np.empty(size, t.dtype) for size, t in zip(sizes, graph.cache, strict=True)]
                for _ in range(2)
            )
        except MemoryError as error:
            raise OutOfMemoryError(
                f"no memory for the step buffers of {rows} slots x {context} tokens; "
                "ask for fewer slots or a smaller context"
            ) from error
        self._logits = np.zeros((rows, 1, vocab_size), graph.logits_dtype)
        # Which slots' tokens lie in the past buffers, with how many, at which state of the cache.
        self._live: tuple[list[int], list[int], int] | None = None

    def _run_prefill(self, binding: Any, slot: int, position: int, end: int) -> None:
        self._live = None
        self._gather([slot], [position])
        after = self._bind_cache(binding, 1, position, end)
        self._graph.run(binding)
        for array, new in zip(self.kv.arrays, after, strict=True):
            array[slot, :, position:end] = new[0, :, position:]

    def decode(self, rows: StepRows) -> Logits:
        """See ``Steps.decode``."""
        if self.takes_positions:
            return self._decode(rows)
        logits: dict[int, Logits] = {}
        by_length = sorted(rows, key=lambda row: row.position)
        for _, group in groupby(by_length, key=lambda row: row.position):
            part = sorted(group, key=lambda row: row.slot)
            wanted = [row.slot for row in part if row.logits]
            logits.update(zip(wanted, self._decode(part).copy(), strict=True))
        return np.stack([logits[row.slot] for row in rows if row.logits])

    def _decode(self, rows: StepRows) -> Logits:
        graph, kv = self._graph, self.kv
        slots, lengths = [row.slot for row in rows], [row.position for row in rows]
        targets, at, tokens = slots, lengths, [row.tokens[0] for row in rows]
        if len(rows) == 1 and self.pair_lone_rows:
            slots, lengths, tokens = [*slots, _NOBODY], [*lengths, lengths[0]], [*tokens, 0]
        count, longest = len(slots), max(lengths)
        if self._live != (slots, lengths, kv.changes):
            self._gather(slots, lengths)
        self._live = None
        ids = np.array(tokens, graph.index_dtype)[:, None]
        positions = np.array(lengths, graph.index_dtype)[:, None]
        mask = (np.arange(longest + 1) >= longest - positions).astype(graph.index_dtype)
        binding = graph.bind(ids, mask, positions)
        new = self._bind_cache(binding, count, longest, longest + 1)
        bind_output(binding, graph.logits, self._logits[:count])
        graph.run(binding)
        for array, tensor in zip(kv.arrays, new, strict=True):
            array[targets, :, at] = tensor[: len(rows), :, longest]
        for row in rows:
            kv.hold(row.slot, row.position + 1)
        self._past, self._present = self._present, self._past
        self._live = (slots, [length + 1 for length in lengths], kv.changes)
        picked = [i for i, row in enumerate(rows) if row.logits]
        logits: Logits = self._logits[picked, 0]
        return logits.astype(np.float32, copy=False)

    def _gather(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Lay the slots' tokens side by side in the past buffers, aligned at their ends."""
        longest = max(lengths)
        views = self._views(self._past, len(slots), longest)
        for array, past in zip(self.kv.arrays, views, strict=True):
            for row, slot, length in zip(past, slots, lengths, strict=True):
                if slot == _NOBODY:
                    row[:] = 0
                    continue
                row[:, : longest - length] = 0  # masked, but a NaN left there would spread
                row[:, longest - length :] = array[slot, :, :length]

    def _views(self, buffers: Sequence[Array], rows: int, length: int) -> list[Array]:
        """The start of each buffer as [rows, kv heads, length, head size]."""
        return [
            buffer[: rows * t.kv_heads * length * t.head_dim].reshape(
                rows, t.kv_heads, length, t.head_dim
            )
            for buffer, t in zip(buffers, self._graph.cache, strict=True)
        ]

    def _bind_cache(self, binding: Any, rows: int, past: int, present: int) -> list[Array]:
        """Bind past and present; the views of the present ones."""
        before = self._views(self._past, rows, past)
        after = self._views(self._present, rows, present)
        for tensor, old, new in zip(self._graph.cache, before, after, strict=True):
            bind_input(binding, tensor.past, old)
            bind_output(binding, tensor.present, new)
        return after
