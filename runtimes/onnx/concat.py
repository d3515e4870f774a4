"""Steps on a graph that gives back present = past + new for every layer (optimum's exporter).

Past and present are two buffers that take turns: what one step wrote is the next one's past, as
long as the same rows go on. Rows of several lengths are aligned at their ends, with masked zeros in
front and positions of their own; so distances between tokens are right, which sliding windows and
relative positions need. A graph that takes no positions may count them from the start, so it gets
rows of one length together. New keys and values are copied to the slot cache after every step.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from runtimes.errors import OutOfMemoryError
from runtimes.onnx.binding import bind_all_rows, bind_input, bind_output, bind_tokens, run
from runtimes.onnx.graph import Graph
from runtimes.onnx.kv import SlotCache
from runtimes.runner import Logits, StepRow

_NOBODY = -1  # the slot of a row that is thrown away


class ConcatSteps:
    """Does what ``InPlaceSteps`` does.

    Without ``takes_positions`` only rows of one length go together.
    """

    def __init__(self, graph: Graph, kv: SlotCache, vocab_size: int) -> None:
        """Raises OutOfMemoryError when the buffers cannot be allocated."""
        self.pair_lone_rows = False
        self.takes_positions = graph.position_ids is not None
        self._graph, self._kv = graph, kv
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

    def prefill(
        self, slot: int, position: int, tokens: Sequence[int], *, every: bool = False
    ) -> Logits:
        """See ``InPlaceSteps.prefill``."""
        graph, end = self._graph, position + len(tokens)
        self._live = None
        self._gather([slot], [position])
        # These arrays must outlive the run.
        ids = np.array([tokens], graph.index_dtype)
        mask = np.ones((1, end), graph.index_dtype)
        positions = np.arange(position, end, dtype=graph.index_dtype)[None]
        binding = bind_tokens(graph, ids, mask, positions)
        after = self._bind_cache(binding, 1, position, end)
        if every:
            bind_all_rows(binding, graph)
        binding.bind_output(graph.logits, "cpu")
        run(graph, binding)
        for array, new in zip(self._kv.arrays, after, strict=True):
            array[slot, :, position:end] = new[0, :, position:]
        self._kv.hold(slot, end)
        outputs = binding.get_outputs()
        logits: Logits = outputs[len(graph.cache)].numpy()[0].astype(np.float32, copy=False)
        return logits

    def decode(self, rows: Sequence[StepRow]) -> Logits:
        """See ``InPlaceSteps.decode``."""
        if self.takes_positions:
            return self._decode(rows)
        logits: dict[int, Logits] = {}
        by_length = sorted(rows, key=lambda row: row.position)
        for _, group in groupby(by_length, key=lambda row: row.position):
            part = sorted(group, key=lambda row: row.slot)
            wanted = [row.slot for row in part if row.logits]
            logits.update(zip(wanted, self._decode(part).copy(), strict=True))
        return np.stack([logits[row.slot] for row in rows if row.logits])

    def close(self) -> None:
        """Drop the buffers."""
        self._past.clear()
        self._present.clear()

    def _decode(self, rows: Sequence[StepRow]) -> Logits:
        graph, kv = self._graph, self._kv
        slots, lengths = [row.slot for row in rows], [row.position for row in rows]
        tokens = [row.tokens[0] for row in rows]
        if len(rows) == 1 and self.pair_lone_rows:
            slots, lengths, tokens = [*slots, _NOBODY], [*lengths, lengths[0]], [*tokens, 0]
        count, longest = len(slots), max(lengths)
        if self._live != (slots, lengths, kv.changes):
            self._gather(slots, lengths)
        self._live = None
        mask = np.zeros((count, longest + 1), graph.index_dtype)
        for i, length in enumerate(lengths):
            mask[i, longest - length :] = 1
        ids = np.array(tokens, graph.index_dtype)[:, None]
        positions = np.array(lengths, graph.index_dtype)[:, None]
        binding = bind_tokens(graph, ids, mask, positions)
        new = self._bind_cache(binding, count, longest, longest + 1)
        bind_output(binding, graph.logits, self._logits[:count])
        run(graph, binding)
        targets, at = [row.slot for row in rows], [row.position for row in rows]
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
        for array, past in zip(self._kv.arrays, views, strict=True):
            for row, slot, length in zip(past, slots, lengths, strict=True):
                if slot == _NOBODY:
                    row[:] = 0
                    continue
                row[:, : longest - length] = 0  # masked, but a NaN left there would spread
                row[:, longest - length :] = array[slot, :, :length]

    def _views(
        self, buffers: Sequence[npt.NDArray[Any]], rows: int, length: int
    ) -> list[npt.NDArray[Any]]:
        """The start of each buffer as [rows, kv heads, length, head size]."""
        return [
            buffer[: rows * t.kv_heads * length * t.head_dim].reshape(
                rows, t.kv_heads, length, t.head_dim
            )
            for buffer, t in zip(buffers, self._graph.cache, strict=True)
        ]

    def _bind_cache(
        self, binding: Any, rows: int, past: int, present: int
    ) -> list[npt.NDArray[Any]]:
        """Bind past and present; the views of the present ones."""
        before = self._views(self._past, rows, past)
        after = self._views(self._present, rows, present)
        for tensor, old, new in zip(self._graph.cache, before, after, strict=True):
            bind_input(binding, tensor.past, old)
            bind_output(binding, tensor.present, new)
        return after
