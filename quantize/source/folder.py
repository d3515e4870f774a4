"""A Hugging Face folder, looked over: everything there, whole, and of one model."""

from __future__ import annotations

from pathlib import Path

from quantize.errors import SourceError
from quantize.options import SourceOptions
from quantize.progress.console import Reporter
from quantize.source.code import require_no_code
from quantize.source.files import CONFIG, INDEX, SINGLE, TOKENIZERS
from quantize.source.jsonfile import read_json
from quantize.source.model import SourceModel
from quantize.source.tensors import count, read_tensors, require_agreement, require_floats
from quantize.source.unpickle import converted, pickles


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
    name = folder.resolve().name
    beside = folder.resolve().parent
    if options.allow_pickle and not _has_safetensors(folder) and pickles(folder):
        folder = converted(folder, progress)
    weights, listed = _weight_files(folder)
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
        count(tensors),
        name=name,
        trust_remote_code=options.trust_remote_code,
        bytes=sum(path.stat().st_size for path in weights),
        beside=beside,
    )


def _has_safetensors(folder: Path) -> bool:
    return (folder / INDEX).is_file() or (folder / SINGLE).is_file()


def _weight_files(folder: Path) -> tuple[tuple[Path, ...], set[str]]:
    """The weight files, and the names of the tensors that an index says are in them."""
    if (folder / INDEX).is_file():
        index = read_json(folder / INDEX, "the list of weight files is damaged")
        places = index.get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(v, str) for v in places.values()):
            raise SourceError(f"{folder / INDEX} has no weight_map")
        names = sorted(set(places.values()))
        outside = [name for name in names if Path(name).name != name]
        if outside:
            raise SourceError(f"{folder / INDEX} names {outside[0]!r}, outside its folder")
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise SourceError(
                f"{folder} lacks {len(missing)} of {len(names)} weight files, first {missing[0]};"
                " the download is incomplete"
            )
        return tuple(folder / name for name in names), set(places)
    if (folder / SINGLE).is_file():
        return (folder / SINGLE,), set()
    others = sorted(path.name for path in (*folder.glob("*.bin"), *folder.glob("*.pt*")))
    hint = (
        f" ({others[0]} is in pickle form, which can run code; --allow-pickle converts it with"
        " torch's safe loader)"
        if others
        else ""
    )
    raise SourceError(f"{folder} has no {SINGLE}{hint}")
