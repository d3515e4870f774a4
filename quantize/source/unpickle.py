"""Pickled weights, turned into safetensors once, in a child process that may load tensors only."""

import hashlib
import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

from quantize.children.process import run_child
from quantize.disk import require_room
from quantize.progress.console import Reporter
from quantize.source.files import INDEX, PICKLE_INDEX, PICKLE_SINGLE, SINGLE, listed_weights
from quantize.source.unpickle_child import convert
from runtimes.paths import cache_dir


def pickles(folder: Path) -> tuple[Path, ...]:
    """The pickled weight files of ``folder``, in order; none when it has none."""
    if (folder / PICKLE_INDEX).is_file():
        names = sorted(set(listed_weights(folder, PICKLE_INDEX).values()))
        return tuple(folder / name for name in names)
    single = folder / PICKLE_SINGLE
    return (single,) if single.is_file() else ()


def converted(folder: Path, progress: Reporter) -> Path:
    """A folder below the cache with the same model in safetensors; made when it is not there yet.

    Raises SourceError for a file that holds anything but tensors, DiskFullError, OutOfMemoryError.
    """
    files = pickles(folder)
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    base = cache_dir() / "unpickled" / digest.hexdigest()[:32]
    name = folder.resolve().name
    weights = base / "weights"
    if not weights.is_dir():
        require_room(base, sum(path.stat().st_size for path in files), "converting pickled weights")
        base.mkdir(parents=True, exist_ok=True)
        with (
            progress.stage("converting pickled weights to safetensors"),
            tempfile.TemporaryDirectory(prefix="work-", dir=base) as work,
        ):
            made = Path(work) / "weights"
            made.mkdir()
            run_child(
                partial(convert, files, made),
                what="converting pickled weights",
                work=Path(work),
                progress=progress,
            )
            made.replace(weights)
    model = base / name
    # The other files are links: they may be edited, the weights above may not.
    shutil.rmtree(model, ignore_errors=True)
    model.mkdir()
    for path in folder.iterdir():
        if path.is_file() and path not in files and path.name not in (INDEX, SINGLE, PICKLE_INDEX):
            (model / path.name).symlink_to(path.resolve())
    for path in weights.iterdir():
        os.link(path, model / path.name)
    return model
