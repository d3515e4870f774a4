"""Records say everything the journal has, in the form that was asked for, and lose no field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.batch.input.source import Row
from app.batch.output.records import (
    JSONL,
    OPENAI,
    RecordForm,
    cells_of,
    columns_of,
    openai_index,
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


def test_flat_record_has_the_fields_beside_the_answer() -> None:
    fields = {"id": "a", "prompt": "2+2", "tags": [1]}
    said = {"response": "four", "finish_reason": "context", "usage": USAGE}
    record = FLAT.record(row(fields), ANSWER)
    own = {"id": "a", "index": 4, "prompt": "2+2", "tags": [1]}
    assert record == own | said | {"timings": {"ttft_s": 0.5}}
    assert list(record)[:4] == list(own)
    bare = replace(FLAT, fields=False).record(row(fields), ANSWER)
    assert list(bare) == ["id", "index", *said, "timings"]
    lasting = replace(FLAT, lasting=True).record(row(fields), ANSWER)
    assert "timings" not in lasting
    error = FLAT.record(row(), ERROR)["error"]
    assert error == {"code": "engine_error", "message": "line 9: it broke"}


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


@pytest.mark.parametrize(
    ("endpoint", "raw", "kind"),
    [
        (None, False, "chat.completion"),
        (None, True, "text_completion"),
        ("chat", True, "chat.completion"),
        ("completions", False, "text_completion"),
    ],
)
def test_openai_form(endpoint: Endpoint | None, raw: bool, kind: str) -> None:
    line = RecordForm(OPENAI, "m", raw).record(row(endpoint=endpoint), ANSWER)
    body = line["response"]["body"]
    assert (line["custom_id"], line["error"], openai_index(line)) == ("a", None, 4)
    assert (line["response"]["status_code"], body["object"], body["model"]) == (200, kind, "m")
    assert body["created"] == 1700000000
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    [choice] = body["choices"]
    assert choice["finish_reason"] == "length"  # what a full context is to OpenAI's clients
    text = choice["text"] if kind == "text_completion" else choice["message"]["content"]
    assert text == "four"


def test_an_openai_error_has_both_forms() -> None:
    for code, status in (
        ("engine_error", 500),
        ("worker_crash", 500),
        ("timeout", 504),
        ("invalid_json", 400),
    ):
        line = RecordForm(OPENAI, "m").record(row(), Answer(error=Problem(code, "m")))
        error = {"code": code, "message": "line 9: m"}
        assert (line["error"], line["response"]["status_code"]) == (error, status)
        assert line["response"]["body"]["error"].items() >= error.items()
    for name in ("batch_req_", "batch_req_x", "req_1", "", "batch_req_ab_-1", "batch_req_ab_²"):
        assert openai_index({"id": name}) is None, "it is not ours"


def test_columns_hold_every_cell() -> None:
    records = [
        {"id": "a", "index": 0, "x": 1, "y": None, "response": "r", "usage": {"n": 1}},
        {"id": 7, "index": 1, "x": 0.5, "y": [1], "z": 2**70, "error": {"code": "c"}},
    ]
    columns = columns_of(records)
    assert columns == {
        **dict.fromkeys(("id", "y", "z"), "json"),
        **dict.fromkeys(("index", "usage.n"), "integer"),
        **dict.fromkeys(("response", "error.code"), "text"),
        "x": "number",
    }
    assert list(columns)[-1] == "error.code"
    assert cells_of(records[0])["usage.n"] == 1
