"""The model to build from: a Hugging Face folder, looked over before any work starts."""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantize.errors import SourceError, UsageError
from quantize.manifest import Source

_TOKENIZERS = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"))
_INDEX = "model.safetensors.index.json"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
_LONGEST_HEADER = 100_000_000  # the limit of the safetensors library itself


@dataclass(frozen=True, slots=True)
class SourceModel:
    """A folder whose configuration, weights and tokenizer are all there."""

    folder: Path
    architecture: str
    weights: tuple[Path, ...]
    parameters: int

    @property
    def name(self) -> str:
        """What built files are named after."""
        return self.folder.resolve().name

    @property
    def graded(self) -> Path | None:
        """Graded questions that came with the model, if any."""
        path = self.folder / "graded.jsonl"
        return path if path.is_file() else None

    def fingerprint(self) -> Source:
        """Name and hash: two sources with the same hash give the same files."""
        digest = hashlib.sha256()
        for path in (self.folder / "config.json", *self.weights):
            with path.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return Source(name=self.name, hash=digest.hexdigest())


def open_source(model: str) -> SourceModel:
    """Look over the folder ``model``. Raises UsageError or SourceError saying what is wrong."""
    folder = Path(model)
    if not folder.is_dir():
        if folder.is_file():
            raise UsageError(f"{model} is a file; give the folder of a Hugging Face model")
        if _HUB_ID.fullmatch(model):
            raise UsageError(
                f"there is no folder {model}. Models are not downloaded here: fetch it with"
                f" `hf download {model} --local-dir FOLDER` and give that folder"
            )
        raise UsageError(f"there is no folder {model}")
    config = _read_json(folder / "config.json", "it is not a Hugging Face model folder")
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise SourceError(f"{folder / 'config.json'} names no architecture ('architectures')")
    if not any(all((folder / name).is_file() for name in names) for names in _TOKENIZERS):
        raise SourceError(
            f"{folder} has no tokenizer: tokenizer.json, tokenizer.model, or vocab.json with"
            " merges.txt"
        )
    weights = _weight_files(folder)
    parameters = sum(_check_weights(path) for path in weights)
    return SourceModel(folder, str(architectures[0]), weights, parameters)


def _weight_files(folder: Path) -> tuple[Path, ...]:
    if (folder / _INDEX).is_file():
        index = _read_json(folder / _INDEX, "the list of weight files is damaged")
        try:
            names = sorted(set(index["weight_map"].values()))
        except (KeyError, AttributeError, TypeError) as error:
            raise SourceError(f"{folder / _INDEX} has no weight_map") from error
        outside = [name for name in names if Path(name).name != name]
        if outside:
            raise SourceError(f"{folder / _INDEX} names {outside[0]!r}, outside its folder")
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise SourceError(
                f"{folder} lacks {len(missing)} of {len(names)} weight files, first {missing[0]};"
                " the download is incomplete"
            )
        return tuple(folder / name for name in names)
    single = folder / "model.safetensors"
    if single.is_file():
        return (single,)
    others = sorted(path.name for path in (*folder.glob("*.bin"), *folder.glob("*.pt*")))
    hint = f" ({others[0]} is in pickle form, which can run code)" if others else ""
    raise SourceError(f"{folder} has no model.safetensors{hint}")


def _check_weights(path: Path) -> int:
    """The number of weights in a safetensors file; raises SourceError unless it is whole.

    Format: 8 bytes of header length, a JSON header with the tensors' offsets, the tensors
    (huggingface/safetensors, "Format" of its README).
    """
    size = path.stat().st_size
    damaged = f"{path} is damaged"
    with path.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 2 <= length <= _LONGEST_HEADER or 8 + length > size:
            raise SourceError(f"{damaged}: it is no safetensors file, or ends within its header")
        try:
            header: dict[str, Any] = json.loads(stream.read(length))
            tensors = [info for name, info in header.items() if name != "__metadata__"]
            end = max((int(info["data_offsets"][1]) for info in tensors), default=0)
            count: int = sum(math.prod(info["shape"]) for info in tensors)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise SourceError(f"{damaged}: its header cannot be read ({error})") from error
    if 8 + length + end != size:
        raise SourceError(
            f"{path} is {'truncated' if size < 8 + length + end else 'damaged'}: {size:,} bytes,"
            f" its header promises {8 + length + end:,}; download it again"
        )
    if not tensors:
        raise SourceError(f"{path} holds no tensors")
    return count


def _read_json(path: Path, meaning: str) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SourceError(f"{path.parent} has no {path.name}: {meaning}") from error
    except (OSError, ValueError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise SourceError(f"{path} is no JSON object: {meaning}")
    return data
