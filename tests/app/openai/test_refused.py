"""What a body or a row may not be: each is refused by the name of its field, and quickly."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.openai.completions import completion_tasks
from app.openai.prepare import form_prompt
from app.openai.request import _changed, body_task
from app.openai.validation import InputError
from runtimes.request import SamplingParams
from tests.app.openai.readers import DEFAULTS, READERS, SAID, chat, message
from tests.runtimes.test_grammars import chain_of_definitions, chain_of_rules
from tests.support import read_rows

REFUSED = json.loads((Path(__file__).parent / "refused.json").read_text())
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(("dialect", "body", "code", "said"), REFUSED)
def test_what_is_wrong_is_named(dialect, body, code, said):
    with pytest.raises(InputError) as caught:
        READERS[dialect](**body)
    assert caught.value.problem.code == code
    assert said in caught.value.problem.message


def nested(levels: int, *, lists: bool = False) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if lists else {"a": value}
    return value


def function(**more: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **more}}]}


def called(arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [*SAID, answer, {"role": "tool", "tool_call_id": "1", "content": "x"}]


def output(**structured: Any) -> dict[str, Any]:
    return {"structured_outputs": structured}


CHAIN, DEEP, TIME = json.loads(chain_of_definitions(1000)), "nested too deeply", {"name": "time"}
FORM = {"type": "json_schema", "json_schema": {"schema": CHAIN}}
UNUSABLE = "the JSON schema cannot be used"
LARGE = {"type": "object", "properties": {"a": {"enum": ["x" * 300_000]}}}
BEYOND: list[tuple[str, dict[str, Any], str]] = [
    ("chat", function(x=nested(480)), f"body is {DEEP}"),
    ("chat", function(x=nested(70)), f"tools.0.function is {DEEP}"),
    ("chat", function(x=nested(70, lists=True)), f"tools.0.function is {DEEP}"),
    ("chat", function(description="x" * 300_000), "tools.0.function has more"),
    ("chat", function(x=[0] * 30_000), "tools.0.function has more than 20,000"),
    ("chat", function(parameters=CHAIN), f"tools.0.function.parameters: {UNUSABLE}"),
    ("chat", function(parameters=LARGE), "262,144 characters"),
    ("chat", {"messages": called(json.dumps(nested(300)))}, f"arguments is {DEEP}"),
    ("chat", {"messages": called(nested(300))}, f"body is {DEEP}"),
    ("chat", {"messages": SAID * 4097}, "4,097 messages, above 4,096"),
    ("chat", {"tools": [{"type": "function", "function": TIME}] * 129}, "129 tools, above 128"),
    ("chat", output(json='{"a":' * 700 + "1" + "}" * 700), DEEP),
    ("chat", {"response_format": FORM}, f"response_format.json_schema.schema: {UNUSABLE}"),
    ("chat", output(grammar=chain_of_rules(3000)), "above 2,048"),
    ("chat", output(choice=list(map(str, range(200_000)))), "choice has 200,000 choices"),
    ("chat", {"logit_bias": {str(n): 1 for n in range(1025)}}, "has 1,025 ids, above 1,024"),
    ("chat", {"stop": ["x" * 9000]}, "stop has 9,000 characters"),
    ("chat", {"metadata": nested(500)}, f"body is {DEEP}"),
    ("message", {"tools": [{"name": "f", "input_schema": CHAIN}]}, "tools.0.input_schema"),
    ("message", {"stop_sequences": ["x" * 9000]}, "9,000 characters"),
    ("message", {"metadata": nested(500)}, f"body is {DEEP}"),
    ("response", {"metadata": nested(500)}, f"body is {DEEP}"),
    ("completion", {"metadata": nested(500)}, f"body is {DEEP}"),
    ("completion", {"prompt": ["x"] * 257}, "257 prompts, above 256"),
    ("completion", {"prompt": ["x"] * 200, "n": 2}, "prompt times n has 400 answers, above 256"),
    ("score", {"prompt": "x", "continuations": list(map(str, range(257)))}, "not 257"),
    ("embedding", {"input": "x", "user": nested(500)}, f"body is {DEEP}"),
]


@pytest.mark.parametrize(("dialect", "body", "said"), BEYOND, ids=range(len(BEYOND)))
def test_what_is_too_much_is_refused_by_name(dialect, body, said):
    with pytest.raises(InputError) as caught:
        READERS[dialect](**body)
    assert said in caught.value.problem.message


def test_many_turns_of_the_user_become_one_in_time():
    """Each was once copied with all before it: gigabytes for a body of a few megabytes."""
    begun = time.process_time()
    long = {"role": "user", "content": "x" * 4_000_000}
    task = message(messages=[long, *SAID * 4000], max_tokens=1)
    assert len(task.turns[0]) == 4_000_000 + 4000 * 20
    results = [{"role": "tool", "tool_call_id": "1", "content": "y" * 2000}] * 4000
    said: list[Mapping[str, Any]] = [*called("{}"), *results]
    task = chat(messages=said)
    assert len(form_prompt(task, task.opening, PLAIN, DEFAULTS).messages) == 3
    assert time.process_time() - begun < 2


def test_large_constraints_are_not_kept_with_their_parameters():
    _changed.cache_clear()
    for regex, kept in (("1" + "a" * 20_000, 0), ("2" + "a" * 20_000, 0), ("a", 1)):
        chat(**output(regex=regex))
        assert _changed.cache_info().currsize == kept


def test_a_line_of_a_file_says_only_what_is_known():
    unique = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    for body, said in (
        ({"client_metadata": 1}, "client_metadata is not supported"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type must be function, not 'web_search'"),
        (function(parameters=unique), 'Unimplemented keys: ["uniqueItems"]'),
        ({"priority": 1}, "priority is not supported"),
    ):
        with pytest.raises(InputError) as caught:
            body_task({"messages": SAID, **body}, "chat", SamplingParams(), strict=True)
        assert said in str(caught.value)
    with pytest.raises(InputError, match="priority is not supported"):
        completion_tasks({"prompt": "x", "priority": 1}, DEFAULTS, served=False)


def test_a_job_with_hostile_rows_ends_with_a_record_for_each(ingot, pebble_built, tmp_path):
    """Each of these rows once ended the process, and again at every start of the job."""
    bodies = (
        output(json=chain_of_definitions(1000)),
        output(grammar=chain_of_rules(3000)),
        output(json='{"a":' * 700 + "1" + "}" * 700),
        function(x=nested(600)),
        {},
    )
    line = {"method": "POST", "url": "/v1/chat/completions"}
    rows = [
        json.dumps(
            {"custom_id": str(n), **line, "body": {"messages": SAID, "max_tokens": 3, **one}}
        )
        for n, one in enumerate(bodies)
    ]
    rows.append('{"prompt": "Hello", "x": ' + "[" * 900 + "]" * 900 + "}")
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(rows))
    model = pebble_built / "pebble-q8_0.gguf"
    assert ingot("batch", source, out, "--model", model, "--quiet").returncode == 1
    failed = [bool(record.get("error")) for record in read_rows(out)]
    assert failed == [True, True, True, True, False, True]
