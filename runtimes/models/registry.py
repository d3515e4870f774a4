"""The registry of runtimes, the one place that names them all, and what needs one of them to be
known of a model file. Loads no runtime."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from runtimes import own
from runtimes.errors import ModelError, RequestError
from runtimes.settings import rope_scaling

if TYPE_CHECKING:
    from runtimes.backend import Backend
    from runtimes.models.modelfile import ModelFile, RuntimeName
    from runtimes.runner import Tokenizer
    from runtimes.settings import Rope

# By name, and imported when they are asked for.
MODULES: dict[RuntimeName, str] = {
    "llamacpp": own("runtimes.llamacpp.backend"),
    "onnx": own("runtimes.onnx.backend"),
}


def backend(name: RuntimeName) -> Backend:
    """The backend of this name."""
    return cast("Backend", importlib.import_module(MODULES[name]).BACKEND)


def backends() -> list[Backend]:
    """All of them, in the order in which people see them."""
    return [backend(name) for name in MODULES]


def read_model(path: str | Path) -> ModelFile:
    """Describe the model at ``path``; raises ModelError if there is none, or it is damaged."""
    path = Path(path)
    if not path.exists():
        raise ModelError(f"there is no model at {path}")
    # The last first: the first ones take every file and every folder, and say what is wrong.
    found = (one.detect(path) for one in reversed(backends()))
    return next(model for model in found if model is not None)


def backend_of(model: ModelFile) -> Backend:
    """The backend that runs ``model``."""
    return backend(model.runtime)


def stretched(model: ModelFile, rope: Rope | None) -> ModelFile:
    """``model`` with the context that these rotary positions give it. Raises RequestError for one
    of a runtime that cannot change them."""
    if rope in (None, model.rope):
        return model
    if "rope" not in backend_of(model).knows or model.encodes:
        why = "is an encoder" if model.encodes else "has its positions in its graph"
        raise RequestError(
            f"rope {rope}: {model.path} {why}; name a GGUF file that continues texts"
        )
    longest = int(model.context_length * rope_scaling(rope)[1])
    return replace(model, rope=rope, context_length=longest)


def gives_embeddings(model: ModelFile) -> bool:
    """Whether ``model`` gives a text's embedding."""
    return backend_of(model).embeds and not model.scores_pairs


def tokenizer_of(model: ModelFile) -> Tokenizer:
    """The tokenizer that the runner of ``model`` uses, without the weights; raises ModelError."""
    return backend_of(model).tokenizer(model)
