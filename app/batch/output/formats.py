"""The output formats, and which of them a job has."""

from pathlib import Path

from app.batch.input.scan import InputScan
from app.batch.output.lines import JSONL, OPENAI
from app.batch.output.records import OutputFormat
from app.batch.output.tables import CSV, PARQUET

FORMATS = {format.name: format for format in (JSONL, OPENAI, CSV, PARQUET)}


def suffix_format(path: Path) -> OutputFormat:
    """What a file's name says of its format; JSON lines if nothing."""
    suffix = path.suffix.lower()
    return next((format for format in FORMATS.values() if suffix in format.suffixes), JSONL)


def output_format(wanted: str, out: Path | None, found: InputScan) -> OutputFormat:
    """``wanted`` unless it is auto, else what the name of ``out`` says, else what the rows are, all
    shards' together: OpenAI's batch lines are answered by such lines."""
    if wanted != "auto":
        return FORMATS[wanted]
    named = suffix_format(out) if out is not None else JSONL
    return OPENAI if named is JSONL and 2 * found.requests > found.input_rows else named
