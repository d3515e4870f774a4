"""A decoder graph as its genai_config.json describes it: its session, and the names it binds."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from runtimes.errors import ModelError, OutOfMemoryError, RuntimeMissingError
from runtimes.models.modelfile import GENAI_CONFIG, ModelFile
from runtimes.onnx.device import Target, open_session, target_of
from runtimes.onnx.graph_file import LOGITS_FROM, WIDE, decoder_of, shares_buffers
from runtimes.onnx.lora import Product, adapted_graph
from runtimes.settings import RunnerSettings

Array = npt.NDArray[Any]
_DTYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
# Where the weights of a graph are that is not opened from its file
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


@dataclass(frozen=True, slots=True)
class CacheTensor:
    """One layer's keys or values: the names of the graph's input and output, and their type."""

    past: str
    present: str
    kv_heads: int
    head_dim: int
    dtype: Any

    @property
    def nbytes(self) -> int:
        """Bytes of one token."""
        return int(self.kv_heads * self.head_dim * np.dtype(self.dtype).itemsize)


@dataclass(frozen=True, slots=True)
class Graph:
    """A loaded session and what the runner binds to it: arrays that are contiguous and outlive the
    run.
    """

    session: Any
    input_ids: str
    attention_mask: str
    position_ids: str | None  # None if not an input
    logits: str
    logits_dtype: Any
    index_dtype: Any
    cache: tuple[CacheTensor, ...]
    # New keys and values are written into the past that is given; else both come back together.
    in_place: bool = True
    logits_from: str | None = None  # None where the graph leaves no choice of positions
    target: Target | None = None  # None: the processor

    def bind(self, ids: Array, mask: Array, positions: Array) -> Any:
        """A binding that reads these rows, and their positions if the graph takes any."""
        binding = self.session.io_binding()
        self.bind_rows(binding, ids, mask, positions)
        return binding

    def bind_rows(
        self,
        binding: Any,
        ids: Array,
        mask: Array,
        positions: Array,
    ) -> None:
        """Have a binding read these rows. A device's copy is made now, not by the run."""
        bind_input(binding, self.input_ids, ids)
        bind_input(binding, self.attention_mask, mask)
        if self.position_ids:
            bind_input(binding, self.position_ids, positions)

    def run(self, binding: Any) -> None:
        """Run the session; raises OutOfMemoryError or ModelError."""
        run(self.session, binding)


def run(session: Any, binding: Any) -> None:
    """Run a session; raises OutOfMemoryError or ModelError."""
    try:
        session.run_with_iobinding(binding)
    except Exception as error:  # onnxruntime's exceptions share no base class but Exception
        text = str(error).strip()
        if "allocate" in text.lower() or "memory" in text.lower():
            raise OutOfMemoryError(f"ONNX Runtime ran out of memory: {text}") from error
        raise ModelError(f"ONNX Runtime failed in a step: {text}") from error


def bind_input(binding: Any, name: str, array: Array) -> None:
    """Have the graph read ``array``."""
    binding.bind_input(name, *place_of(array))


def bind_output(binding: Any, name: str, array: Array) -> None:
    """Have the graph write into ``array``."""
    binding.bind_output(name, *place_of(array))


def place_of(array: Array) -> tuple[Any, ...]:
    """Memory, number, type, shape and address, as bindings take them."""
    return "cpu", 0, array.dtype, array.shape, array.ctypes.data


def load_wide(model: ModelFile, settings: RunnerSettings, beside: Graph) -> Graph | None:
    """Open the folder's graph for wide passes, which reads and writes the KV cache of the graph
    ``beside``; None where the folder has none. Raises as ``load_graph``."""
    if not (model.path / WIDE).is_file() or beside.target:
        return None
    wide = load_graph(model, settings, name=WIDE)
    same = all(
        getattr(wide, name) == getattr(beside, name)
        for name in ("cache", "in_place", "index_dtype", "logits_dtype")
    )
    if not same or not wide.in_place:
        raise ModelError(
            f"{model.path / WIDE} cannot share keys and values with the graph beside it: build the"
            " model again"
        )
    return wide


def load_graph(
    model: ModelFile,
    settings: RunnerSettings,
    adapted: Sequence[Product] = (),
    name: str | None = None,
) -> Graph:
    """Open the graph in ``model.path``, with room for adapters beside the products ``adapted``, or
    the file ``name`` there, whose inputs and outputs are called alike.

    Raises ModelError or RuntimeMissingError.
    """
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise RuntimeMissingError(
            f"ONNX Runtime cannot be loaded ({error}); install it with: pip install onnxruntime"
        ) from error
    names, in_place = decoder_of(model.path), shares_buffers(model.path)
    options = ort.SessionOptions()
    options.log_severity_level = 3  # errors; they also come as exceptions
    if settings.threads:
        options.intra_op_num_threads = settings.threads
    if not in_place:
        # Every step has another shape, and a pattern would be kept for each.
        options.enable_mem_pattern = False
    path = model.path / (name or names["filename"])
    if name:
        # Passes alternate between two sessions: threads of this one leave the cores to the other.
        options.add_session_config_entry("session.force_spinning_stop", "1")
    graph: str | bytes = str(path)
    if adapted:
        graph = adapted_graph(path, adapted)
        # ONNX Runtime refuses weights that a link takes out of this folder.
        options.add_session_config_entry(_WEIGHTS_FOLDER, str(path.resolve().parent))
    target = target_of(settings.device)
    if target and not in_place:
        raise RuntimeMissingError(
            f"{path} gives all keys and values back in every step, and runs on the processor"
            " only: ask for the device cpu"
        )
    try:
        session = open_session(graph, options, target)
    except RuntimeMissingError:
        raise
    except Exception as error:  # onnxruntime's exceptions share no base class but Exception
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"ONNX Runtime cannot load {path}: {reason}") from error
    try:
        found = _describe(session, names, model, in_place=in_place)
    except KeyError as error:
        raise ModelError(
            f"{path} is not a decoder graph that this runner supports: it lacks {error}"
        ) from error
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise ModelError(
            f"{path} is not a decoder graph that this runner supports, or {GENAI_CONFIG} garbles"
            f" its names ({error}): build the model again"
        ) from error
    if target and target.provider.halves and found.cache[0].dtype is not np.float16:
        # It would run on the processor, and the whole cache would be copied there in every step.
        raise ModelError(
            f"{path} computes in floats of 32 bits, and attention on {target.name} in 16 bits only:"
            " build the model with quantize --target cuda, or ask for the device cpu"
        )
    return replace(found, target=target)


def _describe(session: Any, names: dict[str, Any], model: ModelFile, *, in_place: bool) -> Graph:
    inputs = {node.name: node for node in session.get_inputs()}
    outputs = {node.name: node for node in session.get_outputs()}
    wants, gives = names["inputs"], names["outputs"]
    cache = []
    for layer, part in itertools.product(range(model.layers), ("key", "value")):
        past = inputs[wants[f"past_{part}_names"] % layer]
        present = outputs[gives[f"present_{part}_names"] % layer]
        heads, size = past.shape[1], past.shape[3]
        if not isinstance(heads, int):  # symbolic: what genai_config.json says
            heads = model.kv_heads
        if not isinstance(size, int):
            size = model.head_dim
        cache.append(CacheTensor(past.name, present.name, heads, size, _DTYPES[past.type]))
    position = wants.get("position_ids")
    ids, logits = inputs[wants["input_ids"]], outputs[gives["logits"]]
    constants = {node.name for node in session.get_overridable_initializers()}
    return Graph(
        session=session,
        input_ids=ids.name,
        attention_mask=inputs[wants["attention_mask"]].name,
        position_ids=position if position in inputs else None,
        logits=logits.name,
        logits_dtype=_DTYPES[logits.type],
        index_dtype=_DTYPES[ids.type],
        cache=tuple(cache),
        in_place=in_place,
        logits_from=LOGITS_FROM if LOGITS_FROM in constants else None,
    )
