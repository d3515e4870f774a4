"""The folder that a server keeps its data in: one server each. Everything in it is written beside
its place and renamed, so that a kill at any moment leaves the old content or the new."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.batch.output.publish import sync_folder
from app.batch.output.wire import writing
from runtimes.errors import RequestError
from runtimes.machine.locks import Lock, holder_of
from runtimes.paths import data_dir

_MODE = 0o700  # prompts and answers are the user's own
_UNFINISHED = "."  # how names begin of what was being written or taken away


@contextmanager
def claimed(data: Path | None = None) -> Iterator[Path]:
    """``data``, or the usual folder, made if need be and kept from other servers within the block.

    Raises RequestError when another one has it or it cannot be written, OutOfMemoryError for a full
    disk.
    """
    data = data_dir() / "serve" if data is None else data
    with writing(data):
        data.mkdir(_MODE, parents=True, exist_ok=True)
    try:
        lock = Lock(data)
    except BlockingIOError as error:
        holder = holder_of(data)
        said = "another server" if holder is None else f"another server (process {holder})"
        raise RequestError(
            f"{data} is in use by {said}: its files and batches are there; "
            "name another folder with --data"
        ) from error
    with lock:
        yield data


def prepare(folder: Path) -> list[Path]:
    """The folders in ``folder``, which is made if need be, without what was never finished."""
    with writing(folder):
        folder.mkdir(_MODE, exist_ok=True)
        found = list(folder.iterdir())
        for path in found:
            if path.name.startswith(_UNFINISHED):
                shutil.rmtree(path, ignore_errors=True)
    return [path for path in found if path.is_dir() and not path.name.startswith(_UNFINISHED)]


def unfinished(folder: Path) -> Path:
    """Where a new ``folder`` is made; ``put`` renames it."""
    path = folder.with_name(_UNFINISHED + folder.name)
    path.mkdir(_MODE)
    return path


def put(made: Path, folder: Path) -> None:
    """Make what is in ``made`` last, as ``folder``. Its files are on the disk already."""
    sync_folder(made)
    made.rename(folder)
    sync_folder(folder.parent)


def remove(folder: Path) -> None:
    """Take a folder away, all at once."""
    gone = folder.with_name(_UNFINISHED + folder.name)
    folder.rename(gone)
    sync_folder(folder.parent)
    shutil.rmtree(gone, ignore_errors=True)
