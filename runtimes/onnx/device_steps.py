"""Steps on a graph whose keys and values are on a device, written in place there.

A step copies token ids, mask and positions to the device, and the rows of logits that were asked
for from it, or their largest, nothing else. A prompt goes in for one slot at a time. Rows that
decode go together where the device attends to each row for as long as it is; else each is a pass of
its own.
"""

import logging
import struct
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from runtimes.errors import ModelError, OutOfMemoryError
from runtimes.models.modelfile import ModelFile
from runtimes.onnx.device import Target, open_session, zeros
from runtimes.onnx.graph import Array, CacheTensor, Graph, bind_input, place_of, run
from runtimes.onnx.graph_file import (
    FLOATS,
    INT32,
    INT64,
    MICROSOFT,
    any_shape,
    constant,
    integer,
    model,
    node,
    value_info,
)
from runtimes.onnx.kv import Slots
from runtimes.onnx.steps import Steps, singly
from runtimes.runner import (
    Logits,
    SavedKv,
    StepLogits,
    StepRow,
    StepRows,
    TopKLogits,
    consecutive_runs,
    joined,
    require_full_logits,
)
from runtimes.settings import RunnerSettings

log = logging.getLogger(__name__)

_CPU = ("cpu",)  # the processor's memory, as ONNX Runtime names it


def _whole(name: str, *values: int) -> bytes:
    """Whole numbers of a graph."""
    return constant(name, INT64, len(values), struct.pack(f"<{len(values)}q", *values))


# Small graphs that move keys, values, logits and adapters' matrices on a device: ONNX Runtime's
# Python package has no other way to allocate there, or to copy a tensor.


def copy(tensors: int, nbytes: int) -> bytes:
    """``to.N`` has the first ``tokens`` [1] of ``from.N`` [..., context, size]."""
    element, names = FLOATS[nbytes], range(tensors)
    return model(
        [node("Slice", (f"from.{n}", "zero", "tokens", "axis"), f"to.{n}") for n in names],
        [value_info("tokens", INT64, 1), *(any_shape(f"from.{n}", element) for n in names)],
        [any_shape(f"to.{n}", element) for n in names],
        [_whole("zero", 0), _whole("axis", -2)],
    )


def picked(vocab_size: int, nbytes: int, likeliest: int = 0) -> bytes:
    """``picked`` is those of ``logits`` [b, n, vocab] that ``rows`` [m] counts, from 0 to b * n.

    With ``likeliest`` also so many of each row's largest: ``values`` and ``ids``.
    """
    element, constants = FLOATS[nbytes], [_whole("flat", -1, vocab_size)]
    nodes = [
        node("Reshape", ("logits", "flat"), "all"),
        node("Gather", ("all", "rows"), "picked"),
    ]
    outputs = [any_shape("picked", element)]
    if likeliest:
        nodes.append(node("TopK", ("picked", "count"), ("values", "ids")))
        outputs = [any_shape("values", element), any_shape("ids", INT64)]
        constants.append(_whole("count", likeliest))
    inputs = [any_shape("logits", element), any_shape("rows", INT64)]
    return model(nodes, inputs, outputs, constants)


def attention(heads: int, kv_heads: int, nbytes: int) -> bytes:
    """``mixed`` [rows, n, heads * size] is what n tokens of each row take from one another, and
    from what came before in ``past.key`` and ``past.value`` [rows, kv heads, context, size]."""
    element, new = FLOATS[nbytes], ("query", "key", "value")
    past, present = ("past.key", "past.value"), ("present.key", "present.value")
    attributes = integer("num_heads", heads) + integer("kv_num_heads", kv_heads)
    inputs, outputs = (*new, *past, "before", "all"), ("mixed", *present)
    return model(
        [node("GroupQueryAttention", inputs, outputs, attributes, MICROSOFT)],
        [
            *(any_shape(name, element) for name in new),
            *(any_shape(name, element) for name in past),
            any_shape("before", INT32),
            value_info("all", INT32, 1),
        ],
        [any_shape("mixed", element), *(any_shape(name, element) for name in present)],
    )


# Tensors on a device: how they are allocated, copied, and bound to a graph, whole or in part.
LIKELIEST = 64  # tokens of a row, where not all are wanted; as many as llama.cpp is asked for


Tensor = Any  # ONNX Runtime's value, or the place of a part of one; see ``_bind``


def _bind(binding: Any, side: str, name: str, tensor: Tensor) -> None:
    """Have a graph read ("input") or write ("output") an array, a value of ONNX Runtime, or what is
    at a place: a memory, its number, type, shape and address; a memory alone is where a new one
    comes to lie."""
    if isinstance(tensor, np.ndarray):
        tensor = place_of(tensor)
    if isinstance(tensor, tuple):
        getattr(binding, f"bind_{side}")(name, *tensor)
    else:
        getattr(binding, f"bind_ortvalue_{side}")(name, tensor)


def _computed(session: Any, given: Mapping[str, Tensor], made: Mapping[str, Tensor]) -> list[Any]:
    """Run a small graph on tensors. Its results come to lie in tensors that are there, or in new
    ones in the memory that is named."""
    binding = session.io_binding()
    for name, tensor in given.items():
        _bind(binding, "input", name, tensor)
    for name, tensor in made.items():
        _bind(binding, "output", name, tensor)
    run(session, binding)
    found: list[Any] = binding.get_outputs()
    return found


class Mover:
    """Allocates and copies tensors where a graph runs."""

    def __init__(self, graph: Graph, target: Target, vocab_size: int) -> None:
        """Raises ModelError."""
        import onnxruntime as ort

        self.target = target
        kinds = {tensor.dtype for tensor in graph.cache}
        if len(kinds) != 1:
            raise ModelError("keys and values of several types cannot be on a device")
        nbytes = np.dtype(*kinds).itemsize
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1  # all that these graphs do is done on the device
        opened = partial(open_session, options=options, target=target)
        self._zeros = opened(zeros(nbytes))
        self._copy = opened(copy(len(graph.cache), nbytes))
        self._copy_one = opened(copy(1, nbytes))
        nbytes = np.dtype(graph.logits_dtype).itemsize
        self._picked = opened(picked(vocab_size, nbytes))
        self.finds_likeliest = vocab_size > LIKELIEST
        if self.finds_likeliest:
            self._likeliest = opened(picked(vocab_size, nbytes, LIKELIEST))

    def zeros(self, shape: tuple[int, ...]) -> Tensor:
        """A tensor of zeros for keys or values. Raises OutOfMemoryError."""
        given = {"shape": np.array(shape, np.int64)}
        return _computed(self._zeros, given, {"made": self.target.memory})[0]

    def placed(self, matrix: Array) -> Any:
        """A copy of a matrix, with elements as keys and values have. Raises OutOfMemoryError."""
        given = {"from.0": matrix, "tokens": np.array([len(matrix)])}
        return _computed(self._copy_one, given, {"to.0": self.target.memory})[0]

    def copy(self, source: Sequence[Tensor], target: Sequence[Tensor], tokens: int) -> list[Any]:
        """Copy the first tokens of one slot's arrays or tensors: into tensors, or into new ones in
        the memory that is named."""
        given = {"tokens": np.array([tokens])}
        given |= {f"from.{n}": value for n, value in enumerate(source)}
        return _computed(self._copy, given, {f"to.{n}": place for n, place in enumerate(target)})

    def picked(self, logits: Any, rows: Sequence[int]) -> Logits:
        """Rows of logits [b, n, vocab], counted from 0 to b * n, as an array [rows, vocab]."""
        found = self._picking(self._picked, logits, rows, "picked")
        values: Logits = found[0].astype(np.float32, copy=False)
        return values

    def likeliest(self, logits: Any, rows: Sequence[int]) -> TopKLogits:
        """Fetch the largest logits of ``rows`` only."""
        values, ids = self._picking(self._likeliest, logits, rows, "values", "ids")
        return TopKLogits(ids.astype(np.int32), values.astype(np.float32, copy=False))

    @staticmethod
    def _picking(session: Any, logits: Any, rows: Sequence[int], *names: str) -> list[Any]:
        given = {"logits": logits, "rows": np.array(rows)}
        return [value.numpy() for value in _computed(session, given, dict.fromkeys(names, _CPU))]


# The slot cache on a device.


class DeviceCache(Slots):
    """Keys and values on a device, in places of [kv heads, context, head size] a layer.

    ``together`` they are one tensor a layer, a place for each slot in order and one more to swap
    by. Else each place has tensors of its own, and ``place`` says where a slot's tokens are: not
    every device can be given a part of a tensor.
    """

    def __init__(
        self, graph: Graph, mover: Mover, slots: int, context: int, *, together: bool
    ) -> None:
        """Raises OutOfMemoryError when the cache cannot be allocated, ModelError when the device
        lacks the cache's type."""
        super().__init__(graph, slots, context)
        self.mover, self.together = mover, together
        # What fails for one token is not for lack of room.
        mover.zeros((1, self._cache[0].kv_heads, 1, self._cache[0].head_dim))
        rows, times = (slots + 1, 1) if together else (1, slots)
        shapes = [self._shape(tensor, rows) for tensor in self._cache]
        try:
            self._there = [[mover.zeros(shape) for shape in shapes] for _ in range(times)]
        except ModelError as error:  # a device says in words of its own that it has no room
            raise OutOfMemoryError(
                f"no room on the device for the cache of {slots} slots x {context} tokens"
                f" ({error}); ask for fewer slots or a smaller context"
            ) from error
        self.place = list(range(slots))

    def _shape(self, tensor: CacheTensor, rows: int = 1) -> tuple[int, int, int, int]:
        return rows, tensor.kv_heads, self.context, tensor.head_dim

    def places(self, low: int, high: int) -> list[Tensor]:
        """Each layer's keys and values in these places; of one place only if not ``together``."""
        if not self.together:
            return self._there[low]
        return [
            (
                *self.mover.target.memory,
                tensor.dtype,
                self._shape(tensor, high - low),
                whole.data_ptr() + low * self.context * tensor.nbytes,
            )
            for tensor, whole in zip(self._cache, self._there[0], strict=True)
        ]

    def _values(self, slot: int) -> list[Tensor]:
        place = self.place[slot]
        return self.places(place, place + 1)

    def _copy(self, source: int, target: int, length: int) -> None:
        if source != target:
            self.mover.copy(self._values(source), self._values(target), self.context)

    def swap(self, first: int, second: int) -> None:
        """See ``KvSlots.swap``; nothing is copied where places need no order."""
        lengths = self.lengths
        lengths[first], lengths[second] = lengths[second], lengths[first]
        if not self.together:
            self.place[first], self.place[second] = self.place[second], self.place[first]
            return
        spare = self.places(len(lengths), len(lengths) + 1)
        one, other = self._values(first), self._values(second)
        for source, target in ((one, spare), (other, one), (spare, other)):
            self.mover.copy(source, target, self.context)

    def save(self, slot: int) -> bytes:
        """See ``Slots.save``; the same bytes as the processor's."""
        length, values = self.lengths[slot], self._values(slot)
        rows = self.mover.copy(values, [_CPU] * len(values), length) if length else []
        return b"".join(row.numpy().tobytes() for row in rows)

    def _load(self, slot: int, data: SavedKv, length: int) -> None:
        rows = [np.zeros(self._shape(tensor), tensor.dtype) for tensor in self._cache]
        self._fill((row[0, :, :length] for row in rows), data)
        self.mover.copy(rows, self._values(slot), self.context)

    def close(self) -> None:
        """See ``Slots.close``."""
        self._there.clear()


class DeviceSteps(Steps):
    """On a graph that writes in place."""

    kv: DeviceCache

    def __init__(
        self, graph: Graph, target: Target, model: ModelFile, settings: RunnerSettings, context: int
    ) -> None:
        """As far as the graph's device computes right. Raises OutOfMemoryError or ModelError."""
        slots = max(settings.slots, 1)
        mover = Mover(graph, target, model.vocab_size)
        dtype = graph.cache[0].dtype
        together = target.provider.addresses and slots > 1 and not settings.reproducible
        if together and not rows_are_right(target, model, dtype):
            log.warning(
                "%s attends to rows wrongly that decode together: they go apart", target.name
            )
            together = False
        super().__init__(graph, DeviceCache(graph, mover, slots, context, together=together))
        self._vocab_size = model.vocab_size
        self._whole_prompts = prompts_are_right(target, model, dtype)
        if not self._whole_prompts:
            text = "%s computes the attention of prompts wrongly: they go in token by token: slow"
            log.warning(text, target.name)
        self.likeliest = settings.device_sampling and mover.finds_likeliest

    def prefill(self, row: StepRow) -> Logits:
        """See ``Steps.prefill``; no more logits than are wanted."""
        wanted = row.logits
        if not self._whole_prompts:
            found = [self._decode((one,), few=False) for one in singly(row, wanted)]
            return require_full_logits(joined(found))
        graph, kv = self._graph, self.kv
        place, first = kv.place[row.slot], np.array([-wanted])
        # Not kept: its logits may be many.
        binding = self._bound(place, place + 1, logits=bool(wanted))
        if wanted > 1 and graph.logits_from:
            bind_input(binding, graph.logits_from, first)
        self._run(binding, [(row.position, row.tokens)], [row.adapter])
        kv.hold(row.slot, row.position + len(row.tokens))
        if not wanted:
            return self._nothing()
        logits = binding.get_outputs()[0]
        given = logits.shape()[1]
        return kv.mover.picked(logits, range(max(given - wanted, 0), given))

    def decode(self, rows: StepRows) -> StepLogits:
        """See ``Steps.decode``."""
        together = self.kv.together
        passes = consecutive_runs(rows, full=self.kv.full()) if together else [[r] for r in rows]
        asked = [row.top_k_needed for row in rows if row.logits]
        # Less than the whole width: a list that is cut among equal logits is cut below them.
        few = self.likeliest and bool(asked) and all(0 < most < LIKELIEST for most in asked)
        return joined([self._decode(part, few) for part in passes])

    def _decode(self, rows: StepRows, few: bool) -> StepLogits:
        """A pass for slots that lie side by side, or for one slot."""
        kv, slots = self.kv, range(rows[0].slot, rows[-1].slot + 1)
        # Rows that are thrown away write one position past what their slots hold, where the next
        # real token will go.
        texts: dict[int, tuple[int, Sequence[int]]] = {s: (kv.lengths[s], (0,)) for s in slots}
        texts.update((row.slot, (row.position, row.tokens)) for row in rows)
        wanted, low = [row.slot - slots[0] for row in rows if row.logits], kv.place[slots[0]]
        key = low, low + len(slots), bool(wanted)
        binding = self._bindings.get(key) or self._keep(key, self._bound(*key))
        adapters = {row.slot: row.adapter for row in rows}
        self._run(binding, list(texts.values()), [adapters.get(slot) for slot in slots])
        for row in rows:
            kv.hold(row.slot, row.position + 1)
        if not wanted:
            return self._nothing()
        logits = binding.get_outputs()[0]
        return kv.mover.likeliest(logits, wanted) if few else kv.mover.picked(logits, wanted)

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

    def _bound(self, low: int, high: int, logits: bool) -> Any:
        """A binding of these places."""
        binding = self._graph.session.io_binding()
        if logits:  # bound first, it is the first output
            binding.bind_output(self._graph.logits, *self.kv.mover.target.memory)
        views = self.kv.places(low, high)
        for tensor, there in zip(self._graph.cache, views, strict=True):
            _bind(binding, "input", tensor.past, there)
            _bind(binding, "output", tensor.present, there)
        if self.adapters:
            self.adapters.bind(binding, self.adapters.span(()))
        return binding


# Whether a device computes attention as the processor does.
#
# Keys and values are written in place, as steps do it: devices have kernels of their own for
# that.
_TOKENS = 80  # more than kernels take at a time
_CONTEXT = _TOKENS + 16
_LENGTHS = (5, _TOKENS, 30)  # of rows that go together
_TOLERANCE = 0.05  # of values around 0.3; floats of 16 bits leave a tenth of it


def prompts_are_right(target: Target, model: ModelFile, dtype: Any) -> bool:
    """Try the attention of a prompt, with the model's heads.

    Where kernels take a device for another than it is, keys are left out: those of ONNX Runtime
    1.27 for WebGPU are wrong on a device of software, whose subgroups have four lanes.
    """
    return _is_right(target, model, dtype, (0,), _TOKENS)


def rows_are_right(target: Target, model: ModelFile, dtype: Any) -> bool:
    """Try the attention of rows of different lengths in one pass: WebGPU's takes all of them for
    as long as the longest (ONNX Runtime 1.27)."""
    return _is_right(target, model, dtype, _LENGTHS, 1)


def _is_right(
    target: Target, model: ModelFile, dtype: Any, lengths: Sequence[int], tokens: int
) -> bool:
    """For rows that hold so many tokens, and get so many more."""
    rows, size = len(lengths), model.head_dim
    new, kept = (rows, tokens, model.kv_heads * size), (rows, model.kv_heads, _CONTEXT, size)
    shapes: dict[str, tuple[int, ...]] = {"key": new, "value": new}
    shapes |= {"past.key": kept, "past.value": kept, "query": (rows, tokens, model.heads * size)}
    random = np.random.default_rng(0)
    given = {name: random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    given["before"] = np.array(lengths, np.int32) + np.int32(tokens - 1)
    given["all"] = given["before"].max(keepdims=True) + np.int32(1)
    found = [_mixed(model, where, given) for where in (target, None)]
    worst = float(np.abs(found[0] - found[1]).max())
    what = f"{tokens} tokens of {rows} rows"
    log.debug("attention of %s on %s: off by %.5f", what, target.name, worst)
    return worst <= _TOLERANCE


def _mixed(model: ModelFile, target: Target | None, given: dict[str, Any]) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    nbytes = given["query"].itemsize
    graph = attention(model.heads, model.kv_heads, nbytes)
    try:
        session = open_session(graph, options, target)
        mover = open_session(copy(1, nbytes), options, target)
        return _tried(session, mover, target.memory if target else _CPU, given)
    except Exception as error:  # onnxruntime's exceptions share no base class but Exception
        name = target.name if target else "the processor"
        said = f"ONNX Runtime cannot compute attention on {name}: {error}"
        # What is on the device must not live on in the traceback, behind the sessions.
        raise ModelError(said) from error.with_traceback(None)


def _tried(session: Any, mover: Any, memory: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """Compute one step of the kernels' trial. Device memory allocated here is freed before the
    sessions that allocated it, as it must be."""
    made: dict[str, Any] = {"mixed": _CPU}  # bound first, it is the first output
    for part in ("key", "value"):
        past = {"from.0": given[f"past.{part}"], "tokens": np.array([_CONTEXT])}
        [there] = _computed(mover, past, {"to.0": memory})
        given = {**given, f"past.{part}": there}
        made[f"present.{part}"] = there
    return _computed(session, given, made)[0].numpy().astype(np.float32)
