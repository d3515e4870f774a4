"""From what the user names to a model that can be built from."""

import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

from quantize.errors import SourceError, UsageError
from quantize.hub.client import Hub, HubName, Listing, NotOnHubError, parse_hub_name
from quantize.hub.transfer import Store
from quantize.options import SourceOptions
from quantize.progress import SILENT, Reporter
from quantize.source.files import (
    CONFIG,
    INDEX,
    SINGLE,
    TOKENIZERS,
    read_json,
    read_tensors,
    require_agreement,
    require_floats,
    require_no_code,
    wanted,
    weight_files,
)
from quantize.source.shapes import SourceModel
from quantize.source.unpickle import converted, pickles
from runtimes.errors import ModelError
from runtimes.models.gguf import gguf_files, named_parts, read_header

_FLOATS = frozenset({"F32", "F16", "BF16"})
_SUFFIX = re.compile(r"[-._](?:b?f16|f32|fp16|fp32)$", re.IGNORECASE)


def open_source(options: SourceOptions | str, progress: Reporter = SILENT) -> SourceModel:
    """The model that ``options`` names: a folder, a GGUF file of floats, or ORG/NAME on the hub.

    A model from the hub is downloaded, or found among the downloaded ones; a folder of that name
    comes first. Raises UsageError for what is not there or not allowed, SourceError for what is
    damaged or not fit, HubError for what the hub does not give, DiskFullError.
    """
    options = SourceOptions(options) if isinstance(options, str) else options
    path = Path(options.model)
    if path.exists() and options.revision is not None:
        raise UsageError(f"{path} is on this disk; a revision belongs to a model on the hub")
    if path.is_dir():
        if not (path / CONFIG).is_file() and (found := gguf_files(path)):
            raise UsageError(
                f"{path} has no {CONFIG}: it is not a Hugging Face model folder. To build from a"
                f" .gguf file of floats in it, name the file, such as {found[0]}"
            )
        return open_folder(path, options, progress)
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return open_gguf(path, requantize=options.allow_requantize)
        raise UsageError(
            f"{path} is a file; give the folder of a Hugging Face model, or a .gguf file of floats"
        )
    name = parse_hub_name(options.model, options.revision)
    if name is None:
        raise UsageError(f"there is no folder {path}; a model on the hub is written ORG/NAME")
    try:
        folder, commit = download_model(name, options, progress)
    except NotOnHubError as error:
        raise UsageError(f"{error}. Nor is there a folder {path}") from error
    source = open_folder(folder, options, progress)
    return replace(source, revision=commit, beside=Path.cwd())


def open_folder(folder: Path, options: SourceOptions, progress: Reporter) -> SourceModel:
    """Look over ``folder``. Raises SourceError or UsageError saying what is wrong."""
    config = read_json(folder / CONFIG, "it is not a Hugging Face model folder")
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise SourceError(f"{folder / CONFIG} names no architecture ('architectures')")
    if not options.trust_remote_code and (note := require_no_code(folder, config)):
        progress.note(note)
    if not any(all((folder / name).is_file() for name in names) for names in TOKENIZERS):
        raise SourceError(
            f"{folder} has no tokenizer: tokenizer.json, tokenizer.model, or vocab.json with"
            " merges.txt"
        )
    given = folder.resolve()
    safe = any((folder / name).is_file() for name in (INDEX, SINGLE))
    if options.allow_pickle and not safe and pickles(folder):
        folder = converted(folder, progress)
    weights, listed = weight_files(folder, INDEX, SINGLE)
    if not weights:
        others = sorted(path.name for path in (*folder.glob("*.bin"), *folder.glob("*.pt*")))
        raise SourceError(
            f"{folder} has no {SINGLE} ({others[0]} is in pickle form, which can run code;"
            " --allow-pickle converts it with torch's safe loader)"
            if others
            else f"{folder} has no {SINGLE}"
        )
    tensors = {}
    for path in weights:
        tensors.update(read_tensors(path))
    lost = sorted(listed - tensors.keys())
    if lost:
        raise SourceError(
            f"{folder / INDEX} lists {lost[0]}, which is in none of its weight files; they are of"
            " another model"
        )
    require_floats(folder, config, tensors)
    require_agreement(folder, config, tensors)
    return SourceModel(
        folder,
        str(architectures[0]),
        weights,
        sum(math.prod(tensor.shape) for tensor in tensors.values()),
        name=given.name,
        trust_remote_code=options.trust_remote_code,
        bytes=sum(path.stat().st_size for path in weights),
        beside=given.parent,
    )


def open_gguf(path: Path, *, requantize: bool = False) -> SourceModel:
    """Look over the header of a GGUF file. Raises SourceError for a damaged one, and UsageError for
    one that is quantized already, unless that is to be ``requantize``d, is a part of a split model,
    or is no language model."""
    try:
        header = read_header(path)
        parts = header.whole("split.count")
    except ModelError as error:
        raise SourceError(str(error)) from error
    if parts > 1:
        raise UsageError(
            f"{path} is one of the {parts} parts of a split model; join them first with llama.cpp:"
            f" `llama-gguf-split --merge {named_parts(path)[0]} JOINED.gguf`"
        )
    architecture = header.metadata.get("general.architecture")
    weights = sum(math.prod(tensor.shape) for tensor in header.tensors)
    if not isinstance(architecture, str) or not weights:
        raise SourceError(f"{path} names no architecture, or holds no weights")
    kinds = ""
    if any(len(t.shape) > 1 and t.type_name not in _FLOATS for t in header.tensors):
        types = Counter(tensor.type_name for tensor in header.tensors)
        kinds = ", ".join(f"{count} {kind}" for kind, count in types.most_common())
    if kinds and not requantize:
        raise UsageError(
            f"{path} is quantized already: its {len(header.tensors)} tensors are {kinds}. Give the"
            " f16, bf16 or f32 file, or the original model; --allow-requantize rounds it again"
        )
    if "tokenizer.ggml.tokens" not in header.array_lengths:
        raise UsageError(f"{path} has no vocabulary: it is not a language model by itself")
    return SourceModel(
        path.parent,
        architecture,
        (path,),
        weights,
        name=_SUFFIX.sub("", path.stem) or path.stem,
        kind="gguf",
        quantized=kinds,
        bytes=path.stat().st_size,
        beside=path.resolve().parent,
    )


_WEIGHTS = (".safetensors", ".bin")


# A model from the hub: only the files that a build needs, the small ones first.


def download_model(
    name: HubName, options: SourceOptions, progress: Reporter, hub: Hub | None = None
) -> tuple[Path, str]:
    """The folder with the model's files, and the commit that they are of.

    What can be refused by configuration alone is refused before any weights are fetched. Raises as
    ``open_source``.
    """
    store = Store(name, progress, hub or Hub())
    listing = store.listing()
    names = wanted(
        (file.path for file in listing.files),
        pickle=options.allow_pickle,
        code=options.trust_remote_code,
    )
    _require_model(name, listing, names)
    chosen = {file for file in listing.files if file.path in names}
    small = [file for file in chosen if not file.path.endswith(_WEIGHTS)]
    folder = store.bring(listing, small)
    config = read_json(folder / CONFIG, "it is not a Hugging Face model")
    if not options.trust_remote_code:
        require_no_code(folder, config)
    require_floats(folder, config, {})
    if (folder / INDEX).is_file():  # shards of another set may lie beside the ones it lists
        places = read_json(folder / INDEX, "the list of weight files is damaged").get("weight_map")
        listed = list(places.values()) if isinstance(places, dict) else []
        chosen -= {f for f in chosen if f.path.endswith(_WEIGHTS) and f.path not in listed}
    everything = [file for file in listing.files if file in chosen]
    return store.bring(listing, everything), listing.commit


def _require_model(name: HubName, listing: Listing, names: set[str]) -> None:
    """Say what the repository holds instead of a model, before anything is fetched."""
    present = [file.path for file in listing.files]
    if any(path.endswith(_WEIGHTS) for path in names) and CONFIG in names:
        return
    if any(path.endswith(".gguf") for path in present):
        raise UsageError(
            f"{name} holds ready GGUF files, not a model to build from; get one with"
            f" `ingot pull {name.repo}`"
        )
    if any(path.endswith("adapter_config.json") for path in present):
        raise UsageError(
            f"{name} is a LoRA adapter: name its base model, and give this one with --lora"
        )
    if any(path.endswith(".bin") and "/" not in path for path in present):
        raise SourceError(
            f"{name} has weights in pickle form only, which can run code; --allow-pickle converts"
            " them with torch's safe loader"
        )
    what = "no weights in safetensors" if CONFIG in names else "no config.json"
    raise SourceError(f"{name} has {what}; it is not a model that can be built from")
