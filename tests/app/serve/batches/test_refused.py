"""What is no batch: told before any token, by the line; and requests that no client should send."""

from __future__ import annotations

import gzip
import json
import socket
from collections import Counter
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest
from openai import APIStatusError
from prometheus_client.parser import text_string_to_metric_families

from app.serve.batches.routes import MOST_UPLOADS
from app.serve.batches.store import read_record
from tests.app.serve.batches.conftest import begin, ended, line
from tests.support import until

COMPLETION = {
    "custom_id": "c",
    "method": "POST",
    "url": "/v1/completions",
    "body": {"model": "pebble", "prompt": "Hello"},
}


def without(name: str, **changes):
    return {k: v for k, v in {**line(1), **changes}.items() if k != name}


BAD = {
    "bad JSON": ("{'a': 1}", "invalid_json", None),
    "no object": ("[1]", "wrong_type", None),
    "no custom_id": (without("custom_id"), "missing_parameter", None),
    "a number for an id": (without("", custom_id=3), "missing_parameter", None),
    "no body": (without("body"), "wrong_type", None),
    "another method": (without("", method="GET"), "invalid_value", None),
    "no url": (without("url"), "unsupported_url", None),
    "another url": (without("", url="/v1/images"), "unsupported_url", None),
    "the other endpoint": (COMPLETION, "mismatched_endpoint", "url"),
    "a plain row": ({"custom_id": "a", "prompt": "Hello"}, "invalid_value", None),
    "no messages": (without("", body={"model": "pebble"}), "missing_parameter", None),
    "a wrong parameter": (line(1, temperature="hot"), "wrong_type", None),
    "another answer's parameter": (line(1, guided_regex="a"), "unsupported_parameter", None),
    "a schema that is none": (
        line(1, response_format={"type": "json_schema", "json_schema": {"schema": {"type": 5}}}),
        "invalid_value",
        None,
    ),
    "no model": (without("", body={"messages": line(1)["body"]["messages"]}), "missing_parameter",
                 "body.model"),
    "another model": (line(1, model="granite"), "mismatched_model", "body.model"),
    "half a character as the model": (json.dumps(line(1, model="\ud800")), "invalid_unicode",
                                      "body.model"),
    "a long name of a model": (line(1, model="x" * 10_000), "invalid_value", "body.model"),
    "a schema nested deeply": (
        line(1, structured_outputs={"json": '{"x":' * 700 + "{}" + "}" * 700}),
        "invalid_value",
        None,
    ),
    "a tool nested deeply": (
        '{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"pebble",'
        '"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{'
        '"name":"f","x":' + '{"a":' * 700 + "1" + "}" * 700 + "}}]}}",
        "invalid_value",
        None,
    ),
    "a line nested deeply": ('{"custom_id":' + "[" * 5000 + "]" * 5000 + "}", "invalid_json", None),
    "a number of thousands of digits": (
        '{"custom_id":"a","body":{"seed":' + "9" * 5000 + "}}", "invalid_json", None
    ),
    "the same id": (line(0), "duplicate_custom_id", "custom_id"),
    "half a character": (json.dumps(line(1, "\ud800")), "invalid_unicode", None),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_one_bad_line_fails_the_batch_before_any_token(client, server, name):
    bad, code, param = BAD[name]
    tokens = sum(served.engine.stats().prompt_tokens for served in server.pool.loaded().values())
    batch = ended(client, begin(client, [line(0), bad, line(2)]))
    assert batch.status == "failed"
    [error] = batch.errors.data
    assert (error.code, error.line, error.param) == (code, 2, param), error
    assert error.message
    assert batch.output_file_id is None
    assert batch.request_counts.total == 0
    now = sum(served.engine.stats().prompt_tokens for served in server.pool.loaded().values())
    assert now == tokens


NAMES = [
    "\ud800",
    "pebble\udfff",
    "x\n12:00:00  POST /v1/fake 200\x1b]0;PWNED\x07",
    "\u202ex\x9b31m",
    "x" * 100_000,
    "gone",
    "",
    "../../etc",
]


@pytest.mark.parametrize("called", NAMES, ids=lambda one: ascii(one)[:12])
def test_a_model_may_be_called_anything(client, server, caplog, called):
    """The list, the figures and the log are as they were; also after a restart, as stored."""
    with caplog.at_level("INFO", logger="app.serve"):
        batch = ended(client, begin(client, [json.dumps(line(0, model=called))]))
    assert batch.status == "failed"
    assert batch.errors.data[0].line == 1
    assert client.batches.retrieve(batch.id).id == batch.id
    assert client.batches.list(limit=100).data
    shown = httpx2.get(f"{server.address}/metrics")
    assert shown.status_code == 200
    families = text_string_to_metric_families(shown.text)
    labels = {one.labels.get("model") for family in families for one in family.samples}
    assert labels <= {None, "pebble", "other"}
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert all(len(record.getMessage()) < 1000 for record in caplog.records)
    read_record(server.batches._batches.folder(server.batches.get(batch.id)))


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    ("made", "code"),
    [
        (lambda: json.dumps(line(5, "x" * (17 * 2**20))), "line_too_long"),
        (lambda: '{"custom_id":"a","z":[' + "[]," * 4_000_000 + "1]}", "invalid_value"),
        (lambda: '{"custom_id":"a","z":' + '{"a":' * 100_000 + "1}", "invalid_value"),
    ],
)
def test_a_line_that_is_too_much_as_a_body(client, number, made, code):
    """It is told before it is parsed: nobody else would be answered meanwhile."""
    lines: list[Any] = [line(0), line(1), line(2)]
    lines[number - 1] = made()
    batch = ended(client, begin(client, lines))
    [error] = batch.errors.data
    assert (batch.status, error.code, error.line) == ("failed", code, number), error


@pytest.mark.parametrize(
    "query",
    [
        "limit=-1",
        "limit=0",
        "limit=1e5",
        f"limit={10**30}",
        f"limit={'9' * 5000}",
        "limit=",
        "limit=%00",
        "after=",
        "after=%ff",
        f"after={'x' * 5000}",
        "after=batch_0%0a",
        "after=a&after=b",
    ],
)
def test_a_page_that_cannot_be_asked_for(client, server, query):
    begin(client, ["x"])
    for place in ("batches", "files"):
        found = httpx2.get(f"{server.address}/v1/{place}?{query}")
        assert found.status_code == 400, (place, found.text)
        assert len(found.text) < 1000


def test_every_bad_line_is_told_up_to_a_bound(client):
    batch = ended(client, begin(client, ["x"] * 60 + [line(0)] * 3))
    lines = [error.line for error in batch.errors.data if error.line]
    assert lines == list(range(1, 51))
    assert "12 more" in batch.errors.data[-1].message


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty_file"),
        (b"\n\n", "empty_file"),
        (gzip.compress(json.dumps(line(0)).encode(), mtime=0), "invalid_file"),
        (b"\xff\xfe\x00", "invalid_utf8"),
        (json.dumps(line(0, model="granite")).encode(), "model_not_found"),
    ],
)
def test_a_file_that_cannot_be_a_batch(client, content, code):
    file = client.files.create(file=("in", content), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    batch = ended(client, batch)
    assert (batch.status, batch.errors.data[0].code) == ("failed", code)


GOOD = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"input_file_id": "file-0"}, 404, "file-0"),
        ({"input_file_id": "../../etc"}, 404, "there is no file"),
        ({"input_file_id": 5}, 400, "input_file_id"),
        ({"endpoint": "/v1/rerank"}, 400, "endpoint"),
        ({"endpoint": None}, 400, "endpoint"),
        ({"completion_window": "1h"}, 400, "24h"),
        ({"metadata": {"a": 5}}, 400, "metadata"),
        ({"metadata": {"a": "x" * 513}}, 400, "metadata"),
        ({"metadata": {"\ud800": "x"}}, 400, "metadata"),
        ({"metadata": {str(i): "x" for i in range(17)}}, 400, "metadata"),
        ({"output_expires_after": {"anchor": "created_at"}}, 400, "output_expires_after"),
    ],
)
def test_a_batch_that_cannot_be_asked_for(client, server, changes, status, said):
    file = client.files.create(file=("in", b"x"), purpose="batch")
    body = json.dumps({"input_file_id": file.id, **GOOD, **changes})
    found = httpx2.post(f"{server.address}/v1/batches", content=body.encode())
    assert found.status_code == status
    assert said in found.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"null", b'{"a": NaN}'])
def test_a_body_that_is_none(server, body):
    assert httpx2.post(f"{server.address}/v1/batches", content=body).status_code == 400


@pytest.mark.parametrize("place", ["files", "batches"])
@pytest.mark.parametrize("name", ["x", "..%2fx", "%2e%2e", "file-%00", "a" * 3000, "%ff"])
def test_an_id_that_nothing_has(server, place, name):
    found = httpx2.get(f"{server.address}/v1/{place}/{name}")
    assert found.status_code == 404
    assert found.json()["error"]["message"]


FORM = "multipart/form-data; boundary=b"
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx\r\n'
PURPOSE = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        (FORM, FILE + PURPOSE + b"--b--\r\n", 200),
        (FORM, PURPOSE + FILE + b"--b--", 200),
        ("application/json", b"{}", 400),
        ("multipart/form-data", FILE, 400),
        ("multipart/form-data; boundary=" + "b" * 500, FILE, 400),
        (FORM, b"", 400),
        (FORM, b"no form", 400),
        (FORM, FILE + PURPOSE, 400),  # cut off
        (FORM, FILE + b"--b--\r\n", 400),  # no purpose
        (FORM, FILE + PURPOSE.replace(b"batch", b"vision") + b"--b--", 400),
        (FORM, FILE + PURPOSE.replace(b"batch", b"b" * 5000) + b"--b--", 400),
        (FORM, PURPOSE + b"--b--\r\n", 400),  # no file
        (FORM, FILE + FILE + PURPOSE + b"--b--", 400),
        (FORM, PURPOSE * 20 + b"--b--", 400),
        (FORM, FILE + PURPOSE + PURPOSE.replace(b"purpose", b"expires_after") + b"--b--", 400),
        (FORM, FILE.replace(b"form-data", b"\xff" * 9000) + PURPOSE + b"--b--", 400),
        (FORM, b"\r\n" * 2**20 + FILE + PURPOSE + b"--b--", 200),  # a preamble
        (FORM, b"x" * 2**20 + FILE + PURPOSE + b"--b--", 400),
        (FORM, FILE + PURPOSE + b"--b--" + b"y" * 2**20, 200),  # an epilogue
        (FORM, FILE + PURPOSE + b"--b--\r\n" + FILE + PURPOSE, 200),
        (FORM, FILE.replace(b'"a"', b"\xff\x1b\x00" * 900) + PURPOSE + b"--b--", 200),
        (FORM, FILE.replace(b'"a"', b"\"a\"; filename*=bogus''%ff") + PURPOSE + b"--b--", 200),
        (FORM, FILE.replace(b'filename="a"', b"") + PURPOSE + b"--b--", 200),
        (FORM, FILE.replace(b'"file"', b'"' + b"f" * 4000) + PURPOSE + b"--b--", 400),
        (FORM, FILE.replace(b"\r\n\r\n", b"\r\nA: b" * 20 + b"\r\n\r\n") + PURPOSE, 400),
        (FORM, FILE + PURPOSE.replace(b"batch", b"ba\x00tch") + b"--b--", 400),
        (FORM, FILE + PURPOSE.replace(b"batch", b"\xed\xa0\x80") + b"--b--", 400),
        (FORM, FILE + PURPOSE.replace(b'"purpose"', b'""') + b"--b--", 400),
        (FORM, b"--b\r\n\r\nx\r\n" + FILE + PURPOSE + b"--b--", 400),  # a part without a name
        ("multipart/form-data; boundary=\xff\xfe".encode("latin-1"), FILE, 400),
        ('multipart/form-data; boundary=""', FILE, 400),
        ("multipart/form-data; boundary*=utf-8''b", FILE, 400),
        ("multipart/mixed; boundary=b", FILE + PURPOSE + b"--b--", 400),
    ],
)
def test_an_upload_that_is_none_leaves_nothing(server, kind, body, status):
    folder = server.batches.files.folder
    before = Counter(path.name for path in folder.iterdir())
    found = httpx2.post(f"{server.address}/v1/files", content=body, headers={"Content-Type": kind})
    assert found.status_code == status, found.text
    left = Counter(path.name for path in folder.iterdir()) - before
    assert sum(left.values()) == (status == 200), left


def test_an_upload_that_is_broken_off_leaves_nothing(server):
    folder = server.batches.files.folder
    before = set(folder.iterdir())
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        head = f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM}\r\n"
        connection.sendall(f"{head}Content-Length: 100000\r\n\r\n".encode() + PURPOSE + FILE)
        until(lambda: set(folder.iterdir()) - before)
    until(lambda: set(folder.iterdir()) == before)


def test_uploads_are_so_many_at_a_time(client, server):
    folder = server.batches.files.folder
    before = set(folder.iterdir())
    head = f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM}\r\n"
    with ExitStack() as stack:
        for _ in range(MOST_UPLOADS):
            connection = socket.create_connection(("127.0.0.1", server.port))
            stack.enter_context(connection)
            connection.sendall(f"{head}Content-Length: 100000\r\n\r\n".encode() + FILE)
        until(lambda: server.batches.files.uploads == MOST_UPLOADS)
        with pytest.raises(APIStatusError, match="uploaded already") as refused:
            client.files.create(file=("a", b"x"), purpose="batch")
        assert refused.value.status_code == 503
        assert client.files.list(limit=1)
    until(lambda: server.batches.files.uploads == 0)
    until(lambda: set(folder.iterdir()) == before)
    assert client.files.create(file=("a", b"x"), purpose="batch").bytes == 1


def test_only_the_input_of_a_batch_is_uploaded(client):
    with pytest.raises(APIStatusError, match="purpose") as error:
        client.files.create(file=("a", b"x"), purpose="fine-tune")
    assert error.value.status_code == 400


def test_results_are_no_input(client):
    batch = ended(client, begin(client, [line(0, max_tokens=2)]))
    with pytest.raises(APIStatusError, match="batch_output"):
        client.batches.create(input_file_id=batch.output_file_id, **GOOD)
