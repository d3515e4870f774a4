"""LoRA adapters beside a model, given as [NAME=]FILE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runtimes.errors import ModelError, RequestError
from runtimes.models.registry import backend_of

if TYPE_CHECKING:
    from runtimes.models.modelfile import ModelFile


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """An adapter that is loaded with a model; ``digest`` is the checksum of what it holds, by which
    its answers are told from another one's of the same name."""

    name: str
    path: Path
    digest: str


def name_and_path(given: str) -> tuple[str, Path]:
    """Name and path of an adapter, which is not read; without a name, the file's own."""
    name, separator, rest = given.partition("=")
    if separator and not Path(given).exists():
        return name, Path(rest).expanduser()
    path = Path(given).expanduser()
    return path.name.removesuffix(".gguf"), path


def checked(given: Sequence[str] | None) -> dict[str, Path]:
    """Files by name. Raises RequestError for a name that is none or is given twice, for too many
    and for a file that is not there."""
    from runtimes.checks import check_adapter

    found: dict[str, Path] = {}
    for one in given or ():
        name, path = name_and_path(one)
        if name in found:
            raise RequestError(f"--adapter: two are called {name!r}; name one, as in NAME=FILE")
        check_adapter(name, path, found)
        found[name] = path
    return found


def adapter_files(
    given: Sequence[str] | None, model: ModelFile, *, reproducible: bool = False
) -> tuple[AdapterFile, ...]:
    """Adapters to load beside ``model``. Reads the files for their checksums.

    Raises RequestError as ``checked`` and for reproducible answers, ModelError for a file that does
    not fit the model.
    """
    if given and reproducible:
        raise RequestError(
            "--reproducible: an adapter's last digits depend on the rows beside it; merge it"
            " instead: quantize --lora"
        )
    from quantize.disk import sha256_of

    found = []
    for name, path in checked(given).items():
        if (problem := backend_of(model).adapter_problem(model, path)) is not None:
            raise ModelError(f"--adapter: {problem}")
        found.append(AdapterFile(name, path, sha256_of(path)))
    return tuple(found)
