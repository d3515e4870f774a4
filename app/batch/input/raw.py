"""A row as it was read, whatever kind of file it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from app.batch.input.tasks import RowProblem

Format = Literal["jsonl", "text", "csv", "parquet", "folder"]


@dataclass(frozen=True, slots=True)
class Raw:
    """``line`` counts from 1: lines of a text file, rows of a Parquet file, files of a folder. With
    a ``problem``, ``fields`` are those that could be read still."""

    line: int
    fields: Mapping[str, Any] = field(default_factory=dict)
    problem: RowProblem | None = None
