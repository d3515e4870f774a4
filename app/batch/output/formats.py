"""The forms that an output can have, and a row's record in each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from app.batch.input.source import Row
from app.batch.input.survey import Survey
from app.batch.output.openai import openai_record
from app.batch.output.records import flat_record, lasting

OutputFormat = Literal["jsonl", "openai", "csv", "parquet"]

_SUFFIXES: dict[str, OutputFormat] = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}


@dataclass(frozen=True, slots=True)
class RecordForm:
    """How a row and its answer become a record. ``model`` is what OpenAI's form calls it, ``raw``
    whether prompts go in without a chat template, ``fields`` whether flat records have the fields
    of the input, ``lasting`` whether they leave out what another run of the job would not repeat.
    """

    format: OutputFormat
    model: str
    raw: bool = False
    fields: bool = True
    lasting: bool = False

    def record(self, row: Row, answer: Mapping[str, Any], key: bytes) -> dict[str, Any]:
        """The record, ready for JSON."""
        if self.lasting:
            answer = lasting(answer)
        if self.format == "openai":
            return openai_record(row, answer, key, model=self.model, raw=self.raw)
        return flat_record(row, answer, fields=self.fields)


def suffix_format(path: Path) -> OutputFormat:
    """What a file's name says of its form; JSON lines if nothing."""
    return _SUFFIXES.get(path.suffix.lower(), "jsonl")


def output_format(wanted: OutputFormat | None, out: Path | None, found: Survey) -> OutputFormat:
    """``wanted``, else what the name of ``out`` says, else what the rows are: OpenAI's batch lines
    are answered by such lines."""
    if wanted is not None:
        return wanted
    named = suffix_format(out) if out is not None else "jsonl"
    if named != "jsonl":
        return named
    return "openai" if 2 * found.requests > found.rows else "jsonl"
