"""From the work folder into the output folder, with a manifest that is right at every moment."""

import logging
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quantize.build.workspace import Workspace
from quantize.errors import UsageError
from quantize.manifest import NAME, FileEntry, Manifest, ModelInfo, load_manifest, write_manifest
from quantize.stages.verify import is_whole
from runtimes.errors import ModelError

_FIGURES = ("quality", "perplexity", "measurement")  # of a model, which files are compared with

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Publisher:
    """The manifest of an output folder, as it is on the disk once something is published."""

    space: Workspace
    manifest: Manifest

    def publish(self, entry: FileEntry, made: Path) -> None:
        """Move ``made`` out and list it. At no moment does the manifest describe another file than
        the one that is there: the old entry goes, the file moves, the new entry comes.

        The manifest that is to be comes first, in the work folder: when the run is killed between
        these steps, the next one sees from it what the file is that no manifest lists.
        """
        out, planned = self.space.out, self.manifest.with_entry(entry)
        write_manifest(self.space.root, planned)
        try:
            if self.manifest.entry(entry.recipe):
                write_manifest(out, self.manifest.without(entry.recipe), self.space.work)
            self.space.publish(made, entry.path)
            (self.space.root / NAME).replace(out / NAME)
        except BaseException:  # a full disk, Ctrl-C
            _finish_publishing(self.space)
            raise
        self.manifest = planned

    def update(self, entry: FileEntry) -> None:
        """List new figures of a file that stays as it is, in its place."""
        files = tuple(entry if e.recipe == entry.recipe else e for e in self.manifest.files)
        self.manifest = replace(self.manifest, files=files)
        write_manifest(self.space.out, self.manifest, self.space.work)

    def describe(self, **figures: Any) -> None:
        """The original's own ``figures``, fields of `ModelInfo`; written with the next file."""
        self.manifest = replace(self.manifest, model=replace(self.manifest.model, **figures))


def open_publisher(space: Workspace, model: ModelInfo) -> Publisher:
    """Go on with the manifest in ``space.out``, after ending what a killed run had begun.

    Raises UsageError when the folder holds builds of another model.
    """
    _finish_publishing(space)
    earlier = _read(space.out)
    if earlier is None:
        return Publisher(space, Manifest(model=model))
    if earlier.model.name != model.name:
        raise UsageError(
            f"{space.out} holds builds of {earlier.model.name}, not of {model.name}; use --out"
        )
    figures = {name: getattr(earlier.model, name) for name in _FIGURES}
    return Publisher(space, replace(earlier, model=replace(model, **figures)))


def _finish_publishing(space: Workspace) -> None:
    """A killed run was publishing when there is a planned manifest: list the file if it has moved
    out as a whole; remove it if it is the old one, which nothing lists any more."""
    planned = _read(space.root)
    (space.root / NAME).unlink(missing_ok=True)
    if planned is None or not planned.files:
        return
    entry = planned.files[-1]
    if is_whole(space.out, entry):
        logger.debug("%s was published by a run that was killed", entry.path)
        write_manifest(space.out, planned, space.work)
        return
    listed = _read(space.out)
    if listed is None or all(other.path != entry.path for other in listed.files):
        stray = space.out / entry.path
        if stray.is_dir():
            shutil.rmtree(stray)
        else:
            stray.unlink(missing_ok=True)


def _read(folder: Path) -> Manifest | None:
    """The manifest, if there is a readable one; a damaged one is written anew."""
    try:
        return load_manifest(folder)
    except ModelError:
        return None
