"""Files of a model, in a folder or on the hub: which matter, the tensors in them, and reasons to
refuse a model before any work starts (code of its own, weights that are quantized already, a
configuration of another model).
"""

import importlib.util
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from quantize.errors import SourceError, UsageError
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
    """
    config.json generation_config.json tokenizer.json tokenizer.model tekken.json
    tokenizer_config.json special_tokens_map.json added_tokens.json
    vocab.json merges.txt vocab.txt spiece.model sentencepiece.bpe.model
    chat_template.jinja chat_template.json preprocessor_config.json processor_config.json
    """.split()
)
# Single files, parts, and the lists of parts.
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")
_PICKLED = re.compile(r"pytorch_model(-\d{5}-of-\d{5})?\.bin|pytorch_model\.bin\.index\.json")


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
    weights = {name for name in top if _WEIGHTS.fullmatch(name)}
    if pickle and not weights:
        weights = {name for name in top if _PICKLED.fullmatch(name)}
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
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise SourceError(
            f"{folder} lacks {len(missing)} of {len(names)} weight files, first {missing[0]};"
            " the download is incomplete"
        )
    return places


def weight_files(folder: Path, index: str, single: str) -> tuple[tuple[Path, ...], set[str]]:
    """The weight files of ``folder``, by its ``index`` or the ``single`` one, if there are any; and
    the tensors that an index says are in them. Raises as `listed_weights`."""
    if (folder / index).is_file():
        places = listed_weights(folder, index)
        return tuple(folder / name for name in sorted(set(places.values()))), set(places)
    return ((folder / single,) if (folder / single).is_file() else ()), set()


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


_FLAG = "--trust-remote-code"
_FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
_EMBEDDING = re.compile(
    r"(?:.*\.)?(?:embed_tokens|wte|embed_in|word_embeddings|tok_embeddings)\.weight"
)
_LAYER = re.compile(r"(?:.*\.)?(?:layers|h|blocks)\.([0-9]{1,6})\.")
_NARROW = ("embedding_size", "word_embed_proj_dim")
_WIDTH = ("hidden_size", "n_embd", "d_model", "dim")
_DEPTH = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


def require_no_code(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Raise UsageError when using ``folder`` would need, or could run, code that it brings.

    Returns a note when config.json names such code but transformers has the model built in and the
    code itself is not there. Files with code are refused even then: the GGUF converter loads some
    tokenizers with trust in whatever lies in the folder.
    """
    tokenizer = folder / "tokenizer_config.json"
    tokens = read_json(tokenizer, "the tokenizer cannot be read") if tokenizer.is_file() else {}
    if not config.get("auto_map") and not tokens.get("auto_map"):
        return None
    code = sorted(path.name for path in folder.glob("*.py"))
    where = "tokenizer_config.json" if tokens.get("auto_map") else "config.json"
    if built_in(config) and not tokens.get("auto_map"):
        if not code:
            return "config.json names code of the model's own; the built-in model is used instead"
        raise UsageError(
            f"{folder} brings Python code ({', '.join(code[:3])}) that converters could run, and"
            f" does not need it: remove it, or give {_FLAG} if you trust it"
        )
    raise UsageError(
        f"{folder} needs Python code that the model brings along (auto_map in {where}). Read it"
        f" first; if you trust it, give {_FLAG}"
    )


def built_in(config: Mapping[str, Any]) -> bool:
    """Whether the installed transformers has the model. Nothing is imported: that takes seconds,
    and torch."""
    kind, classes = config.get("model_type"), config.get("architectures")
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None or not isinstance(classes, list) or not classes:
        return False
    known = Path(spec.origin).parent / "models" / "auto" / "modeling_auto.py"
    entry = rf'\(\s*"{re.escape(str(kind))}",\s*"{re.escape(str(classes[0]))}",?\s*\)'
    return re.search(entry, known.read_text(encoding="utf-8")) is not None


def require_floats(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Raise SourceError for a model that is quantized already: its loss would be built upon, and
    converters read most such forms wrongly or not at all."""
    method = config.get("quantization_config")
    if isinstance(method, Mapping):
        kind = method.get("quant_method", "quantization_config in its config.json")
        raise SourceError(
            f"{folder} is quantized already ({kind}); give the original model in 16 or 32 bits"
        )
    for name, tensor in tensors.items():
        if tensor.dtype not in _FLOATS and len(tensor.shape) >= 2 and name.endswith("weight"):
            raise SourceError(
                f"{folder}: the tensor {name} is of type {tensor.dtype}; give the original model in"
                " 16 or 32 bits"
            )


def require_agreement(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Raise SourceError when config.json describes another model than the weights are.

    Compared are the embedding's rows and columns with the vocabulary and hidden size, and the
    number of layers. What a configuration does not say, or says in another way, is not compared.
    """
    text = config.get("text_config")
    settings = {**config, **text} if isinstance(text, Mapping) else dict(config)
    found = [t for name, t in tensors.items() if _EMBEDDING.fullmatch(name) and len(t.shape) == 2]
    if len(found) == 1:
        rows, width = found[0].shape
        for what, names, has, where in (
            # Some models have a narrower embedding and a projection behind it.
            ("hidden size", (*_NARROW, *_WIDTH), width, "the embedding's columns"),
            ("vocabulary", ("vocab_size",), rows, "the embedding's rows"),
        ):
            says = _first(settings, names)
            if says is not None and says != has:
                raise SourceError(
                    f"{folder}: config.json says {what} {says:,}, {where} are {has:,}; one of the"
                    " two belongs to another model"
                )
    layers = {int(match[1]) for name in tensors if (match := _LAYER.match(name))}
    depth = _first(settings, _DEPTH)
    # More are there in models with extra layers for multi-token prediction, or with an encoder.
    if depth is not None and layers and len(layers) < depth:
        missing = next(layer for layer in range(depth) if layer not in layers)
        raise SourceError(
            f"{folder}: config.json says {depth} layers, the weights have {len(layers)}; layer"
            f" {missing} is not there. One of the two belongs to another model"
        )


def _first(settings: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    values = (settings.get(name) for name in names)
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool)), None)
