"""Inputs of tests: files of bytes, read as a job reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.batch.input.prompting import Prompting
from app.batch.input.source import Row, open_source
from app.batch.spec import InputOptions
from app.openai.task import Task


def write(folder: Path, data: bytes, name: str = "in.jsonl") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def read(path: Path | str, *, field: str | None = None, **options: Any) -> list[Row]:
    prompting = Prompting(InputOptions(field=field))
    with open_source(str(path), prompting=prompting, **options) as source:
        return list(source.rows())


def codes(rows: list[Row]) -> list[str | None]:
    """The code of each row's problem; None for a row that asks something."""
    return [row.problem and row.problem.code for row in rows]


def prompts(*texts: str) -> list[Task]:
    """What rows with these prompts ask."""
    return [Task((), (text,)) for text in texts]
