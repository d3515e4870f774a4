"""Rows whose answers must be something: by the job's options, by their request, by a field."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from app.batch.settings import JobSettings, row_key
from app.openai.constraints import constraint_changes
from app.openai.request import sampling_of
from app.openai.task import task_at
from app.openai.validation import InputError
from runtimes.request import Constraint, SamplingParams

AGE = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["age"],
    "additionalProperties": False,
}


def test_what_bodies_ask_for() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": AGE}}
    assert constraint_changes({}) == {}
    assert constraint_changes({"response_format": {"type": "text"}}) == {"constraint": None}
    [made] = constraint_changes({"response_format": schema}).values()
    assert made is not None
    assert json.loads(made.source) == AGE
    [made] = constraint_changes({"structured_outputs": {"json": json.dumps(AGE)}}).values()
    assert made is not None
    assert json.loads(made.source) == AGE
    assert constraint_changes({"structured_outputs": {"choice": ["a", "b"], "regex": None}}) == {
        "constraint": Constraint("choices", '["a", "b"]')
    }


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"response_format": "json"}, "must be an object"),
        ({"response_format": {"type": "xml"}}, "must be text, json_object or json_schema"),
        ({"response_format": {"type": "json_schema"}}, "must have a schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}},
            "json_schema.schema: the JSON schema cannot be used",
        ),
        ({"structured_outputs": {}}, "one of json, regex, choice and grammar"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "one of json"),
        ({"structured_outputs": {"regex": "("}}, "unclosed group"),
        ({"structured_outputs": {"regex": 5}}, "must be a text"),
        ({"structured_outputs": {"choice": [1]}}, "texts"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "text"}},
            "exclude each other",
        ),
    ],
)
def test_what_cannot_be_asked_is_said(body: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        sampling_of(body, "chat", SamplingParams(), {})


def test_a_constraint_is_part_of_a_rows_key() -> None:
    def key(constraint: Constraint | None) -> bytes:
        sampling = SamplingParams(constraint=constraint)
        return row_key(JobSettings("m", "r", "f", sampling).digest(), task_at("hello", "prompt"))

    keys = {key(None), key(Constraint("regex", "a")), key(Constraint("regex", "b"))}
    assert len(keys) == 3
    old = SamplingParams()
    assert key(None) == row_key(JobSettings("m", "r", "f", old).digest(), task_at("hello", "p"))


def test_rows_follow_their_own_schema_else_the_jobs(
    command: Any, gguf_file: Path, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    own = {"enum": ["red", "green"]}
    rows.write_text(
        "".join(
            json.dumps(row) + "\n"
            for row in (
                {"id": "job", "prompt": "How old is Ana?"},
                {"id": "own", "prompt": "A colour?", "shape": own},
                {"id": "bad", "prompt": "Nothing", "shape": {"type": "nonsense"}},
            )
        )
    )
    done = command(
        "batch",
        rows,
        tmp_path / "out.jsonl",
        "--model",
        gguf_file,
        "--json-schema",
        json.dumps(AGE),
        "--json-schema-field",
        "shape",
        "--temperature",
        "2",
        "--seed",
        "7",
    )
    assert done.returncode == 1, done.stderr
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    answers = {record["id"]: record for record in records}
    assert 0 <= json.loads(answers["job"]["response"])["age"] <= 99
    assert json.loads(answers["own"]["response"]) in own["enum"]
    assert 'at #: "nonsense" is not a type' in answers["bad"]["error"]["message"]


def test_requests_say_what_they_want(command: Any, onnx_folder: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"

    def request(name: str, **body: Any) -> str:
        messages = [{"role": "user", "content": "Is 7 prime?"}]
        return json.dumps(
            {
                "custom_id": name,
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"messages": messages, **body},
            }
        )

    wanted = {"type": "json_schema", "json_schema": {"name": "age", "schema": AGE}}
    rows.write_text(
        request("schema", response_format=wanted)
        + "\n"
        + request("choice", structured_outputs={"choice": ["yes", "no"]})
        + "\n"
        + request("object", response_format={"type": "json_object"}, max_tokens=400)
        + "\n"
    )
    done = command("batch", rows, tmp_path / "out.jsonl", "--model", onnx_folder)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    texts = {
        record["custom_id"]: record["response"]["body"]["choices"][0]["message"]["content"]
        for record in records
    }
    assert 0 <= json.loads(texts["schema"])["age"] <= 99
    assert texts["choice"] in ("yes", "no")
    assert texts["object"].lstrip().startswith("{")


def test_one_prompt_from_the_shell(command: Any, gguf_file: Path, tmp_path: Path) -> None:
    schema = tmp_path / "age.json"
    schema.write_text(json.dumps(AGE))
    done = command("run", gguf_file, "How old is Ana?", "--json-schema", schema, "-t", "2")
    assert done.returncode == 0, done.stderr
    assert 0 <= json.loads(done.stdout)["age"] <= 99
    done = command("run", gguf_file, "Hello", "--choice", "yes", "--choice", "no")
    assert done.stdout in ("yes\n", "no\n")
    for arguments, said in (
        (("--regex", "("), "unclosed group"),
        (("--regex", "a", "--choice", "b"), "give one of them"),
        (("--json-schema", tmp_path / "none.json"), "none.json cannot be read"),
    ):
        done = command("run", gguf_file, "Hello", *arguments)
        assert done.returncode == 2
        assert said in done.stderr


def test_what_is_wrong_with_an_expression_is_told_in_short() -> None:
    text = "x" * 300 + "(a/b"
    with pytest.raises(InputError) as caught:
        constraint_changes({"structured_outputs": {"regex": text}})
    assert str(caught.value) == (
        "structured_outputs.regex: the regular expression cannot be used: unclosed group,"
        r" at `(a\/b`"
    )
