"""Records say everything the journal has, in the form that was asked for, and lose no field."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.batch.input.source import Row
from app.batch.output.records import (
    JSONL,
    RecordForm,
)
from app.openai.answer import Answer
from app.openai.request import Endpoint
from app.openai.task import Task
from app.openai.validation import Problem

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "cached_tokens": 1}
TIMES: dict[str, Any] = {"timings": {"ttft_s": 0.5}, "created": 1700000000.25}
ANSWER = Answer("four", finish_reason="context", usage=USAGE, **TIMES)
ERROR = Answer(error=Problem("engine_error", "it broke"))
FLAT = RecordForm(JSONL, "m")


def row(fields: dict[str, Any] | None = None, endpoint: Endpoint | None = None) -> Row:
    task = Task((), ("2+2",))
    return Row(4, 9, "a", task, None, fields or {}, endpoint, "line 9", bytes(range(16)))


@given(
    st.dictionaries(
        st.sampled_from("id index response error usage input_id input_response x".split()),
        st.integers(),
    )
)
def test_no_field_of_the_input_is_lost_or_taken_for_the_answer(source: dict[str, Any]) -> None:
    for answer in (ANSWER, ERROR):
        record = FLAT.record(row(source), answer)
        assert (record["id"], record["index"]) == ("a", 4)
        assert record.get("response") == answer.response
        assert ("error" in record) == (answer.error is not None)
        for name, value in source.items():
            names = ["input_" * times + name for times in range(4)]
            assert any(record.get(n) == value for n in names), (name, record)
