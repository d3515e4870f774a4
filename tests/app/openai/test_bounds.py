"""What a body or a row may not be: each is refused by the name of its field, and quickly."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from app.openai.anthropic import messages_task
from app.openai.completions import completion_tasks
from app.openai.embeddings import embedding_task
from app.openai.prepare import form_prompt
from app.openai.request import _changed, body_task
from app.openai.responses import response_task
from app.openai.validation import InputError
from runtimes.request import SamplingParams
from tests.runtimes.test_grammars import chain_of_definitions, chain_of_rules

USER = {"role": "user", "content": "Hello"}
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


def nested(levels: int, *, lists: bool = False) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if lists else {"a": value}
    return value


def chat(**fields: Any) -> Callable[[], object]:
    return lambda: body_task({"messages": [USER], **fields}, "chat", SamplingParams())


def function(**more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **more}}


def called(arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [USER, answer, {"role": "tool", "tool_call_id": "1", "content": "x"}]


def messages(**fields: Any) -> Callable[[], object]:
    body = {"messages": [USER], "max_tokens": 9, **fields}
    return lambda: messages_task(body, SamplingParams())


TEXT_SCHEMA = '{"a":' * 700 + "1" + "}" * 700
CASES: dict[str, tuple[Callable[[], object], str]] = {
    "unknown key of a tool": (chat(tools=[function(x=nested(480))]), "body is nested too deeply"),
    "less deep": (chat(tools=[function(x=nested(70))]), "tools.0.function is nested too deeply"),
    "lists": (chat(tools=[function(x=nested(70, lists=True))]), "tools.0.function is nested"),
    "description": (chat(tools=[function(description="x" * 300_000)]), "tools.0.function has more"),
    "many keys": (chat(tools=[function(x=[0] * 30_000)]), "tools.0.function has more than 20,000"),
    "arguments as text": (
        lambda: body_task({"messages": called(json.dumps(nested(300)))}, "chat", SamplingParams()),
        "arguments is nested too deeply",
    ),
    "arguments as object": (
        lambda: body_task({"messages": called(nested(300))}, "chat", SamplingParams()),
        "body is nested too deeply",
    ),
    "schema as text": (chat(structured_outputs={"json": TEXT_SCHEMA}), "nested too deeply"),
    "schema of a response": (
        chat(
            response_format={
                "type": "json_schema",
                "json_schema": {"schema": json.loads(chain_of_definitions(1000))},
            }
        ),
        "response_format.json_schema.schema: the JSON schema cannot be used",
    ),
    "parameters": (
        chat(tools=[function(parameters=json.loads(chain_of_definitions(1000)))]),
        "tools.0.function.parameters: the JSON schema cannot be used",
    ),
    "grammar": (chat(structured_outputs={"grammar": chain_of_rules(3000)}), "above 2,048"),
    "choices": (
        chat(structured_outputs={"choice": [str(n) for n in range(200_000)]}),
        "structured_outputs.choice has 200,000 choices",
    ),
    "stops": (chat(stop=["x" * 9000]), "stop has 9,000 characters"),
    "ignored": (chat(metadata=nested(500)), "body is nested too deeply"),
    "Anthropic's tools": (
        messages(tools=[{"name": "f", "input_schema": json.loads(chain_of_definitions(1000))}]),
        "tools.0.input_schema",
    ),
    "Anthropic's stops": (messages(stop_sequences=["x" * 9000]), "9,000 characters"),
    "Anthropic's depth": (messages(metadata=nested(500)), "body is nested too deeply"),
    "Responses": (
        lambda: response_task({"input": "x", "metadata": nested(500)}, SamplingParams()),
        "body is nested too deeply",
    ),
    "completions": (
        lambda: completion_tasks({"prompt": "x", "metadata": nested(500)}, SamplingParams()),
        "body is nested too deeply",
    ),
    "prompts times samples": (
        lambda: completion_tasks({"prompt": ["x"] * 200, "n": 2}, SamplingParams(), served=False),
        "prompt and n: 200 times 2 answers",
    ),
    "embeddings": (
        lambda: embedding_task({"input": "x", "user": nested(500)}),
        "body is nested too deeply",
    ),
}


@pytest.mark.parametrize(("read", "said"), CASES.values(), ids=CASES)
def test_a_body_beyond_the_bounds_is_refused_by_name(read: Callable[[], object], said: str) -> None:
    with pytest.raises(InputError) as caught:
        read()
    assert said in caught.value.problem.message


def test_many_turns_of_the_user_become_one_in_time() -> None:
    """Each was once copied with all before it: gigabytes for a body of a few megabytes."""
    long = {"role": "user", "content": "x" * 4_000_000}
    begun = time.monotonic()
    task = messages_task({"messages": [long, *[USER] * 4000], "max_tokens": 1}, SamplingParams())
    assert len(task.turns[0]) == 4_000_000 + 4000 * 7
    results = [{"role": "tool", "tool_call_id": "1", "content": "y" * 2000}] * 4000
    said: list[Mapping[str, Any]] = [*called("{}"), *results]
    task = body_task({"messages": said}, "chat", SamplingParams())
    messages = form_prompt(task, task.opening, PLAIN, SamplingParams()).messages
    assert len(messages) == 3
    assert time.monotonic() - begun < 30


def test_large_constraints_are_not_kept_with_their_parameters() -> None:
    _changed.cache_clear()
    for number in range(3):
        chat(structured_outputs={"regex": f"{number}" + "a" * 20_000})()
    assert _changed.cache_info().currsize == 0
    chat(structured_outputs={"regex": "a"})()
    assert _changed.cache_info().currsize == 1


def test_a_job_with_hostile_rows_ends_with_a_record_for_each(
    pebble_built: Path, tmp_path: Path
) -> None:
    """Each of these rows once ended the process, and again at every start of the job."""

    def request(**body: Any) -> str:
        line = {"method": "POST", "url": "/v1/chat/completions"}
        whole = {"messages": [USER], "max_tokens": 3, **body}
        return json.dumps({"custom_id": f"{len(rows)}", **line, "body": whole})

    rows: list[str] = []
    for body in (
        {"structured_outputs": {"json": chain_of_definitions(1000)}},
        {"structured_outputs": {"grammar": chain_of_rules(3000)}},
        {"structured_outputs": {"json": TEXT_SCHEMA}},
        {"tools": [function(x=nested(600))]},
        {},
    ):
        rows.append(request(**body))
    deep = '{"prompt": "Hello", "x": ' + "[" * 900 + "]" * 900 + "}"
    rows.append(deep)
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(f"{row}\n" for row in rows))
    command = [sys.executable, "-P", "-m", "app", "batch", str(source), str(out)]
    done = subprocess.run(
        [*command, "--model", str(pebble_built / "pebble-q8_0.gguf"), "--quiet"],
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "INGOT_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(records) == len(rows)
    failed = [bool(record.get("error")) for record in records]
    assert failed == [True, True, True, True, False, True]
