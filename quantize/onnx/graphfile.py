"""Graph files with their data beside them, as onnxruntime-genai's builder lays them out; new parts
of a graph, and the choice of logits that every graph gets. Only child processes call what is here:
onnx_ir is slow to import.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx_ir as ir

from quantize.arrays import Array, Ints
from runtimes.errors import ModelError
from runtimes.onnx.graph_file import LOGITS_FROM, PRUNED

NAME = "model.onnx"
# Large tensors are mapped into memory, which starts at page boundaries: 64 KiB on Windows.
_LARGE, _PAGE, _SMALL_STEP = 1 << 20, 1 << 16, 64


def save_graph(model: Any, path: Path) -> None:
    """Write ``model`` to ``path`` and its data to ``<name>.data``, over what it was read from."""
    # Beside the old files, whose data the model still reads, and then over them.
    new = path.with_name("new")
    new.mkdir(parents=True)
    # Every initializer in the data file, as the builder does it.
    ir.save(model, new / path.name, external_data=f"{path.name}.data", size_threshold_bytes=0)
    for file in new.iterdir():
        os.replace(file, path.with_name(file.name))
    new.rmdir()


def add_initializer(graph: Any, tensor: Any) -> Any:
    """``tensor`` as a new constant of ``graph``; its value."""
    kind = ir.TensorType(tensor.dtype)
    value = ir.Value(name=tensor.name, shape=tensor.shape, type=kind, const_value=tensor)
    graph.register_initializer(value)
    return value


def add_constant(graph: Any, name: str, data: Array) -> Any:
    """``data`` as a new constant of ``graph``; its value."""
    return add_initializer(graph, ir.tensor(data, name=name))


def step_feeds(
    session: Any,
    decoder: Mapping[str, Any],
    ids: Ints,
    begin: int = 0,
    past: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The inputs of a float graph for the tokens ``ids`` [1, count] from the position ``begin`` on;
    without ``past`` nothing is before them. ``decoder`` is genai_config.json's part. Raises
    ModelError for an input that is not known."""
    end = begin + ids.shape[1]
    known = {
        "input_ids": ids,
        "attention_mask": np.ones((1, end), np.int64),
        "position_ids": np.arange(begin, end)[None],
        **(past or {}),
    }
    feeds = {}
    for node in session.get_inputs():
        if node.name not in known and node.name.startswith("past"):
            shape = (1, decoder["num_key_value_heads"], 0, decoder["head_size"])
            known[node.name] = np.zeros(shape, np.float32)
        if node.name not in known:
            raise ModelError(f"the float graph has an input {node.name!r} that is not known")
        feeds[node.name] = known[node.name]
    return feeds


# Makes an array a constant of a graph, under that name: in the graph itself (`add_constant`), or in
# its data file.
Constants = Callable[[str, Array], Any]


def open_session(model: bytes | str, threads: int = 0) -> Any:
    """A session of ONNX Runtime on the processor, of a serialized model or the path of one, with so
    many ``threads``; 0 leaves it to the library."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@dataclass(frozen=True, slots=True)
class Inserter:
    """Puts new nodes in front of the node ``before``; their names begin with ``prefix``."""

    graph: Any
    before: Any
    prefix: str

    def add(self, kind: str, name: str, *inputs: Any, domain: str = "", **attributes: Any) -> Any:
        """The value that a new node of the type ``kind`` gives."""
        name = f"{self.prefix}{name}"
        node = ir.node(kind, list(inputs), attributes or None, domain=domain, name=name)
        self.graph.insert_before(self.before, node)
        return node.outputs[0]

    def replace_by(self, value: Any) -> None:
        """Let ``value`` take the place of what ``before`` gives, name and graph output included."""
        old = self.before.outputs[0]
        value.type, value.shape = old.type, old.shape
        name = old.name
        ir.convenience.replace_all_uses_with(old, value, replace_graph_outputs=True)
        self.graph.remove(self.before, safe=True)
        value.name = name


@dataclass(frozen=True, slots=True)
class DataFile:
    """The data file of ``graph``, written tensor by tensor, so that memory holds one of them; made
    by `data_file`."""

    graph: Any
    path: Path
    stream: IO[bytes]
    there: Mapping[str, Any]

    def tensor(self, name: str, array: Array) -> Any:
        """Append ``array`` and return a tensor that points to it, or the same that is there."""
        if name in self.there:
            same = self.there[name].const_value
            if same.dtype == ir.DataType.from_numpy(array.dtype) and np.array_equal(same, array):
                return same
        step = _PAGE if array.nbytes >= _LARGE else _SMALL_STEP
        self.stream.write(bytes(-self.stream.tell() % step))
        at = self.stream.tell()
        self.stream.write(np.ascontiguousarray(array).data)
        return ir.ExternalTensor(
            self.path.name,
            at,
            array.nbytes,
            ir.DataType.from_numpy(array.dtype),
            shape=ir.Shape(array.shape),
            name=name,
            base_dir=self.path.parent,
        )

    def initializer(self, name: str, array: Array) -> Any:
        """Append ``array`` and make it a constant of the graph."""
        return add_initializer(self.graph, self.tensor(name, array))


@contextmanager
def data_file(model: Any, path: Path, there: Mapping[str, Any]) -> Iterator[DataFile]:
    """Collect tensors in `<path>.data`, then write the graph ``model`` to ``path``.

    Constants that are still elsewhere when the block ends are moved first. Those of another graph
    in the same folder, by name, may be ``there``: equal ones are shared.
    """
    data = path.with_name(f"{path.name}.data")
    with data.open("wb") as stream:
        file = DataFile(model.graph, data, stream, there)
        yield file
        for value in model.graph.initializers.values():
            tensor = value.const_value
            inside = isinstance(tensor, ir.ExternalTensor) and Path(tensor.path) == data
            if tensor is not None and not inside:
                value.const_value = file.tensor(value.name, tensor.numpy())
    ir.save(model, path)


EMBEDDING = "/model/embed_tokens/Gather"  # the builder's names
HEAD = "/lm_head/MatMul"
_END = int(np.iinfo(np.int64).max)


def adapt(folder: Path, metadata: Mapping[str, str]) -> None:
    """Rewrite the builder's graph in ``folder``, which gets this ``metadata``."""
    model = ir.load(folder / NAME)
    select_rows(model.graph)
    model.metadata_props.update(metadata)
    ir.save(model, folder / NAME)  # the constants of its data file stay there


def select_rows(graph: Any) -> None:
    """Let the caller of ``graph`` (onnx_ir) choose after which positions it wants logits.

    Generation reads those of the last position only, and computing a prompt's others takes a large
    part of its time. Measuring and checking drafts need all of them. So the output layer reads the
    hidden states [batch, sequence, hidden] from position `LOGITS_FROM` on: a constant -1 that a
    session may override. Whoever does not know of it (onnxruntime-genai) gets the last position.
    Graphs whose output layer is not found are left alone.
    """
    head = next((node for node in graph if node.name.startswith(HEAD)), None)
    if head is None:
        return
    hidden = head.inputs[0]
    pruning = []  # the last position, as the builder picks it
    while (node := hidden.producer()) is not None and node.name.startswith(PRUNED):
        pruning.append(node)
        hidden = node.inputs[0]
    start = add_constant(graph, LOGITS_FROM, np.array([-1], np.int64))
    new = Inserter(graph, head, f"{PRUNED}/")
    # Nodes, since shape inference does not read constants from the data file.
    end = new.add("Constant", "End", value_ints=[_END])
    axis = new.add("Constant", "Axis", value_ints=[1])
    rows = new.add("Slice", "Slice", hidden, start, end, axis)
    rows.type, rows.shape = hidden.type, hidden.shape
    head.replace_input_with(0, rows)
    for node in pruning:
        index = node.inputs[1]
        graph.remove(node, safe=True)
        if index.is_initializer() and not index.uses():
            graph.initializers.pop(str(index.name))
    graph.inputs.append(start)  # both an input and a constant: one that may be overridden
    logits = next(value for value in graph.outputs if value.name == "logits")
    for value in (rows, *head.outputs, logits):
        if value.shape is not None:
            # What comes without an override: onnxruntime-genai makes room by what is declared.
            count = 1 if value is logits else "logits_length"
            value.shape = ir.Shape([value.shape[0], count, value.shape[2]])
