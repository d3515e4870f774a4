"""A model in several GGUF files, as llama.cpp's gguf-split names and marks them.

NAME-00001-of-00003.gguf has the metadata; each part says in ``split.no`` (from 0) and
``split.count`` which one it is. llama.cpp is given the first and finds the others by their names.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from runtimes.errors import ModelError
from runtimes.models.gguf import GgufHeader, read_header

_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def gguf_files(folder: Path) -> list[Path]:
    """The .gguf files of a folder by name, of a split model only the first."""
    names = ((path, _NAME.fullmatch(path.name)) for path in sorted(folder.glob("*.gguf")))
    return [path for path, name in names if name is None or int(name[2]) == 1]


def named_parts(path: Path) -> tuple[Path, ...]:
    """All parts of the model of which ``path`` is one by its name; else this file alone."""
    name = _NAME.fullmatch(path.name)
    if name is None:
        return (path,)
    numbers = range(1, int(name[3]) + 1)
    return tuple(path.with_name(f"{name[1]}-{number:05}-of-{name[3]}.gguf") for number in numbers)


def read_parts(path: Path) -> tuple[GgufHeader, tuple[Path, ...]]:
    """The header of a model with the tensors of all its parts, and the parts.

    Raises ModelError when ``path`` is not the first, or when one is missing or damaged.
    """
    header = read_header(path)
    count = _number(header, "split.count")
    if count < 2:
        return header, (path,)
    parts = named_parts(path)
    if len(parts) != count:
        raise ModelError(
            f"{path} is part {_number(header, 'split.no') + 1} of {count} of a split model, and "
            f"llama.cpp finds the others by name: call it NAME-0000N-of-{count:05}.gguf again"
        )
    if _number(header, "split.no"):
        raise ModelError(f"{path} is a later part of a split model: give the first, {parts[0]}")
    if missing := [part.name for part in parts if not part.is_file()]:
        raise ModelError(
            f"{path} is the first of {count} parts; beside it there is no {', no '.join(missing)}: "
            "download or build the model again"
        )
    headers = [header, *_others(parts)]
    tensors = tuple(tensor for one in headers for tensor in one.tensors)
    if len(tensors) != header.metadata.get("split.tensors.count", len(tensors)):
        raise ModelError(f"the {count} parts of {path} do not belong together")
    return replace(header, tensors=tensors), parts


def _others(parts: tuple[Path, ...]) -> Iterator[GgufHeader]:
    for number, part in enumerate(parts[1:], 1):
        header = read_header(part)
        if (_number(header, "split.no"), _number(header, "split.count")) != (number, len(parts)):
            raise ModelError(f"{part} is not what its name says: another part, or of another model")
        yield header


def _number(header: GgufHeader, key: str) -> int:
    return int(header.metadata.get(key, 0))
