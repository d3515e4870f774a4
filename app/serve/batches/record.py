"""One batch: what is kept of it, in ``batch.json``, and OpenAI's object of it."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from app.batch.journal.lines import sealed, sealed_line
from app.batch.output.publish import sync_folder
from app.openai.request import ENDPOINTS

RECORD = "batch.json"
Status = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "cancelling", "cancelled"
]
Ending = Literal["completed", "failed", "cancelled"]
ENDED: frozenset[Status] = frozenset({"completed", "failed", "cancelled"})


class DamagedRecordError(Exception):
    """``batch.json`` is not what was written."""


@dataclass(frozen=True, slots=True)
class BatchError:
    """Why a batch failed, or waits. ``line`` is of its input."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Counts:
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
    counts: Counts = field(default_factory=Counts)
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
    Raises OSError."""
    partial = folder / f"{RECORD}.partial"
    with partial.open("wb") as file:
        file.write(sealed_line(asdict(batch)))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / RECORD)
    sync_folder(folder)


def read_record(folder: Path) -> Batch:
    """Raises DamagedRecordError."""
    try:
        line = (folder / RECORD).read_bytes()
    except OSError as error:
        raise DamagedRecordError(error.strerror or str(error)) from error
    if not sealed(line):
        raise DamagedRecordError("its checksum is wrong")
    said = json.loads(line)
    del said["crc"]
    try:
        said["counts"] = Counts(**said["counts"])
        said["errors"] = tuple(BatchError(**one) for one in said["errors"])
        return Batch(**said)
    except (TypeError, KeyError) as error:
        raise DamagedRecordError(f"another version of Ingot wrote it ({error})") from error


def damaged_batch(folder: Path, error: DamagedRecordError) -> Batch:
    """What is shown of a batch without a record: nothing of it is touched."""
    at = folder.stat().st_mtime
    said = f"{folder / RECORD} is damaged: {error}. What was answered is in the journal beside it"
    errors = (BatchError("damaged_record", said),)
    return Batch(
        folder.name, at, next(iter(ENDPOINTS)), "", status="failed", at={"failed": int(at)},
        errors=errors,
    )  # fmt: skip
