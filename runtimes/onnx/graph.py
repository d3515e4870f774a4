"""A decoder graph as its genai_config.json describes it: its session, and the names it binds."""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from runtimes.errors import ModelError, RuntimeMissingError
from runtimes.models.modelfile import GENAI_CONFIG, ModelFile, read_json
from runtimes.onnx.graph_file import LOGITS_FROM, shares_buffers
from runtimes.settings import RunnerSettings

logger = logging.getLogger(__name__)

_DTYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}


@dataclass(frozen=True, slots=True)
class CacheTensor:
    """One layer's keys or values: the names of the graph's input and output, and their type."""

    past: str
    present: str
    kv_heads: int
    head_dim: int
    dtype: Any


@dataclass(frozen=True, slots=True)
class Graph:
    """A loaded session and what the runner binds to it."""

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


def load_graph(model: ModelFile, settings: RunnerSettings) -> Graph:
    """Open the graph in ``model.path``; raises ModelError or RuntimeMissingError."""
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise RuntimeMissingError(
            f"ONNX Runtime cannot be loaded ({error}); install it with: pip install onnxruntime"
        ) from error
    config = read_json(model.path / GENAI_CONFIG)
    names = config["model"]["decoder"]
    options = ort.SessionOptions()
    options.log_severity_level = 3  # errors; they also come as exceptions
    if settings.threads:
        options.intra_op_num_threads = settings.threads
    in_place = shares_buffers(config)
    if not in_place:
        # Every step has another shape, and a pattern would be kept for each.
        options.enable_mem_pattern = False
    path = model.path / names["filename"]
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no base class but Exception
        raise ModelError(f"ONNX Runtime cannot load {path}: {_first_line(error)}") from error
    try:
        return _describe(session, names, model, in_place=in_place)
    except KeyError as error:
        raise ModelError(
            f"{path} is not a decoder graph that this runner supports: it lacks {error}"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _describe(session: Any, names: dict[str, Any], model: ModelFile, *, in_place: bool) -> Graph:
    inputs = {node.name: node for node in session.get_inputs()}
    outputs = {node.name: node for node in session.get_outputs()}
    wants, gives = names["inputs"], names["outputs"]
    cache = []
    for layer in range(model.layers):
        for part in ("key", "value"):
            past = wants[f"past_{part}_names"] % layer
            present = gives[f"present_{part}_names"] % layer
            node = inputs[past]
            outputs[present]
            cache.append(
                CacheTensor(
                    past,
                    present,
                    _fixed(node.shape[1], model.kv_heads),
                    _fixed(node.shape[3], model.head_dim),
                    _DTYPES[node.type],
                )
            )
    position = wants.get("position_ids")
    ids = inputs[wants["input_ids"]]
    return Graph(
        session=session,
        input_ids=ids.name,
        attention_mask=inputs[wants["attention_mask"]].name,
        position_ids=position if position in inputs else None,
        logits=outputs[gives["logits"]].name,
        logits_dtype=_DTYPES[outputs[gives["logits"]].type],
        index_dtype=_DTYPES[ids.type],
        cache=tuple(cache),
        in_place=in_place,
        logits_from=_choice(session),
    )


def _choice(session: Any) -> str | None:
    """The constant that says after which positions logits are wanted, if the graph has it."""
    names = {node.name for node in session.get_overridable_initializers()}
    return LOGITS_FROM if LOGITS_FROM in names else None


def _fixed(dimension: int | str, otherwise: int) -> int:
    """A dimension of the graph; a symbolic one is what genai_config.json says."""
    return dimension if isinstance(dimension, int) else otherwise
