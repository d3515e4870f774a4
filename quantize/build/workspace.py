"""Workspace of a build: a private work folder, and publishing in one step, with a manifest that is
right at every moment.

Everything is made in ``OUT/.quantize-work`` and moved out by a rename once all its checks have
passed, so whatever ends a run, OUT shows only finished files. A run that is done removes that
folder; one that failed, was interrupted or was killed leaves there the stages that it had finished.
"""

import contextlib
import ctypes
import errno
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from quantize.disk import files_of, full_disk_explained
from quantize.errors import BusyError, UsageError
from quantize.manifest import (
    NAME,
    FileEntry,
    Manifest,
    ModelInfo,
    is_whole,
    load_manifest,
    write_manifest,
)
from runtimes.errors import ModelError
from runtimes.machine.locks import Lock, another_run
from runtimes.untrusted import inside, remove

logger = logging.getLogger(__name__)

WORK = ".quantize-work"
# Of a model, which files are compared with.
_FIGURES = "quality perplexity measurement mixes onnx_mixes".split()
_RENAME_EXCHANGE = 2  # linux/fs.h
_AT_FDCWD = -100  # fcntl.h


class Workspace:
    """An output folder held by one run, with its work folder. A context manager.

    ``manifest``, once it is opened, is as it is on the disk when something is published.
    """

    manifest: Manifest

    def __init__(self, out: Path) -> None:
        self.out = out
        self.root = out / WORK  # holds the two others
        self.work = self.root / "scratch"  # what is unfinished; gone when the run ends in any way
        self.stages = self.root / "stages"  # what is finished
        self._lock: Lock | None = None
        self._created = False

    def __enter__(self) -> Self:
        """Take the folder. Raises BusyError while another run holds it."""
        self._created = not self.out.exists()
        self.out.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = Lock(self.out)  # the folder itself, so that no file of a lock stays
        except BlockingIOError as error:
            raise BusyError(
                f"{another_run(self.out)} writes into {self.out}; wait, or use --out"
            ) from error
        try:
            self._begin()
        except BaseException:
            self._lock.close()
            raise
        return self

    def _begin(self) -> None:
        """Make the work folder ready. What is there may have come with the model, from anybody:
        raises UsageError for links, through which files elsewhere would be removed."""
        for name in (WORK, *(f"{WORK}/{one}" for one in (self.stages.name, NAME))):
            self.place(name)
        # We hold the lock, so whoever left this is dead.
        self._created |= self.root.exists() and [*self.out.iterdir()] == [self.root]
        for path in self.root.glob("*"):
            if path not in (self.stages, self.root / NAME):
                self._remove(f"{WORK}/{path.name}")
        self.work.mkdir(parents=True)
        self.stages.mkdir(exist_ok=True)

    def place(self, name: str) -> Path:
        """The path of ``name`` in OUT, to be written or removed. Raises UsageError where that would
        be outside of OUT, or through a link."""
        try:
            return inside(self.out, name, f"the output folder {self.out}", UsageError)
        except UsageError as error:
            raise UsageError(f"{error}; remove it, or use another --out") from error

    def _remove(self, name: str) -> None:
        self.place(name)
        remove(self.out, name, f"the output folder {self.out}", UsageError)

    def __exit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        """Remove the work folder, but for stages that the next run can go on from. OUT goes too
        when nothing was published in it."""
        with contextlib.suppress(OSError):  # the next run removes what cannot be removed now
            self._remove(f"{WORK}/{self.work.name}")
            if kind is None or not any(self.stages.iterdir()):
                self._remove(WORK)
        if self._created:
            with contextlib.suppress(OSError):  # not empty: something was published
                self.out.rmdir()
        assert self._lock is not None
        self._lock.close()

    def open(self, model: ModelInfo) -> None:
        """Go on with the manifest in OUT, after ending what a killed run had begun.

        Raises UsageError when the folder holds builds of another model.
        """
        self._finish_publishing()
        self.manifest = Manifest(model=model)
        if (earlier := _manifest_in(self.out)) is not None:
            if earlier.model.name != model.name:
                raise UsageError(
                    f"{self.out} holds builds of {earlier.model.name}, not of {model.name};"
                    " use --out"
                )
            figures = {name: getattr(earlier.model, name) for name in _FIGURES}
            self.manifest = replace(earlier, model=replace(model, **figures))

    def publish(self, entry: FileEntry, made: Path) -> None:
        """Move ``made`` out and list it. At no moment does the manifest describe another file than
        the one that is there: the old entry goes, the file moves, the new entry comes.

        The manifest that is to be comes first, in the work folder: when the run is killed between
        these steps, the next one sees from it what the file is that no manifest lists.
        """
        planned = self.manifest.with_entry(entry)
        write_manifest(self.root, planned)
        try:
            if self.manifest.entry(entry.recipe):
                write_manifest(self.out, self.manifest.without(entry.recipe), self.work)
            self.move_out(made, entry.path)
            (self.root / NAME).replace(self.out / NAME)
        except BaseException:  # a full disk, Ctrl-C
            self._finish_publishing()
            raise
        self.manifest = planned

    def move_out(self, made: Path, name: str) -> None:
        """Move a finished file or folder into OUT, in place of an older one, in one step."""
        target = self.place(name)
        _sync(made)
        if made.is_dir() and target.is_dir():
            _exchange(made, target)  # the old folder is now in the work folder, which will go
        else:
            if made.is_dir() is not target.is_dir() and target.exists():
                self._remove(name)
            made.replace(target)

    def update(self, entry: FileEntry) -> None:
        """List new figures of a file that stays as it is, in its place."""
        files = tuple(entry if e.recipe == entry.recipe else e for e in self.manifest.files)
        self.manifest = replace(self.manifest, files=files)
        write_manifest(self.out, self.manifest, self.work)

    def describe(self, **figures: Any) -> None:
        """The original's own ``figures``, fields of `ModelInfo`; written with the next file."""
        self.manifest = replace(self.manifest, model=replace(self.manifest.model, **figures))

    def _finish_publishing(self) -> None:
        """A killed run was publishing when there is a planned manifest: list the file if it has
        moved out as a whole; remove it if it is the old one, which nothing lists any more."""
        planned = _manifest_in(self.root)
        self._remove(f"{WORK}/{NAME}")
        if planned is None or not planned.files:
            return
        entry = planned.files[-1]
        if entry.path.split("/")[0] in (WORK, NAME):
            return
        if is_whole(self.out, entry):
            logger.debug("%s was published by a run that was killed", entry.path)
            write_manifest(self.out, planned, self.work)
            return
        listed = _manifest_in(self.out)
        if listed is None or all(other.path != entry.path for other in listed.files):
            self._remove(entry.path)


def _manifest_in(folder: Path) -> Manifest | None:
    """The manifest, if there is a readable one; a damaged one is written anew."""
    try:
        return load_manifest(folder)
    except ModelError as error:
        if (folder / NAME).exists():
            logger.warning("%s; it is not used", error)
        return None


def disk_errors(out: Path) -> contextlib.AbstractContextManager[None]:
    """Turn a full or read-only disk into an error that says so."""
    return full_disk_explained(out, "choose another --out", "what is finished is kept")


def _exchange(one: Path, other: Path) -> None:
    """Swap two folders: in one step on Linux (renameat2), else by two renames."""
    library = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
    rename = getattr(library, "renameat2", None)
    if rename is not None:
        paths = os.fsencode(one), os.fsencode(other)
        if rename(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
            return
        if ctypes.get_errno() not in (errno.ENOSYS, errno.EINVAL):
            raise OSError(ctypes.get_errno(), f"cannot replace {other}")
    aside = one.with_name(f"{one.name}.old")
    other.rename(aside)
    try:
        one.rename(other)
    except OSError:
        aside.rename(other)
        raise


def _sync(path: Path) -> None:
    """Have the bytes on the disk before the name points at them."""
    for file in files_of(path):
        with file.open("rb+") as opened:  # Windows wants it writable
            os.fsync(opened.fileno())
