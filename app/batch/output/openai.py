"""The lines of OpenAI's batch output files.

Source of the format: the request output object of OpenAI's Batch API reference.
"""

from typing import Any

from app.batch.input.row import Row
from app.batch.output.jsonl import read_lines, write_lines
from app.batch.output.records import OutputFormat, Record, RecordForm, located
from app.openai.answer import Answer
from app.openai.response import answer_body, error_body
from app.openai.task import Problem

_KEY_DIGITS = 24


def _record(row: Row, answer: Answer, form: RecordForm) -> dict[str, Any]:
    """An error has both forms that readers look for: ``error``, and a response whose status is not
    200 and whose body is an error object."""
    name = f"{row.key.hex()[:_KEY_DIGITS]}_{row.index}"
    error = None
    if answer.error is not None:
        problem = Problem(answer.error.code, located(row, answer.error))
        error = {"code": problem.code, "message": problem.message}
        status, body = error_body(problem)
    else:
        # The answer to a plain row is a text completion where no chat template was used.
        endpoint = row.endpoint or ("completions" if form.raw else "chat")
        status, body = 200, answer_body(answer, endpoint, name, form.model)
    return {
        "id": f"batch_req_{name}",
        "custom_id": str(row.id),
        "response": {"status_code": status, "request_id": f"req_{name}", "body": body},
        "error": error,
    }


def index_of(record: Record) -> int | None:
    """The row's index, from the ``id`` of an output line; None for an id that is not ours."""
    head, _, index = str(record.get("id")).rpartition("_")
    good = head.startswith("batch_req_") and index.isascii() and index.isdigit()
    return int(index) if good else None


OPENAI = OutputFormat(
    "openai", _record, write_lines, lambda path: read_lines(path, index_of), index=index_of
)
