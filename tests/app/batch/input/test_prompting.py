"""From one parsed row to a task."""

from __future__ import annotations

from typing import Any

import pytest

from app.batch.input.prompting import lookup, row_id, task_of
from app.openai.task import Task
from app.openai.validation import MISSING, InputError


@pytest.mark.parametrize(
    ("row", "field", "task"),
    [
        ({"prompt": "hi"}, None, Task((), ("hi",))),
        ({"prompt": ["one", "two"]}, None, Task((), ("one", "two"))),
        ({"messages": [{"role": "user", "content": "hi"}]}, None, Task((), ("hi",))),
        (
            {"prompt": "ignored", "messages": [{"role": "user", "content": "hi"}]},
            None,
            Task((), ("hi",)),
        ),
        (
            {
                "messages": [
                    {"role": "system", "content": ""},
                    {"role": "user", "content": [{"type": "text", "text": "a"}]},
                    {"role": "assistant", "content": "b"},
                    {"role": "user", "content": "c"},
                ]
            },
            None,
            Task(
                (
                    {"role": "system", "content": ""},
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": "b"},
                ),
                ("c",),
            ),
        ),
        ({"turns": ["one", "two"]}, "turns", Task((), ("one", "two"))),
        ({"turns": ["one", "two"]}, "turns.1", Task((), ("two",))),
        (
            {"body": {"messages": [{"role": "user", "content": "x"}]}},
            "body.messages",
            Task((), ("x",)),
        ),
        ({"a.b": "dotted", "a": {"b": "nested"}}, "a.b", Task((), ("dotted",))),
    ],
)
def test_accepted(row: dict[str, Any], field: str | None, task: Task) -> None:
    assert task_of(row, field) == task


@pytest.mark.parametrize(
    ("row", "code", "words"),
    [
        ({}, "missing_field", "'prompt' or 'messages'"),
        ({"prompt": None}, "wrong_type", "not null"),
        ({"prompt": 3}, "wrong_type", "not a number"),
        ({"prompt": True}, "wrong_type", "not a boolean"),
        ({"prompt": {"text": "x"}}, "wrong_type", "not an object"),
        ({"prompt": ""}, "empty_prompt", "blank"),
        ({"prompt": " \n\t"}, "empty_prompt", "blank"),
        ({"prompt": []}, "empty_prompt", "empty list"),
        ({"prompt": ["a", " "]}, "empty_prompt", "prompt.1"),
        ({"prompt": ["a", 3]}, "wrong_type", "prompt.0"),
        ({"prompt": "\ud800"}, "invalid_unicode", "character 0"),
        ({"prompt": "ok \udfff"}, "invalid_unicode", "character 3"),
        ({"messages": [{"content": "x"}]}, "wrong_type", "role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "wrong_type", "'robot'"),
        ({"messages": [{"role": [], "content": "x"}]}, "wrong_type", "role"),
        ({"messages": [{"role": "user"}]}, "wrong_type", "nothing"),
        ({"messages": [{"role": "user", "content": None}]}, "wrong_type", "null"),
        ({"messages": [{"role": "user", "content": ""}]}, "empty_prompt", "blank"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]},
            "wrong_type",
            "have returned is missing",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "wrong_type",
            "only text",
        ),
        ({"messages": [["user", "x"]]}, "wrong_type", "a list"),
    ],
)
def test_refused(row: dict[str, Any], code: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        task_of(row, None)
    assert caught.value.problem.code == code
    assert words in caught.value.problem.message


@pytest.mark.parametrize("path", ["x", "a.x", "a.0", "list.2", "list.x", "list.-1", "list.²", ""])
def test_lookup_finds_nothing(path: str) -> None:
    assert lookup({"a": {"b": 1}, "list": [0, 1]}, path) is MISSING


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"custom_id": "c", "id": "i", "question_id": 1}, "c"),
        ({"id": 0}, 0),
        ({"id": "", "question_id": 81}, 81),
        ({"id": True}, 7),
        ({"id": 1e999}, 7),
        ({"id": [1]}, 7),
        ({}, 7),
    ],
)
def test_row_id(row: dict[str, Any], expected: str | int) -> None:
    assert row_id(row, 7) == expected
