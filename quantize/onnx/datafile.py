"""Write the data file beside a graph tensor by tensor, so that memory holds one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

# Large tensors are mapped into memory, which starts at page boundaries: 64 KiB on Windows.
_LARGE, _PAGE, _SMALL_STEP = 1 << 20, 1 << 16, 64


class DataFile:
    """The data file of ``graph``; made by `data_file`."""

    def __init__(self, graph: Any, path: Path, stream: IO[bytes]) -> None:
        self._graph, self._path, self._stream = graph, path, stream

    def tensor(self, name: str, array: npt.NDArray[Any]) -> Any:
        """Append ``array`` and return a tensor that points to it."""
        step = _PAGE if array.nbytes >= _LARGE else _SMALL_STEP
        at = self._stream.tell()
        self._stream.write(bytes(-at % step))
        at = self._stream.tell()
        self._stream.write(np.ascontiguousarray(array).data)
        return ir.ExternalTensor(
            self._path.name,
            at,
            array.nbytes,
            ir.DataType.from_numpy(array.dtype),
            shape=ir.Shape(array.shape),
            name=name,
            base_dir=self._path.parent,
        )

    def initializer(self, name: str, array: npt.NDArray[Any]) -> Any:
        """Append ``array`` and make it a constant of the graph."""
        tensor = self.tensor(name, array)
        value = ir.Value(
            name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor
        )
        self._graph.register_initializer(value)
        return value

    def take_over(self, value: Any) -> None:
        """Move a constant's data from where it is now into this file."""
        value.const_value = self.tensor(value.name, value.const_value.numpy())


@contextmanager
def data_file(model: Any, path: Path) -> Iterator[DataFile]:
    """Collect tensors in `<path>.data`, then write the graph ``model`` to ``path``.

    Constants that are still elsewhere when the block ends are moved first.
    """
    data = path.with_name(f"{path.name}.data")
    with data.open("wb") as stream:
        file = DataFile(model.graph, data, stream)
        yield file
        for value in model.graph.initializers.values():
            tensor = value.const_value
            inside = isinstance(tensor, ir.ExternalTensor) and Path(tensor.path) == data
            if tensor is not None and not inside:
                file.take_over(value)
    ir.save(model, path)
