"""Records as JSON lines, and as the lines of OpenAI's batch output files.

Source of the latter: the request output object of OpenAI's Batch API reference.
"""

import json
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from app.batch.input.row import Row
from app.batch.output.records import (
    OutputFormat,
    Record,
    RecordForm,
    Records,
    flat_record,
    located,
)
from app.batch.output.wire import dump_line
from app.openai.answer import Answer
from app.openai.embeddings import embeddings_body
from app.openai.response import answer_body, error_body
from app.openai.validation import Problem
from runtimes.errors import RequestError

_BUFFER = 1 << 20
_KEY_DIGITS = 24


def _write(path: Path, records: Records) -> None:
    with path.open("wb", buffering=_BUFFER) as file:
        file.writelines(map(dump_line, records()))


def _read(
    index_of: Callable[[Record], int | None], path: Path
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records in the order of their rows. Lines may be in the order in which rows finished:
    they are found by their offsets."""
    indexes, offsets = array("q"), array("q")
    with path.open("rb", buffering=_BUFFER) as file:
        offset = 0
        for line in file:
            record = json.loads(line)
            index = index_of(record) if isinstance(record, dict) else None
            if not isinstance(index, int):
                raise RequestError(f"{path} has a line without the index of its row")
            indexes.append(index)
            offsets.append(offset)
            offset += len(line)
        for at in sorted(range(len(indexes)), key=indexes.__getitem__):
            file.seek(offsets[at])
            yield indexes[at], json.loads(file.readline())


def _index(record: Record) -> int | None:
    return record.get("index")


def _openai_record(row: Row, answer: Answer, form: RecordForm) -> dict[str, Any]:
    """An error has both forms that readers look for: ``error``, and a response whose status is not
    200 and whose body is an error object."""
    name = f"{row.key.hex()[:_KEY_DIGITS]}_{row.index}"
    error = None
    if answer.error is not None:
        problem = Problem(answer.error.code, located(row, answer.error))
        error = {"code": problem.code, "message": problem.message}
        status, body = error_body(problem)
    else:
        status, body = 200, _body(row, answer, form, name)
    return {
        "id": f"batch_req_{name}",
        "custom_id": str(row.id),
        "response": {"status_code": status, "request_id": f"req_{name}", "body": body},
        "error": error,
    }


def _body(row: Row, answer: Answer, form: RecordForm, name: str) -> dict[str, Any]:
    if answer.embedding is not None:
        how = row.task.parts[0].embed
        vectors = answer.embeddings or [answer.embedding]
        tokens = (answer.usage or {}).get("prompt_tokens", 0)
        packed = how is not None and how.packed
        return embeddings_body(vectors, tokens, form.model, packed=packed)
    # The answer to a plain row is a text completion where no chat template was used.
    chat = row.endpoint == "chat" if row.endpoint else not form.raw
    adapter = row.task.adapter
    model = form.model if adapter is None else f"{form.model}:{adapter.name}"
    return answer_body(answer, "chat" if chat else "completions", name, model)


def openai_index(record: Record) -> int | None:
    """The row's index, from the ``id`` of an output line; None for an id that is not ours."""
    head, _, index = str(record.get("id")).rpartition("_")
    good = head.startswith("batch_req_") and index.isascii() and index.isdigit()
    return int(index) if good else None


JSONL = OutputFormat("jsonl", flat_record, _write, partial(_read, _index), index=_index)
OPENAI = OutputFormat(
    "openai", _openai_record, _write, partial(_read, openai_index), index=openai_index
)
