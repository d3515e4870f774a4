"""Batches as they are kept: the record of one (``batch.json``), OpenAI's object of it, and the
data folder of a server.

A record may have been written by an earlier version, damaged, or made by somebody else: what is
read of it is checked field by field, and nothing is written that could not be read again.
"""

import errno
import logging
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from app.batch.journal.lines import sealed, sealed_line
from app.batch.output.records import writing
from app.openai.request import ENDPOINTS
from quantize.disk import sync_folder
from runtimes.errors import RequestError
from runtimes.machine.locks import Lock, holder_of
from runtimes.paths import data_dir
from runtimes.untrusted import inside, is_link, parse_json, visible

logger = logging.getLogger(__name__)

# The folder that a server keeps its data in: one server each. Everything in it is written beside
# its place and renamed, so that a kill at any moment leaves the old content or the new.
#
# Others may have put anything there: only names that a server makes are read or removed, only
# plain files are opened, and no link is followed.


FILES, BATCHES = "files", "batches"  # folders in it
FILE_ID = re.compile(r"file-[0-9a-f]{24}")
BATCH_ID = re.compile(r"batch_[0-9a-f]{24}")
_MODE = 0o700  # prompts and answers are the user's own
_UNFINISHED = "."  # how names begin of what was being written or taken away
_OF_SYSTEMS = frozenset({"lost+found", ".DS_Store", "Thumbs.db", "desktop.ini"})
_MOST_TOLD = 5


@contextmanager
def claimed(data: Path | None = None) -> Iterator[Path]:
    """``data``, or the usual folder, made if need be and kept from other servers within the block.

    Raises RequestError when another one has it, it cannot be written, or it is a folder of
    something else; OutOfMemoryError for a full disk.
    """
    data = data_dir() / "serve" if data is None else data
    with writing(data):
        data.mkdir(_MODE, parents=True, exist_ok=True)
        stranger = _stranger(data)
    if stranger is not None:
        raise RequestError(
            f"{data} is no data folder of ingot serve: it has"
            f" {visible(str(stranger.relative_to(data)))}. Name an empty folder with --data, or one"
            " that is not there yet"
        )
    with _locked(data):
        yield data


def _locked(data: Path) -> Lock:
    try:
        return Lock(data)
    except BlockingIOError as error:
        holder = holder_of(data)
        said = "another server" if holder is None else f"another server (process {holder})"
        raise RequestError(
            f"{data} is in use by {said}: its files and batches are there; "
            "name another folder with --data"
        ) from error
    except OSError as error:
        raise RequestError(f"{data} cannot be locked: {error.strerror or error}") from error


def _stranger(data: Path) -> Path | None:
    """What is in ``data`` though no server has used it; None for a folder of a server, or an empty
    one."""
    found = []
    for path in data.iterdir():
        if path.name in (FILES, BATCHES) and is_folder(path):
            for entry in path.iterdir():
                name = entry.name.removeprefix(_UNFINISHED)
                if FILE_ID.fullmatch(name) or BATCH_ID.fullmatch(name):
                    return None
                found.append(entry)
        else:
            found.append(path)
    return min((path for path in found if path.name not in _OF_SYSTEMS), default=None)


def prepare(folder: Path, own: re.Pattern[str]) -> list[Path]:
    """The folders in ``folder`` that are called as ``own`` says. ``folder`` is made if need be, and
    what was never finished is removed; anything else is left alone.

    Raises RequestError or OutOfMemoryError where ``folder`` is a link or cannot be written.
    """
    found, strangers = [], []
    with writing(folder):
        inside(folder.parent, folder.name, "the data folder", RequestError)
        folder.mkdir(_MODE, exist_ok=True)
        for path in sorted(folder.iterdir()):
            unfinished = path.name.startswith(_UNFINISHED)
            if not (own.fullmatch(path.name.removeprefix(_UNFINISHED)) and is_folder(path)):
                strangers.append(path)
            elif unfinished:
                shutil.rmtree(path, ignore_errors=True)
            else:
                found.append(path)
    for path in strangers[:_MOST_TOLD]:
        logger.warning("%s is nothing that a server made; it is left alone", visible(str(path)))
    if len(strangers) > _MOST_TOLD:
        more = len(strangers) - _MOST_TOLD
        logger.warning("%s: %d more are left alone", visible(str(folder)), more)
    return found


def is_folder(path: Path) -> bool:
    """Whether ``path`` is a folder itself: a link to one is not."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode) and not is_link(path)
    except OSError:
        return False


def open_plain(path: Path) -> BinaryIO:
    """``path`` for reading. Raises OSError, also for what is no plain file: a link would lead out
    of the folder, and a pipe or a device never end."""
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):  # a system may lack one of them
        flags |= getattr(os, name, 0)
    if is_link(path):
        raise OSError(errno.ELOOP, "it is a link")
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def require_plain(path: Path, name: str) -> bool:
    """Whether there is a file ``path``, which messages call ``name``. Raises RequestError for what
    is no plain file."""
    try:
        open_plain(path).close()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RequestError(f"{name} cannot be read: {error.strerror or error}") from error
    return True


def replace_plain(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of what the file ``path`` holds: a reader finds the old content or
    the new, also after a power cut. Raises OSError."""
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    with partial.open("xb") as file:  # follows no link
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)


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


RECORD = "batch.json"
MOST_MODEL = 256  # characters of a model's name
_MOST_BYTES = 2**20
_MOST_MESSAGE = 1000  # characters that are written; an earlier version wrote longer ones
_MOST_TEXT = 20_000  # characters that are read
_MOST_ITEMS = 100  # errors, or pairs of an object
_MOST_NUMBER = 2**53
Status = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "cancelling", "cancelled"
]
Ending = Literal["completed", "failed", "cancelled"]
ENDED: frozenset[Status] = frozenset({"completed", "failed", "cancelled"})


class DamagedRecordError(ValueError):
    """``batch.json`` is not what a server writes."""


@dataclass(frozen=True, slots=True)
class BatchError:
    """Why a batch failed, or waits. ``line`` is of its input. Errors are made by ``of``, whose
    message may quote anything."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None

    @classmethod
    def of(
        cls,
        code: str,
        message: str,
        line: int | None = None,
        param: str | None = None,
        most: int = _MOST_MESSAGE,
    ) -> "BatchError":
        """With at most so many characters of ``message``, all of which can be shown and stored."""
        return cls(code, visible(message[:most])[:most], line, param)


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Rows of a batch."""

    total: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch at one moment."""

    id: str
    created: float  # Unix seconds
    endpoint: str
    input_file_id: str
    metadata: Mapping[str, str] | None = None
    status: Status = "validating"
    at: Mapping[str, int] = field(default_factory=dict)  # when it first had each status
    model: str | None = None
    counts: BatchCounts = field(default_factory=BatchCounts)
    errors: tuple[BatchError, ...] = ()
    # Once this is known no row is asked any more, and its files have their names: whatever ends the
    # server while they are written, they are written once.
    ending: Ending | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    usage: Mapping[str, int] | None = None
    kept: bool = False  # its journal stays, since its files could not be written

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.status in ENDED

    def now(self, status: Status, **changes: Any) -> "Batch":
        """The batch with another status, from this moment on."""
        at = {**self.at, status: int(time.time())}
        return replace(self, status=status, at=at, **changes)

    def as_json(self) -> dict[str, Any]:
        """OpenAI's batch object."""
        at, ended, usage = self.at, self.ended, self.usage
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": {"object": "list", "data": [asdict(one) for one in self.errors]}
            if self.errors
            else None,
            "input_file_id": self.input_file_id,
            "completion_window": "24h",
            "status": self.status,
            "output_file_id": self.output_file_id if ended else None,
            "error_file_id": self.error_file_id if ended else None,
            "created_at": int(self.created),
            "in_progress_at": at.get("in_progress"),
            "expires_at": None,
            "finalizing_at": at.get("finalizing"),
            "completed_at": at.get("completed"),
            "failed_at": at.get("failed"),
            "expired_at": None,
            "cancelling_at": at.get("cancelling"),
            "cancelled_at": at.get("cancelled"),
            "request_counts": asdict(self.counts),
            "metadata": None if self.metadata is None else dict(self.metadata),
            "usage": None if usage is None else _usage(usage),
        }


def _usage(usage: Mapping[str, int]) -> dict[str, Any]:
    asked, answered = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    return {
        "input_tokens": asked,
        "input_tokens_details": {
            "cached_tokens": usage.get("cached_tokens", 0),
            "cache_write_tokens": 0,
        },
        "output_tokens": answered,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": asked + answered,
    }


def write_record(folder: Path, batch: Batch) -> None:
    """Replace ``batch.json``: a reader finds the old record or the new, also after a power cut.
    Raises OSError; DamagedRecordError where the record could not be read again."""
    line = sealed_line(asdict(batch))
    _parsed(line, batch.id)
    replace_plain(folder / RECORD, line)


def read_record(folder: Path) -> Batch:
    """Raises DamagedRecordError."""
    try:
        with open_plain(folder / RECORD) as file:
            line = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise DamagedRecordError(error.strerror or type(error).__name__) from error
    return _parsed(line, folder.name)


def _parsed(line: bytes, identity: str) -> Batch:
    if len(line) > _MOST_BYTES:
        raise DamagedRecordError(f"it has more than {_MOST_BYTES:,} bytes")
    if not sealed(line):
        raise DamagedRecordError("its checksum is wrong")
    try:
        said = parse_json(line, _MOST_BYTES)
    except ValueError as error:
        raise DamagedRecordError(str(error)) from error
    del said["crc"]
    unknown = said.keys() - _CHECKS.keys()
    if unknown or not said.keys() >= _NEEDED:
        name = min(unknown or _NEEDED - said.keys())
        what = "has" if unknown else "lacks"
        raise DamagedRecordError(f"another version of Ingot wrote it: it {what} {name[:60]!r}")
    wrong = [name for name, value in said.items() if not _CHECKS[name](value)]
    if said["id"] != identity:
        wrong.insert(0, "id")  # by which its folder is found
    if said.get("status") in ("in_progress", "finalizing") and said.get("model") is None:
        wrong.append("model")
    if wrong:
        raise DamagedRecordError(f"its {wrong[0]!r} is not one that a server writes")
    if "counts" in said:
        said["counts"] = BatchCounts(**said["counts"])
    if "errors" in said:
        said["errors"] = tuple(BatchError(**one) for one in said["errors"])
    return Batch(**said)


_Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MOST_TEXT


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST_NUMBER


def _none_or(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _one_of(known: Collection[str]) -> _Check:
    return lambda value: isinstance(value, str) and value in known


def _called(pattern: re.Pattern[str]) -> _Check:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _pairs(key: _Check, value: _Check) -> _Check:
    def check(found: Any) -> bool:
        return (
            isinstance(found, dict)
            and len(found) <= _MOST_ITEMS
            and all(key(name) and value(one) for name, one in found.items())
        )

    return check


def _object(checks: Mapping[str, _Check]) -> _Check:
    def check(found: Any) -> bool:
        return (
            isinstance(found, dict)
            and found.keys() == checks.keys()
            and all(checks[name](value) for name, value in found.items())
        )

    return check


def _list(check: _Check) -> _Check:
    return lambda found: (
        isinstance(found, list) and len(found) <= _MOST_ITEMS and all(map(check, found))
    )


_CHECKS: Mapping[str, _Check] = {
    "id": _called(BATCH_ID),
    "created": lambda value: type(value) in (int, float) and 0 <= value <= _MOST_NUMBER,
    "endpoint": _one_of(ENDPOINTS),
    "input_file_id": _called(FILE_ID),
    "metadata": _none_or(_pairs(_text, _text)),
    "status": _one_of(get_args(Status)),
    "at": _pairs(_one_of(get_args(Status)), _whole),
    "model": _none_or(_text),
    "counts": _object(dict.fromkeys(("total", "completed", "failed"), _whole)),
    "errors": _list(
        _object(
            {"code": _text, "message": _text, "line": _none_or(_whole), "param": _none_or(_text)}
        )
    ),
    "ending": _none_or(_one_of(get_args(Ending))),
    "output_file_id": _none_or(_called(FILE_ID)),
    "error_file_id": _none_or(_called(FILE_ID)),
    "usage": _none_or(_pairs(_text, _whole)),
    "kept": lambda value: isinstance(value, bool),
}
_NEEDED = frozenset({"id", "created", "endpoint", "input_file_id"})


def damaged_batch(folder: Path, error: DamagedRecordError) -> Batch:
    """What is shown of a batch without a record: nothing of it is touched."""
    try:
        at = max(0.0, folder.stat().st_mtime)
    except OSError:
        at = time.time()
    said = f"its {RECORD} is damaged: {error}. What was answered is in the journal beside it"
    errors = (BatchError.of("damaged_record", said),)
    return Batch(
        folder.name, at, next(iter(ENDPOINTS)), "", status="failed", at={"failed": int(at)},
        errors=errors,
    )  # fmt: skip


INPUT = "input.jsonl"


OUT = "out.jsonl"
