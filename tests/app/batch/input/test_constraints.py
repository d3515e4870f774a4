"""Rows whose answers must be something: by the job's options, by their request, by a field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support import read_rows, write_rows

AGE = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["age"],
    "additionalProperties": False,
}


def test_rows_follow_their_own_schema_or_request_else_the_jobs(
    command: Any, onnx_folder: Path, tmp_path: Path
) -> None:
    def request(name: str, **body: Any) -> dict[str, Any]:
        whole = {"messages": [{"role": "user", "content": "Is 7 prime?"}], **body}
        line = {"method": "POST", "url": "/v1/chat/completions"}
        return {"custom_id": name, **line, "body": whole}

    own = {"enum": ["red", "green"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "age", "schema": AGE}}
    rows: list[dict[str, Any]] = [
        {"id": "job", "prompt": "How old is Ana?"},
        {"id": "own", "prompt": "A colour?", "shape": own},
        {"id": "bad", "prompt": "Nothing", "shape": {"type": "nonsense"}},
        request("schema", response_format=wanted),
        request("choice", structured_outputs={"choice": ["yes", "no"]}),
        request("object", response_format={"type": "json_object"}, max_tokens=400),
    ]
    source, out = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    flags = ["--json-schema", json.dumps(AGE), "--json-schema-field", "shape", "--format", "jsonl"]
    words = ["batch", source, out, "--model", onnx_folder, *flags, "-t", "2", "--seed", "7"]
    assert command(*words).returncode == 1
    found = {record["id"]: record for record in read_rows(out)}
    said = {name: record.get("response", "") for name, record in found.items()}
    assert 0 <= json.loads(said["job"])["age"] <= 99
    assert json.loads(said["own"]) in own["enum"]
    assert 'at #: "nonsense" is not a type' in found["bad"]["error"]["message"]
    assert 0 <= json.loads(said["schema"])["age"] <= 99
    assert said["choice"] in ("yes", "no")
    assert said["object"].lstrip().startswith("{")
