"""Steps on ONNX Runtime over a pre-allocated slot cache.

Every layer's keys and values live in one array [slots, kv heads, context, head size], bound to the
graph as past and as present at once, so that ``GroupQueryAttention`` writes new tokens in place and
nothing is copied. A prompt goes in for one slot at a time (the operator refuses several rows with a
past and more than one new token); decode runs a contiguous range of slots together.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from runtimes.errors import ModelError, OutOfMemoryError
from runtimes.modelfile import ModelFile
from runtimes.onnx.graph import Graph, load_graph
from runtimes.onnx.kv import SlotCache, kind_of
from runtimes.onnx.tokenizer import OnnxTokenizer
from runtimes.runner import (
    Capabilities,
    Logits,
    StepPlan,
    StepRow,
    consecutive_runs,
)
from runtimes.settings import RunnerSettings

logger = logging.getLogger(__name__)


class OnnxRunner:
    """Implements ``runtimes.runner.Runner``."""

    def __init__(
        self, graph: Graph, kv: SlotCache, tokenizer: OnnxTokenizer, capabilities: Capabilities
    ) -> None:
        self._graph = graph
        self._tokenizer = tokenizer
        self._capabilities = capabilities
        slots = capabilities.slots
        self._kv = kv
        self._ids = np.zeros((slots, 1), graph.index_dtype)
        self._positions = np.zeros((slots, 1), graph.index_dtype)
        self._logits = np.zeros((slots, 1, capabilities.vocab_size), graph.logits_dtype)
        self._decode_bindings: dict[tuple[int, int], Any] = {}
        self._pair_lone_rows = False
        self._pair_lone_rows = slots > 1 and self._alone_differs()

    @classmethod
    def open(cls, model_file: ModelFile, settings: RunnerSettings) -> OnnxRunner:
        """Open the folder; raises ModelError, OutOfMemoryError or RuntimeMissingError."""
        graph = load_graph(model_file, settings)
        slots, context = max(settings.slots, 1), settings.context or model_file.context_length
        kv = SlotCache(graph, slots, context, kind_of(graph, model_file.vocab_size))
        capabilities = Capabilities(
            runtime="onnx",
            slots=slots,
            context=context,
            batch=max(settings.batch, slots),
            vocab_size=model_file.vocab_size,
            mixed_batch=False,
            kv_bytes_per_token=kv.kind.bytes_per_token,
        )
        return cls(graph, kv, OnnxTokenizer(model_file.path), capabilities)

    @property
    def capabilities(self) -> Capabilities:
        """Fixed once loaded."""
        return self._capabilities

    @property
    def tokenizer(self) -> OnnxTokenizer:
        """The tokenizer.json beside the graph."""
        return self._tokenizer

    @property
    def graphs_reused(self) -> int | None:
        """Not known: ONNX Runtime plans a graph once, when it is loaded."""
        return None

    def execute(self, plan: StepPlan) -> Logits:
        """Run one step; see ``Runner.execute``. Prefill rows run alone, decode rows together."""
        try:
            return self._execute(plan.rows)
        except Exception:
            for row in plan.rows:
                self._kv.trim(row.slot, row.position)
            raise

    def _execute(self, rows: Sequence[StepRow]) -> Logits:
        if all(len(row.tokens) == 1 for row in rows):
            runs = consecutive_runs(rows, full=self._kv.full())
            if len(runs) == 1:
                return self._decode(runs[0])
            return np.concatenate([self._decode(run).copy() for run in runs])
        wanted = []
        for row in rows:
            logits = self._prefill(row.slot, row.position, row.tokens)
            if row.wants_logits:
                wanted.append(logits[-1:])
        if not wanted:
            return np.empty((0, self._capabilities.vocab_size), np.float32)
        return np.concatenate(wanted)

    def trim(self, slot: int, length: int) -> None:
        """Forget what the slot holds from position ``length`` on."""
        self._kv.trim(slot, length)

    def copy(self, source: int, target: int, length: int) -> None:
        """Make ``target`` hold the first ``length`` tokens of ``source``."""
        self._kv.copy(source, target, length)

    def save(self, slot: int, length: int) -> bytes:
        """The first ``length`` tokens' keys and values."""
        return self._kv.save(slot, length)

    def load(self, slot: int, data: bytes) -> None:
        """Make the slot hold what ``save`` gave; raises ModelError for anything else."""
        self._kv.load(slot, data)

    def shift(self, slot: int, keep: int, discard: int) -> None:
        """Not here: raises ModelError."""
        self._kv.shift(slot, keep, discard)

    def score(self, tokens: Sequence[int]) -> Logits:
        """Logits after every position: [len(tokens), vocab_size].

        A graph that keeps the last position only is fed one token at a time.
        """
        if len(tokens) > self._capabilities.context:
            raise ModelError(f"{len(tokens)} tokens do not fit the context")
        self.trim(0, 0)
        logits = self._prefill(0, 0, tokens).copy()
        if len(logits) != len(tokens):
            self.trim(0, 0)
            steps = (StepRow(0, i, (token,), True) for i, token in enumerate(tokens))
            logits = np.concatenate([self._decode((row,)).copy() for row in steps])
        self.trim(0, 0)
        return logits

    def close(self) -> None:
        """Drop the session, its bindings and the cache."""
        self._decode_bindings.clear()
        self._kv.arrays.clear()
        self._graph = None  # type: ignore[assignment]

    def _prefill(self, slot: int, position: int, tokens: Sequence[int]) -> Logits:
        """One slot's tokens behind the ``position`` it holds; logits [1 or len(tokens), vocab]."""
        self._check(tokens)
        graph, end = self._graph, position + len(tokens)
        binding = graph.session.io_binding()
        ids = np.array([tokens], graph.index_dtype)
        mask = np.ones((1, end), graph.index_dtype)
        _bind_input(binding, graph.input_ids, ids)
        _bind_input(binding, graph.attention_mask, mask)
        positions = np.arange(position, end, dtype=graph.index_dtype)[None]
        if graph.position_ids:
            _bind_input(binding, graph.position_ids, positions)
        # Bound first, it is the first output; a full graph's shape is known only afterwards.
        binding.bind_output(graph.logits, "cpu")
        self._bind_cache(binding, slot, slot + 1)
        self._run(binding)
        self._kv.hold(slot, end)
        logits: Logits = binding.get_outputs()[0].numpy()[0].astype(np.float32, copy=False)
        return logits

    def _decode(self, rows: Sequence[StepRow]) -> Logits:
        """One token for each row. A hole in the range of slots is filled with a row that is thrown
        away: it writes one position past what its slot holds, where the next real token will go.
        """
        kv, slots = self._kv, [row.slot for row in rows]
        low, high = self._range(slots[0], slots[-1] + 1)
        tokens = [row.tokens[0] for row in rows]
        self._check(tokens)
        self._ids[slots, 0] = tokens
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
            self._run(self._decode_binding(low, high))
        finally:
            for slot in fillers:
                kv.mask[slot, kv.lengths[slot]] = 0
        for slot, position in zip(slots, positions, strict=True):
            kv.lengths[slot] = position + 1
        picked = [row.slot for row in rows if row.wants_logits]
        whole = bool(picked) and picked[-1] - picked[0] + 1 == len(picked)
        at = slice(picked[0], picked[-1] + 1) if whole else picked  # a slice copies nothing
        logits: Logits = self._logits[at, 0]
        return logits.astype(np.float32, copy=False)

    def _check(self, tokens: Sequence[int]) -> None:
        """For an id that its table has not, a graph would read whatever lies behind it."""
        if min(tokens) < 0 or max(tokens) >= self._capabilities.vocab_size:
            wrong = min(tokens) if min(tokens) < 0 else max(tokens)
            raise ModelError(f"the model has no token {wrong}")

    def _range(self, low: int, high: int) -> tuple[int, int]:
        """The slots to run for [low, high): a lone one beside a neighbour that has room."""
        if high - low == 1 and self._pair_lone_rows:
            full = self._kv.full()
            if high < len(self._ids) and high not in full:
                return low, high + 1
            if low > 0 and low - 1 not in full:
                return low - 1, high
        return low, high

    def _alone_differs(self) -> bool:
        """Whether a row's logits depend on having a companion at all.

        Some kernels (4 bits on AVX2, for one) add up a single row in another order than several,
        and int8 activations turn that last bit into differences that can be seen. Where several
        slots are asked for, a lone row is then run beside an unused one; with one slot it is not.
        """
        row = (StepRow(0, 0, (1,), True),)
        alone = self._decode(row).copy()
        self.trim(0, 0)
        self._pair_lone_rows = True
        paired = self._decode(row)
        self.trim(0, 0)
        return not np.array_equal(alone, paired)

    def _decode_binding(self, low: int, high: int) -> Any:
        """The binding for slots [low, high), made once: shapes and addresses never change."""
        binding = self._decode_bindings.get((low, high))
        if binding is None:
            graph = self._graph
            binding = graph.session.io_binding()
            _bind_input(binding, graph.input_ids, self._ids[low:high])
            _bind_input(binding, graph.attention_mask, self._kv.mask[low:high])
            if graph.position_ids:
                _bind_input(binding, graph.position_ids, self._positions[low:high])
            self._bind_cache(binding, low, high)
            _bind_output(binding, graph.logits, self._logits[low:high])
            self._decode_bindings[low, high] = binding
        return binding

    def _bind_cache(self, binding: Any, low: int, high: int) -> None:
        for tensor, array in zip(self._graph.cache, self._kv.arrays, strict=True):
            part = array[low:high]
            _bind_input(binding, tensor.past, part)
            _bind_output(binding, tensor.present, part)

    def _run(self, binding: Any) -> None:
        try:
            self._graph.session.run_with_iobinding(binding)
        except Exception as error:  # onnxruntime's exceptions share no base class but Exception
            text = str(error).strip()
            if "allocate" in text.lower() or "memory" in text.lower():
                raise OutOfMemoryError(f"ONNX Runtime ran out of memory: {text}") from error
            raise ModelError(f"ONNX Runtime failed in a step: {text}") from error


def _bind_input(binding: Any, name: str, array: npt.NDArray[Any]) -> None:
    binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def _bind_output(binding: Any, name: str, array: npt.NDArray[Any]) -> None:
    binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
