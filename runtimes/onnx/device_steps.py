"""Steps on a graph whose keys and values are on a device, written in place there.

A step copies token ids, mask and positions to the device, and the rows of logits that were asked
for from it, or their largest, nothing else. A prompt goes in for one slot at a time. Rows that
decode go together where the device attends to each row for as long as it is; else each is a pass of
its own.
"""

import logging
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from runtimes.errors import ModelError, OutOfMemoryError
from runtimes.models.modelfile import ModelFile
from runtimes.onnx.device import Target, open_session, zeros
from runtimes.onnx.graph import Array, CacheTensor, Graph, bind_input, run
from runtimes.onnx.graph_file import (
    FLOATS,
    INT32,
    INT64,
    MICROSOFT,
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
    StepRow,
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
    """``to.N`` has the first ``tokens`` [1] of ``from.N`` [rows, heads, context, size]."""
    element, names = FLOATS[nbytes], range(tensors)
    return model(
        [node("Slice", (f"from.{n}", "zero", "tokens", "axis"), f"to.{n}") for n in names],
        [
            value_info("tokens", INT64, 1),
            *(value_info(f"from.{n}", element, "r", f"h{n}", "c", f"d{n}") for n in names),
        ],
        [value_info(f"to.{n}", element, "r", f"h{n}", "t", f"d{n}") for n in names],
        [_whole("zero", 0), _whole("axis", 2)],
    )


def same(nbytes: int) -> bytes:
    """``to`` [n, m] is what ``from`` is."""
    element, shape = FLOATS[nbytes], ("n", "m")
    made = node("Identity", ("from",), "to")
    return model([made], [value_info("from", element, *shape)], [value_info("to", element, *shape)])


def picked(vocab_size: int, nbytes: int, likeliest: int = 0) -> bytes:
    """``picked`` is those of ``logits`` [b, n, vocab] that ``rows`` [m] counts, from 0 to b * n.

    With ``likeliest`` also so many of each row's largest: ``values`` and ``ids``.
    """
    element = FLOATS[nbytes]
    nodes = [
        node("Reshape", ("logits", "flat"), "all"),
        node("Gather", ("all", "rows"), "picked"),
    ]
    outputs = [value_info("picked", element, "m", vocab_size)]
    constants = [_whole("flat", -1, vocab_size)]
    if likeliest:
        nodes.append(node("TopK", ("picked", "count"), ("values", "ids")))
        outputs = [
            value_info("values", element, "m", likeliest),
            value_info("ids", INT64, "m", likeliest),
        ]
        constants.append(_whole("count", likeliest))
    inputs = [value_info("logits", element, "b", "n", vocab_size), value_info("rows", INT64, "m")]
    return model(nodes, inputs, outputs, constants)


def attention(heads: int, kv_heads: int, size: int, nbytes: int) -> bytes:
    """``mixed`` [rows, n, heads * size] is what n tokens of each row take from one another, and
    from what came before in ``past.key`` and ``past.value`` [rows, kv heads, context, size]."""
    element = FLOATS[nbytes]
    past, present = ("past.key", "past.value"), ("present.key", "present.value")
    widths = {"query": heads * size, "key": kv_heads * size, "value": kv_heads * size}
    attributes = integer("num_heads", heads) + integer("kv_num_heads", kv_heads)
    inputs = (*widths, *past, "before", "all")
    kept = ("rows", kv_heads, "context", size)
    return model(
        [node("GroupQueryAttention", inputs, ("mixed", *present), attributes, MICROSOFT)],
        [
            *(value_info(name, element, "rows", "n", width) for name, width in widths.items()),
            *(value_info(name, element, *kept) for name in past),
            value_info("before", INT32, "rows"),
            value_info("all", INT32, 1),
        ],
        [
            value_info("mixed", element, "rows", "n", heads * size),
            *(value_info(name, element, *kept) for name in present),
        ],
    )


# Tensors on a device: how they are allocated, copied, and bound to a graph, whole or in part.
LIKELIEST = 64  # tokens of a row, where not all are wanted; as many as llama.cpp is asked for


@dataclass(frozen=True, slots=True)
class View:
    """A tensor on a device, or those of its rows that begin ``offset`` bytes behind its begin."""

    tensor: Any
    target: Target
    dtype: Any
    shape: tuple[int, ...]
    offset: int | None = None  # None: all of it

    def rows(self, low: int, high: int) -> "View":
        """From row ``low`` up to ``high``, on a device that has addresses."""
        row = int(np.prod(self.shape[1:])) * np.dtype(self.dtype).itemsize
        return replace(self, shape=(high - low, *self.shape[1:]), offset=low * row)

    def bind_input(self, binding: Any, name: str) -> None:
        """Have a graph read it."""
        if self.offset is None:
            binding.bind_ortvalue_input(name, self.tensor)
        else:
            binding.bind_input(name, *self._place)

    def bind_output(self, binding: Any, name: str) -> None:
        """Have a graph write it."""
        if self.offset is None:
            binding.bind_ortvalue_output(name, self.tensor)
        else:
            binding.bind_output(name, *self._place)

    @property
    def _place(self) -> tuple[Any, ...]:
        return *self.target.memory, self.dtype, self.shape, self.tensor.data_ptr() + self.offset


def _computed(session: Any, given: Mapping[str, Any], made: Mapping[str, Any]) -> list[Any]:
    """Run a small graph on arrays and tensors. Its results come to lie in tensors that are there,
    or in new ones in the memory that is named."""
    binding = session.io_binding()
    for name, value in given.items():
        if isinstance(value, np.ndarray):
            bind_input(binding, name, value)
        elif isinstance(value, View):
            value.bind_input(binding, name)
        else:
            binding.bind_ortvalue_input(name, value)
    for name, place in made.items():
        if isinstance(place, tuple):
            binding.bind_output(name, *place)
        elif isinstance(place, View):
            place.bind_output(binding, name)
        else:
            binding.bind_ortvalue_output(name, place)
    run(session, binding)
    found: list[Any] = binding.get_outputs()
    return found


class Mover:
    """Allocates and copies tensors where a graph runs."""

    def __init__(self, graph: Graph, target: Target, vocab_size: int) -> None:
        """Raises ModelError."""
        import onnxruntime as ort

        self.target = target
        kinds = {np.dtype(tensor.dtype) for tensor in graph.cache}
        if len(kinds) != 1:
            raise ModelError("keys and values of several types cannot be on a device")
        self._dtype = kinds.pop()
        nbytes = self._dtype.itemsize
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1  # all that these graphs do is done on the device

        def opened(content: bytes) -> Any:
            return open_session(content, options, target)

        self._zeros = opened(zeros(nbytes))
        self._copy = opened(copy(len(graph.cache), nbytes))
        self._same = opened(same(nbytes))
        nbytes = np.dtype(graph.logits_dtype).itemsize
        self._picked = opened(picked(vocab_size, nbytes))
        self.finds_likeliest = vocab_size > LIKELIEST
        if self.finds_likeliest:
            self._likeliest = opened(picked(vocab_size, nbytes, LIKELIEST))

    def zeros(self, shape: tuple[int, ...]) -> View:
        """A tensor of zeros for keys or values. Raises OutOfMemoryError."""
        given = {"shape": np.array(shape, np.int64)}
        [made] = _computed(self._zeros, given, {"made": self.target.memory})
        return View(made, self.target, self._dtype, shape)

    def placed(self, matrix: Array) -> Any:
        """A copy of a matrix, with elements as keys and values have. Raises OutOfMemoryError."""
        return _computed(self._same, {"from": matrix}, {"to": self.target.memory})[0]

    def copy(self, source: Sequence[Any], target: Sequence[Any], tokens: int) -> list[Any]:
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
        tensors = graph.cache
        per_token = sum(t.kv_heads * t.head_dim * np.dtype(t.dtype).itemsize for t in tensors)
        super().__init__(slots, context, per_token)
        self.mover, self.together, self._tensors = mover, together, tensors
        if tensors:  # what fails for one token is not for lack of room
            mover.zeros((1, tensors[0].kv_heads, 1, tensors[0].head_dim))
        rows, times = (slots + 1, 1) if together else (1, slots)
        shapes = [self._shape(tensor, rows) for tensor in tensors]
        try:
            self._views = [[mover.zeros(shape) for shape in shapes] for _ in range(times)]
        except ModelError as error:  # a device says in words of its own that it has no room
            raise OutOfMemoryError(
                f"no room on the device for the cache of {slots} slots x {context} tokens"
                f" ({error}); ask for fewer slots or a smaller context"
            ) from error
        self.place = list(range(slots))

    def _shape(self, tensor: CacheTensor, rows: int = 1) -> tuple[int, int, int, int]:
        return rows, tensor.kv_heads, self.context, tensor.head_dim

    def places(self, low: int, high: int) -> list[View]:
        """Each layer's keys and values in these places; of one place only if not ``together``."""
        if self.together:
            return [whole.rows(low, high) for whole in self._views[0]]
        return self._views[low]

    def _values(self, slot: int) -> list[View]:
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
        rows = [np.zeros(self._shape(tensor), tensor.dtype) for tensor in self._tensors]
        self._fill((row[0, :, :length] for row in rows), data)
        self.mover.copy(rows, self._values(slot), self.context)

    def close(self) -> None:
        """See ``Slots.close``."""
        self._views.clear()


class DeviceSteps(Steps):
    """On a graph that writes in place."""

    kv: DeviceCache

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
        super().__init__(graph, kv)
        self._vocab_size, self._whole_prompts = vocab_size, whole_prompts
        self.likeliest = likeliest

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

    def decode(self, rows: Sequence[StepRow]) -> Logits | TopKLogits:
        """See ``Steps.decode``."""
        together = self.kv.together
        passes = consecutive_runs(rows, full=self.kv.full()) if together else [[r] for r in rows]
        asked = [row.top_k_needed for row in rows if row.logits]
        # Less than the whole width: a list that is cut among equal logits is cut below them.
        few = self.likeliest and bool(asked) and all(0 < most < LIKELIEST for most in asked)
        return joined([self._decode(part, few) for part in passes])

    def _decode(self, rows: Sequence[StepRow], few: bool) -> Logits | TopKLogits:
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
        for tensor, view in zip(self._graph.cache, views, strict=True):
            view.bind_input(binding, tensor.past)
            view.bind_output(binding, tensor.present)
        if self.adapters:
            self.adapters.bind(binding, self.adapters.span(()))
        return binding


def open_steps(
    graph: Graph,
    target: Target,
    model: ModelFile,
    settings: RunnerSettings,
    slots: int,
    context: int,
) -> DeviceSteps:
    """The steps on the graph's device, as far as it computes right. Raises OutOfMemoryError or
    ModelError."""
    dtype = graph.cache[0].dtype
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


_TOKENS = 80  # more than kernels take at a time

_CONTEXT = _TOKENS + 16

# Whether a device computes attention as the processor does.
#
# Keys and values are written in place, as steps do it: devices have kernels of their own for
# that.
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
    random, rows = np.random.default_rng(0), len(lengths)
    counts = {"query": model.heads, "key": model.kv_heads, "value": model.kv_heads}
    kept = rows, model.kv_heads, _CONTEXT, model.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        name: (rows, tokens, count * model.head_dim) for name, count in counts.items()
    }
    shapes |= {"past.key": kept, "past.value": kept}
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
    graph = attention(model.heads, model.kv_heads, model.head_dim, nbytes)
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
