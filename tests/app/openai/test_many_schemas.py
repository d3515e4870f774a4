"""Schemas and tools made at random, asked of a model, and its answers held against them."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from app.openai.answer import answer_of
from app.openai.prepare import prepare
from runtimes.engine.engine import Engine
from runtimes.request import FinishReason, Request
from runtimes.settings import RunnerSettings
from tests.app.openai.readers import DEFAULTS, chat
from tests.fuzz import forms

jsonschema = pytest.importorskip("jsonschema")
QUESTION = "Make a JSON object about Ana, who is 31 and lives in Rome."


def schema_of(random: Random) -> dict[str, Any]:
    """An object, sometimes with a definition that refers to itself."""
    names = random.sample(forms.NAMES, 3)
    properties = {name: forms.plain(random, 1) for name in names}
    made = {"type": "object", "properties": properties, "required": names[:2]}
    if random.random() < 0.3:
        ref = {"$ref": "#/$defs/größe"}
        node = {"type": "object", "properties": {"next": {"anyOf": [ref, {"type": "null"}]}}}
        made["$defs"] = {"größe": {**node, "required": ["next"], "additionalProperties": False}}
        properties["tree"] = ref
    return made | {"additionalProperties": False}


def asked(schema: dict[str, Any], number: int) -> dict[str, Any]:
    """For an answer in JSON, or a call."""
    if number % 2:
        form = {"name": "x", "strict": True, "schema": schema}
        return {"response_format": {"type": "json_schema", "json_schema": form}}
    tool = {"type": "function", "function": {"name": "ana", "parameters": schema}}
    return {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}


def test_what_finishes_follows(pebble_built):
    settings, running = RunnerSettings(slots=8, context=1024), []
    with Engine.load(pebble_built / "pebble-q8_0.gguf", settings) as engine:
        for number in range(9):
            schema = schema_of(Random(number))
            params = {"temperature": 1, "max_tokens": 300, "seed": number}
            messages = [{"role": "user", "content": QUESTION}]
            task = chat(messages=messages, **params, **asked(schema, number))
            said = prepare(task, engine, task.sampling or DEFAULTS)
            running.append((schema, said, engine.submit(Request(said.ids, said.params))))
        finished = 0
        for schema, said, stream in running:
            completion = stream.result()
            assert completion.finish_reason is not FinishReason.ERROR, completion.error
            if completion.finish_reason is not FinishReason.STOP:
                continue
            answer = answer_of([completion], said.form.parser)
            text = answer.response or ""
            for call in answer.tool_calls or ():
                text += call["function"]["arguments"]
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))
            finished += 1
    assert finished > 3
