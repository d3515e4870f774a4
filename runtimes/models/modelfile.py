"""``ModelFile``: what is on disk; ``runtimes.models.registry.read_model`` reads it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtimes.errors import ModelError, RequestError
from runtimes.settings import KvType
from runtimes.untrusted import load_json

RuntimeName = str  # a key of ``runtimes.models.registry.MODULES``

# The graph's settings as onnxruntime-genai's builder writes them beside it.
GENAI_CONFIG = "genai_config.json"

# Weights of gigabytes are not read whole to tell two files apart: the start (a GGUF header with
# tokenizer and template), the end, and evenly spaced blocks between them are.
_WHOLE = 32 * 2**20
_EDGE = 4 * 2**20
_BLOCK = 64 * 2**10
_BLOCKS = 64


@dataclass(frozen=True, slots=True)
class StateShape:
    """State that recurrent layers keep of a whole sequence."""

    layers: int
    floats: int  # for a slot, in each layer
    # The width of the recurrence's input and of what is convolved before it; 0 for other
    # recurrences than Mamba's and those like it.
    inner: int = 0
    convolved: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of a slot: floats, whatever the type of keys and values is."""
        return 4 * self.layers * self.floats


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A GGUF file, or a folder with an ONNX graph, and what its metadata says of the model."""

    path: Path  # the .gguf file or the ONNX folder
    runtime: RuntimeName
    name: str
    architecture: str
    quantization: str
    nbytes: int  # all that the runtime reads
    context_length: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    sliding_window: int | None  # None: full attention
    chat_template: str | None = field(repr=False)
    # Elements of keys and values that a token adds: to the layers that keep every token, and to
    # those that keep the window only.
    kv_elements: int = 0
    window_elements: int = 0
    hidden: int = 0
    # The widest activation of a layer for one token, of a mixture over the experts that it uses; 0
    # where the metadata does not say.
    feed_forward: int = 0
    merges: int = 0  # rules of the tokenizer, where known
    state: StateShape | None = None
    further: tuple[Path, ...] = ()  # a split model's other files
    encodes: bool = False  # it gives embeddings and continues no text
    scores_pairs: bool = False  # of an encoder: it says how well two texts go together
    kv_type: KvType = "f16"  # of keys and values, where nobody says: what the file was made for

    @property
    def packs_kv(self) -> bool:
        """Whether keys and values can have types below 16 bits: heads are whole blocks of 32."""
        return self.head_dim % 32 == 0

    def require_writer(self) -> None:
        """Raises RequestError for a model that only embeds texts."""
        if self.encodes:
            raise RequestError(
                f"{self.path} ({self.architecture}) is an encoder: it embeds texts (`ingot embed`,"
                " /v1/embeddings) and continues none"
            )

    def kv_bytes_per_token(self, element_bytes: float) -> int:
        """Bytes of keys and values that one token occupies over all layers, windows not counted."""
        return int((self.kv_elements + self.window_elements) * element_bytes)


def fingerprint(model: ModelFile) -> str:
    """A hash of the model's contents. Names, times and places do not matter.

    Raises ModelError when a file cannot be read.
    """
    path, files = model.path, files_of(model)
    digest = hashlib.sha256()
    with reading(path):
        for file in files:
            inner = file.relative_to(path).as_posix() if path.is_dir() else ""
            digest.update(struct.pack("<Q", file.stat().st_size) + inner.encode() + b"\0")
            _update(digest, file)
    return digest.hexdigest()


def files_of(model: ModelFile) -> list[Path]:
    """The files that it is made of."""
    if model.path.is_dir():
        return sorted(path for path in model.path.rglob("*") if path.is_file())
    return [model.path, *model.further]


def _update(digest: hashlib._Hash, path: Path) -> None:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= _WHOLE:
            digest.update(file.read())
            return
        digest.update(file.read(_EDGE))
        step = (size - 2 * _EDGE) // _BLOCKS
        for i in range(_BLOCKS):
            file.seek(_EDGE + i * step)
            digest.update(file.read(min(_BLOCK, step)))
        file.seek(size - _EDGE)
        digest.update(file.read())


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """An OSError within is a ModelError that names ``path``."""
    try:
        yield
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from ``path``; raises ModelError naming the file when it is none, or too large
    or deep."""
    try:
        value = load_json(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return value
