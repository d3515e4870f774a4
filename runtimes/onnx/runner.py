"""ONNX Runtime as a runner: ``steps`` knows how each kind of graph takes its past.

A folder may have two graphs (``graph_file.WIDE``) over one KV cache. Passes of few tokens are bound
by the bytes of the weights and run on the one with the smaller weights; passes of many tokens are
bound by arithmetic and run on the wide one.
"""

import logging
import math
import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from runtimes.errors import ModelError, RequestError
from runtimes.machine.processes import give_back
from runtimes.models.modelfile import ModelFile
from runtimes.onnx.adapters import OnnxAdapters
from runtimes.onnx.device_steps import DeviceSteps
from runtimes.onnx.graph import load_graph, load_wide
from runtimes.onnx.kv import SlotCache
from runtimes.onnx.lora import Product
from runtimes.onnx.steps import ConcatSteps, InPlaceSteps, Steps, singly
from runtimes.onnx.tokenizer import OnnxTokenizer
from runtimes.runner import Capabilities, Logits, StepLogits, StepRow, StepRows, require_full_logits
from runtimes.settings import RunnerSettings, outputs_at_once

# Numbers of rows, on both sides of what kernels take at once. Unused slots take no memory.
_COUNTS = (2, 3, 4, 5, 8, 9, 15, 16)
_MANY = 16  # tokens of a pass that is timed on both graphs beside one of a single token
_TRIALS = 5  # of each such pass, the fastest of which counts

log = logging.getLogger(__name__)


class OnnxRunner:
    """Implements ``runtimes.runner.Runner``."""

    graphs_reused = None  # not known: ONNX Runtime plans a graph once, when it is loaded

    def __init__(self, model_file: ModelFile, settings: RunnerSettings) -> None:
        """Open the folder; raises ModelError, OutOfMemoryError or RuntimeMissingError."""
        graph = load_graph(model_file, settings)
        slots, context = max(settings.slots, 1), settings.context or model_file.context_length
        self.tokenizer = OnnxTokenizer(model_file.path)
        self._steps: Steps
        self._wide: Steps | None = None
        self._apart = False  # each row of a step is given to ``steps`` by itself
        lone_rows, place = False, None
        if graph.target:
            self._steps = there = DeviceSteps(graph, graph.target, model_file, settings, context)
            lone_rows, place = not there.kv.together, there.kv.mover.placed
        else:
            rows = max(slots, max(_COUNTS)) if settings.reproducible and graph.in_place else slots
            kind = InPlaceSteps if graph.in_place else ConcatSteps
            arrays = SlotCache(graph, rows, context)
            self._steps = kind(graph, arrays, model_file.vocab_size)
            if wide := load_wide(model_file, settings, graph):
                self._wide = InPlaceSteps(wide, arrays, model_file.vocab_size)
        self.kv = self._steps.kv
        every_logits = self._gives_every()
        # The least tokens of a row, and the least rows of a token each, that the wide graph gets.
        # With the latter, a row's answer depends on how many companions it has.
        self._wide_tokens, self._wide_rows = 2.0, math.inf
        if self._wide and not settings.reproducible:
            self._wide_tokens = self._wide_rows = self._crossing(self._wide)
            log.info("passes of %d tokens and more run on the wide graph", self._wide_rows)
        if settings.reproducible and not graph.target:
            # Rows of the other kind of graph are aligned at their ends: shorter ones are padded.
            together = graph.in_place and self._numbers_do_not_matter()
            self._steps.pair_lone_rows = together
            self._apart = lone_rows = not together
        elif not graph.target:
            self._steps.pair_lone_rows = slots > 1 and self._alone_differs()
        self.capabilities = Capabilities(
            runtime="onnx",
            slots=slots,
            context=context,
            batch=max(settings.batch, slots),
            vocab_size=model_file.vocab_size,
            mixed_batch=False,
            most_logits=outputs_at_once(settings, slots),
            kv_bytes_per_token=self.kv.bytes_per_token,
            every_logits=every_logits,
            lone_rows=lone_rows,
            gpu_layers=model_file.layers if graph.target else 0,  # a graph runs there as a whole
            top_k_logits=self._steps.likeliest,
        )
        # Rounding with an adapter would depend on the number of rows in other ways.
        self.adapters: OnnxAdapters | None = None
        if graph.in_place and not settings.reproducible:
            steps, reopen = self._steps, partial(_reopen, self._steps, model_file, settings)
            steps.adapters = self.adapters = OnnxAdapters(model_file, reopen, steps.forget, place)

    def execute(self, rows: StepRows) -> StepLogits:
        """Run one step; see ``Runner.execute``. Prefill rows run alone, decode rows together."""
        try:
            for row in rows:
                self._check(row.tokens)
            if all(len(row.tokens) == 1 for row in rows):
                return self._one_by_one(rows) if self._apart else self._run(rows)
            # An array of no rows, in case that none is wanted.
            found = [np.empty((0, self.capabilities.vocab_size), np.float32)]
            for row in rows:
                logits = self._prefill(row)
                found.append(logits[len(logits) - row.logits :])
            return np.concatenate(found)
        except Exception:
            for row in rows:
                self.kv.trim(row.slot, row.position)
            raise

    def score(self, tokens: Sequence[int], first: int = 0) -> Logits:
        """See ``Runner.score``.

        A graph that gives the last position's only is fed one token at a time.
        """
        most = self.capabilities.batch
        if len(tokens) > self.capabilities.context:
            raise ModelError(f"{len(tokens)} tokens do not fit the context")
        self._check(tokens)
        self.kv.trim(0, 0)
        begin, parts = 0, list[Logits]()
        if self._wide:  # as in use: a prompt on this graph, an answer behind it on the other
            begin = first
            for at in range(0, first, most):
                self._prefill(StepRow(0, at, tokens[at : min(at + most, first)], 0))
        for at in range(begin, len(tokens), most):
            part = tokens[at : at + most]
            parts.append(self._prefill(StepRow(0, at, part, len(part)), narrow=True).copy())
        self.kv.trim(0, 0)
        return np.concatenate(parts)[first - begin :]

    def _prefill(self, row: StepRow, *, narrow: bool = False) -> Logits:
        """The logits after at least as many of the last tokens as the row wants."""
        least = math.inf if narrow else self._wide_tokens
        steps = self._steps_for((row,), len(row.tokens), least)
        logits = steps.prefill(row)
        if len(logits) >= row.logits:
            return logits
        self.kv.trim(row.slot, row.position)
        return self._one_by_one(singly(row, len(row.tokens)))

    def _one_by_one(self, rows: StepRows) -> Logits:
        return np.concatenate([self._decode((row,)) for row in rows])

    def _decode(self, rows: StepRows) -> Logits:
        """A copy of the logits."""
        return require_full_logits(self._run(rows)).copy()

    def _run(self, rows: StepRows) -> StepLogits:
        """Decode rows of a token each together."""
        return self._steps_for(rows, len(rows), self._wide_rows).decode(rows)

    def _steps_for(self, rows: StepRows, count: int, least: float) -> Steps:
        """The graph for a pass of ``count`` tokens; adapters are beside the first one alone."""
        wide = self._wide if count >= least else None
        return wide if wide and not any(row.adapter for row in rows) else self._steps

    def embed(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """See ``Runner.embed``: graphs give logits and no hidden states."""
        raise RequestError("an ONNX graph gives no embeddings: serve the model's GGUF file")

    def close(self) -> None:
        """Drop the session, its bindings and the cache. A second call does nothing."""
        self._steps = self._wide = None  # type: ignore[assignment]
        self.adapters = None
        self.kv.close()

    def _check(self, tokens: Sequence[int]) -> None:
        """For an id that its table has not, a graph would read whatever lies behind it."""
        for token in (min(tokens), max(tokens)):
            if not 0 <= token < self.capabilities.vocab_size:
                raise ModelError(f"the model has no token {token}")

    def _gives_every(self) -> bool:
        """Whether the graph gives the logits after each of several tokens at once."""
        logits = self._steps.prefill(StepRow(0, 0, (1, 1), 2))
        self.kv.trim(0, 0)
        return len(logits) == 2

    def _crossing(self, wide: Steps) -> int:
        """The least tokens of a pass that are faster on the wide graph, each with its logits.

        Seconds by tokens are taken for a straight line from a pass of one to a pass of ``_MANY``.
        Passes of few tokens differ too little between the graphs to be compared one by one. Where
        the wide graph leads nowhere, it gets passes of more tokens than were timed.
        """
        many = min(_MANY, self.kv.context)

        def fastest(steps: Steps, count: int) -> float:
            # One after the other, as they run in use: a graph's threads are slower to begin with
            # when the other's have just run.
            taken = []
            for _ in range(_TRIALS):
                begin = time.perf_counter()
                steps.prefill(StepRow(0, 0, (1,) * count, count))
                taken.append(time.perf_counter() - begin)
                self.kv.trim(0, 0)
            return min(taken)

        # Seconds of the narrow graph at one; none where the wide one is faster there too.
        lead = max(0.0, fastest(wide, 1) - fastest(self._steps, 1))
        gain = fastest(self._steps, many) - fastest(wide, many)  # of the wide graph at many
        if gain <= 0:
            return 2 * _MANY
        return 2 + int((many - 1) * lead / (lead + gain))

    def _alone_differs(self) -> bool:
        """Whether a row's logits depend on having a companion at all.

        Some kernels (4 bits on AVX2, for one) add up a single row in another order than several,
        and int8 activations turn that last bit into differences that can be seen. Where several
        slots are asked for, a lone row is then run beside an unused one; with one slot it is not.
        """
        alone = self._first_tokens(1)
        self._steps.pair_lone_rows = True
        return not np.array_equal(alone, self._first_tokens(1))

    def _numbers_do_not_matter(self) -> bool:
        """Whether a row's logits are the same among any number of rows, of two or more."""
        most = self._first_tokens(max(_COUNTS))
        return all(np.array_equal(self._first_tokens(n), most[:n]) for n in _COUNTS)

    def _first_tokens(self, count: int) -> Logits:
        """Logits of so many rows of a token each."""
        logits = self._decode([StepRow(slot, 0, (slot + 1,), 1) for slot in range(count)])
        for slot in range(count):
            self.kv.trim(slot, 0)
        return logits


def _reopen(
    steps: Steps, model: ModelFile, settings: RunnerSettings, adapted: list[Product]
) -> None:
    """Go on with the graph that has room for adapters beside these products."""
    steps.use(None)  # its weights are not in memory twice
    give_back()
    steps.use(load_graph(model, settings, adapted))
