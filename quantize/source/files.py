"""The files of a model, in a folder or on the hub: which matter, and the tensors in them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from quantize.errors import SourceError
from runtimes.untrusted import check_name, load_json

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLE_INDEX = "pytorch_model.bin.index.json"
PICKLE_SINGLE = "pytorch_model.bin"
GRADED = "graded.jsonl"
EVALUATION = "evaluation.txt"
CALIBRATION = "calibration.txt"
_MOST_NAME = 1024  # characters of a tensor's name
_TEXTS = (GRADED, EVALUATION, CALIBRATION)
# Any of these, with all of its files, is a tokenizer.
TOKENIZERS = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"))
# What decides the text that goes in and the tokens that come out.
_SMALL = frozenset(
    {
        *(CONFIG, "generation_config.json", "tokenizer.json", "tokenizer.model", "tekken.json"),
        *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
        *("vocab.json", "merges.txt", "vocab.txt", "spiece.model", "sentencepiece.bpe.model"),
        *("chat_template.jinja", "chat_template.json"),
        *("preprocessor_config.json", "processor_config.json"),
    }
)
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_PICKLE_SHARD = re.compile(r"pytorch_model-\d{5}-of-\d{5}\.bin")


def small_files(folder: Path) -> tuple[Path, ...]:
    """The configuration and tokenizer files that ``folder`` has, by name."""
    return tuple(sorted(p for p in folder.iterdir() if _is_small(p.name) and p.is_file()))


def wanted(names: Iterable[str], *, pickle: bool, code: bool) -> set[str]:
    """Select the files of a repository that a build needs.

    Only files at the top. Weights are safetensors; pickled ones when ``pickle`` allows it and there
    are no others. Python files only when ``code`` is set: without them nothing foreign can run.
    Other copies of the weights (consolidated, original, fp16 variants) stay out.
    """
    top = {name for name in names if "/" not in name}
    chosen = {name for name in top if _is_small(name) or name in _TEXTS}
    weights = {n for n in top if n in (INDEX, SINGLE) or _SHARD.fullmatch(n)}
    if pickle and not weights:
        weights = {
            n for n in top if n in (PICKLE_INDEX, PICKLE_SINGLE) or _PICKLE_SHARD.fullmatch(n)
        }
    if INDEX in weights:  # some repositories hold both forms
        weights.discard(SINGLE)
    if code:
        chosen |= {name for name in top if name.endswith(".py")}
    return chosen | weights


def read_json(path: Path, meaning: str) -> dict[str, Any]:
    """The object in ``path``. Raises SourceError; ``meaning`` says what its absence means."""
    try:
        data = load_json(path)
    except FileNotFoundError as error:
        raise SourceError(f"{path.parent} has no {path.name}: {meaning}") from error
    except (OSError, ValueError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise SourceError(f"{path} is not a JSON object: {meaning}")
    return data


def listed_weights(folder: Path, index: str) -> dict[str, str]:
    """Names of tensors, and of the weight files that have them, by the file ``index``. Raises
    SourceError unless all those files are in ``folder``."""
    places = read_json(folder / index, "the list of weight files is damaged").get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(v, str) for v in places.values()):
        raise SourceError(f"{folder / index} has no weight_map")
    names = sorted(set(places.values()))
    for name in names:
        check_name(name, str(folder / index), SourceError)
    if outside := [name for name in names if "/" in name]:
        raise SourceError(f"{folder / index} names {outside[0]!r}, outside its folder")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise SourceError(
            f"{folder} lacks {len(missing)} of {len(names)} weight files, first {missing[0]};"
            " the download is incomplete"
        )
    return places


@dataclass(frozen=True, slots=True)
class Tensor:
    """An entry of a safetensors file's table: the format's name of its type, and its shape."""

    dtype: str
    shape: tuple[int, ...]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name; raises SourceError unless the file is whole."""
    try:
        with safe_open(path, framework="np") as file:
            table = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise SourceError(f"{path} is truncated or damaged ({error}); download it again") from error
    if not table:
        raise SourceError(f"{path} holds no tensors")
    if max(map(len, table)) > _MOST_NAME:
        raise SourceError(f"{path} has a tensor with a name of more than {_MOST_NAME} characters")
    return {name: Tensor(t.get_dtype(), tuple(t.get_shape())) for name, t in table.items()}


def _is_small(name: str) -> bool:
    return name in _SMALL or name.endswith(".tiktoken")
