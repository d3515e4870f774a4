"""From what the user names to a model that can be built from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from quantize.errors import UsageError
from quantize.hub.errors import NotOnHubError
from quantize.hub.names import parse_hub_name
from quantize.options import SourceOptions
from quantize.progress.console import Reporter
from quantize.source.download import download_model
from quantize.source.files import CONFIG
from quantize.source.folder import open_folder
from quantize.source.gguffile import open_gguf
from quantize.source.model import SourceModel
from runtimes.models.gguf_split import gguf_files


def open_source(options: SourceOptions | str, progress: Reporter | None = None) -> SourceModel:
    """The model that ``options`` names: a folder, a GGUF file of floats, or ORG/NAME on the hub.

    A model from the hub is downloaded, or found among the downloaded ones; a folder of that name
    comes first. Raises UsageError for what is not there or not allowed, SourceError for what is
    damaged or not fit, HubError for what the hub does not give, DiskFullError.
    """
    options = SourceOptions(options) if isinstance(options, str) else options
    progress = progress or Reporter()
    path = Path(options.model)
    if path.is_dir():
        _require_no_revision(options)
        if not (path / CONFIG).is_file() and (found := gguf_files(path)):
            raise UsageError(
                f"{path} has no {CONFIG}: it is not a Hugging Face model folder. To build from a"
                f" .gguf file of floats in it, name the file, such as {found[0]}"
            )
        return open_folder(path, options, progress)
    if path.is_file():
        _require_no_revision(options)
        if path.suffix.lower() == ".gguf":
            return open_gguf(path)
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


def _require_no_revision(options: SourceOptions) -> None:
    if options.revision is not None:
        raise UsageError(
            f"{options.model} is on this disk; a revision belongs to a model on the hub"
        )
