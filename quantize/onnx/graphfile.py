"""Graph files with their data beside them, as onnxruntime-genai's builder lays them out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

NAME = "model.onnx"


def load_graph(path: Path) -> Any:
    """The onnx_ir model at ``path``; its weights stay in the file until they are read."""
    import onnx_ir as ir

    return ir.load(path)


def save_graph(model: Any, path: Path, *, data: bool = True) -> None:
    """Write ``model`` to ``path`` and its data to ``<name>.data``, over what it was read from.

    Without ``data`` the constants that lie in the data file stay as they are there.
    """
    import onnx_ir as ir

    if not data:
        ir.save(model, path)
        return
    # Beside the old files, whose data the model still reads, and then over them.
    new = path.with_name("new")
    new.mkdir(parents=True)
    # Every initializer in the data file, as the builder does it.
    ir.save(model, new / path.name, external_data=f"{path.name}.data", size_threshold_bytes=0)
    for file in new.iterdir():
        os.replace(file, path.with_name(file.name))
    new.rmdir()


def add_initializer(graph: Any, name: str, data: Any) -> Any:
    """A new constant of ``graph`` from a NumPy array; its value."""
    import onnx_ir as ir

    tensor = ir.tensor(data, name=name)
    shape, kind = ir.Shape(data.shape), ir.TensorType(tensor.dtype)
    value = ir.Value(name=name, shape=shape, type=kind, const_value=tensor)
    graph.register_initializer(value)
    return value
