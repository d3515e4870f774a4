"""LoRA adapters beside a graph: rows of any of them go in one pass (``lora_graph``)."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runtimes.errors import IngotError, ModelError, OutOfMemoryError
from runtimes.models.modelfile import ModelFile
from runtimes.onnx.graph import bind_input
from runtimes.onnx.lora import MASK, Matrix, Pair, Product, products, read_lora
from runtimes.onnx.memory import graph_of

Span = tuple[int, int]  # which rows of the matrices


class OnnxAdapters:
    """Implements ``runtimes.runner.AdapterSlots``.

    The matrices of all adapters lie one below the other. The graph is opened anew by ``reopen``
    where the first adapter comes, one that changes further products, or the last one goes; what is
    bound is forgotten by ``forget`` whenever matrices change. ``place`` copies a matrix to the
    device where the graph runs; None: that is the processor, and reads parts of them as they are.
    """

    def __init__(
        self,
        model: ModelFile,
        reopen: Callable[[list[Product]], None],
        forget: Callable[[], None],
        place: Callable[[Matrix], Any] | None = None,
    ) -> None:
        self._model, self._reopen, self._forget = model, reopen, forget
        self._place = place
        self._spans: dict[str, Span] = {}
        self._matrices: dict[str, Matrix] = {}
        self._values: dict[Span, dict[str, Any]] = {}  # what is bound: parts of the matrices
        self._open: list[Product] = []
        self._rows: Any = None  # what a run reads

    @property
    def names(self) -> frozenset[str]:
        """See ``AdapterSlots.names``."""
        return frozenset(self._spans)

    def load(self, name: str, path: Path) -> None:
        """See ``AdapterSlots.load``."""
        pairs = read_lora(path, self._model)
        known = products(graph_of(self._model), self._model)
        _require_fit(path, self._model, pairs, known)
        wanted = [one for one in known if one in self._open or one.parts.keys() & pairs.keys()]
        begin = self._ranks
        end = begin + max(len(a) for a, _ in pairs.values())
        try:
            matrices = self._grown(pairs, wanted, begin, end)
        except MemoryError as error:
            raise OutOfMemoryError(f"no memory for the adapter {path}") from error
        if wanted != self._open:
            self._open_for(wanted)
        self._matrices, self._spans[name] = matrices, (begin, end)
        self._changed()

    def unload(self, name: str) -> None:
        """See ``AdapterSlots.unload``."""
        if self._spans.keys() == {name}:
            self._open_for([])
        begin, end = self._spans.pop(name)
        rest = self._matrices if self._spans else {}
        self._matrices = {
            key: np.delete(matrix, slice(begin, end), axis=0) for key, matrix in rest.items()
        }
        for other, (first, last) in self._spans.items():
            if first >= end:
                self._spans[other] = first - end + begin, last - end + begin
        self._changed()

    def span(self, names: Iterable[str | None]) -> Span:
        """Return the matrices for rows with these adapters."""
        if self._place:  # not every device can be given a part
            return 0, self._ranks
        used = [self._spans[name] for name in names if name is not None]
        return min((one[0] for one in used), default=0), max((one[1] for one in used), default=0)

    def bind(self, binding: Any, span: Span) -> None:
        """Have the graph read this part of the matrices."""
        begin, end = span
        if span not in self._values:
            place = self._place or _shared
            self._values[span] = {
                key: place(matrix[begin:end]) for key, matrix in self._matrices.items()
            }
        for key, value in self._values[span].items():
            binding.bind_ortvalue_input(key, value)

    def bind_rows(self, binding: Any, span: Span, names: Sequence[str | None]) -> None:
        """Say which adapter each row of the next run has."""
        if not self._open:
            return
        shape = len(names), 1, span[1] - span[0]
        self._rows = mask = np.zeros(shape, f"f{self._open[0].nbytes}")
        for row, name in zip(mask, names, strict=True):
            if name is not None:
                begin, end = self._spans[name]
                row[:, begin - span[0] : end - span[0]] = 1
        bind_input(binding, MASK, mask)

    @property
    def _ranks(self) -> int:
        return max((end for _, end in self._spans.values()), default=0)

    def _grown(
        self, pairs: dict[str, Pair], wanted: list[Product], begin: int, end: int
    ) -> dict[str, Matrix]:
        matrices = {}
        for product in wanted:
            for part in product.parts:
                sides = zip(product.matrices(part), pairs.get(part, (None, None)), strict=True)
                for (key, width), new in sides:
                    matrix = matrices[key] = np.zeros((end, width), f"f{product.nbytes}")
                    if (old := self._matrices.get(key)) is not None:
                        matrix[:begin] = old
                    if new is not None:
                        matrix[begin : begin + len(new)] = new
        return matrices

    def _changed(self) -> None:
        self._values.clear()
        self._forget()

    def _open_for(self, wanted: list[Product]) -> None:
        try:
            self._reopen(wanted)
        except IngotError:
            self._reopen(self._open)
            raise
        self._open = wanted


def _shared(matrix: Matrix) -> Any:
    """Wrap a matrix as a value that a graph can read, in the matrix's own memory. To bind it takes
    a fifth of the time that it takes to bind an array, and there may be hundreds."""
    from onnxruntime import OrtValue

    return OrtValue.ortvalue_from_numpy(matrix)


def _require_fit(
    path: Path, model: ModelFile, pairs: dict[str, Pair], known: list[Product]
) -> None:
    """Raise ModelError for a pair that no product of the graph can take."""
    shapes = {part: (one.inputs, n) for one in known for part, n in one.parts.items()}
    for part, (a, b) in pairs.items():
        found = a.shape[1], b.shape[1]
        if part not in shapes:
            raise ModelError(
                f"the adapter {path} changes {part}, and the graph of {model.name} has no matrix"
                " product that can be changed there; merge it: quantize --lora"
            )
        if found != shapes[part]:
            sizes = [f"{outputs}x{inputs}" for inputs, outputs in (shapes[part], found)]
            raise ModelError(
                f"the adapter {path} does not fit {model.name}: {part} is {sizes[0]} there, and"
                f" the adapter's matrices are for {sizes[1]}"
            )
