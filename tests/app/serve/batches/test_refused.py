"""What is no batch: told before any token, by the line; and requests that no client should send."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError

from app.serve.batches.check import check
from app.serve.batches.routes import MOST_UPLOADS
from app.serve.batches.store import BATCH_INPUT, Batch, new_batch_id, read_record
from app.serve.options import ServeSampling
from tests.app.serve.batches.conftest import begin, ended, line, texts
from tests.app.serve.conftest import CHAT
from tests.support import until

LINES = json.loads((Path(__file__).parent / "refused_lines.json").read_text())
TOOL = '"tools":[{"type":"function","function":{"name":"f","x":'
LARGE: list[tuple[str, Any, str, str | None]] = [
    ("a long name of a model", line(1, model="x" * 10_000), "invalid_value", "body.model"),
    (
        "a schema nested deeply",
        line(1, structured_outputs={"json": '{"x":' * 700 + "{}" + "}" * 700}),
        "invalid_value",
        None,
    ),
    (
        "a tool nested deeply",
        json.dumps(line(1))[:-2] + "," + TOOL + '{"a":' * 700 + "1" + "}" * 700 + "}}]}}",
        "invalid_value",
        None,
    ),
    ("nested deeply", '{"custom_id":' + "[" * 5000 + "]" * 5000 + "}", "invalid_json", None),
    ("many digits", '{"body":{"seed":' + "9" * 5000 + "}}", "invalid_json", None),
    ("many bytes", json.dumps(line(5, "x" * (17 * 2**20))), "line_too_long", None),
    ("many values", '{"z":[' + "[]," * 4_000_000 + "1]}", "invalid_value", None),
    ("many levels", '{"z":' + '{"a":' * 100_000 + "1}", "invalid_value", None),
]


def checked(folder: Path, content: bytes) -> Any:
    """What is found in an input, before any token; nobody else waits meanwhile."""
    (folder / "input.jsonl").write_bytes(content)
    batch = Batch(new_batch_id(), 1e9, CHAT, "file-" + "0" * 24)
    return check(folder, batch, ServeSampling().params(), ["pebble"], lambda: False)


@pytest.mark.parametrize(("name", "bad", "code", "param"), [*LINES, *LARGE])
def test_one_bad_line_is_told_by_its_number(tmp_path, name, bad, code, param):
    found = checked(tmp_path, texts([line(0), bad, line(2)]))
    [error] = found.errors
    assert (error.code, error.line, error.param) == (code, 2, param), error
    assert error.message


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty_file"),
        (b"\n\n", "empty_file"),
        (gzip.compress(texts([line(0)]), mtime=0), "invalid_file"),
        (b"\xff\xfe\x00", "invalid_utf8"),
        (texts([line(0, model="granite")]), "model_not_found"),
    ],
)
def test_a_file_that_cannot_be_a_batch(tmp_path, content, code):
    assert [error.code for error in checked(tmp_path, content).errors] == [code]


def test_every_bad_line_is_told_up_to_a_bound_before_any_token(client, server):
    tokens = server.engine().stats().prompt_tokens if server.pool.loaded() else 0
    batch = ended(client, begin(client, ["x"] * 60 + [line(0)] * 3))
    assert (batch.status, batch.output_file_id, batch.request_counts.total) == ("failed", None, 0)
    lines = [error.line for error in batch.errors.data if error.line]
    assert lines == list(range(1, 51))
    assert "12 more" in batch.errors.data[-1].message
    assert not server.pool.loaded() or server.engine().stats().prompt_tokens == tokens


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


def test_a_model_may_be_called_anything(client, server, caplog):
    """The list, the figures and the log are as they were; also after a restart, as stored."""
    for called in NAMES:
        with caplog.at_level("INFO", logger="app.serve"):
            batch = ended(client, begin(client, [json.dumps(line(0, model=called))]))
        assert (batch.status, batch.errors.data[0].line) == ("failed", 1)
        assert client.batches.list(limit=100).data
        read_record(server.batches._batches.folder(server.batches.get(batch.id)))
    labels = {model for model, _ in server.figures("ingot_batch_rows_total")}
    assert labels <= {"pebble", "other"}
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert all(len(record.getMessage()) < 1000 for record in caplog.records)


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
        status, said = server.get(f"/v1/{place}?{query}")
        assert status == 400, (place, said)
        assert len(said["error"]["message"]) < 1000


GOOD = {"endpoint": CHAT, "completion_window": "24h"}


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
        ({"metadata": {"\ud800": "x"}}, 400, "hex escape"),
        ({"metadata": {str(i): "x" for i in range(17)}}, 400, "metadata"),
        ({"output_expires_after": {"anchor": "created_at"}}, 400, "output_expires_after"),
    ],
)
def test_a_batch_that_cannot_be_asked_for(client, server, changes, status, said):
    file = client.files.create(file=("in", b"x"), purpose=BATCH_INPUT)
    found, answer = server.ask({"input_file_id": file.id, **GOOD, **changes}, "/v1/batches")
    assert found == status
    assert said in answer["error"]["message"]


def test_an_id_that_nothing_has(server):
    for name in ("x", "..%2fx", "%2e%2e", "file-%00", "a" * 3000, "%ff"):
        for place in ("files", "batches"):
            status, said = server.get(f"/v1/{place}/{name}")
            assert (status, bool(said["error"]["message"])) == (404, True)


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
        (FORM, FILE + PURPOSE.replace(b"batch", b"fine-tune") + b"--b--", 400),
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
    found, said = server.ask(body, "/v1/files", Content_Type=kind)
    assert found == status, said
    left = Counter(path.name for path in folder.iterdir()) - before
    assert sum(left.values()) == (status == 200), left


def test_uploads_are_so_many_at_a_time_and_leave_nothing_where_they_are_broken_off(client, server):
    folder = server.batches.files.folder
    before = set(folder.iterdir())
    head = f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM}\r\n"
    with ExitStack() as stack:
        for _ in range(MOST_UPLOADS):
            begun = f"{head}Content-Length: 100000\r\n\r\n".encode() + FILE
            stack.enter_context(server.connect(begun))
        until(lambda: server.batches.files.uploads == MOST_UPLOADS)
        until(lambda: set(folder.iterdir()) - before)
        with pytest.raises(APIStatusError, match="uploaded already") as refused:
            client.files.create(file=("a", b"x"), purpose="batch")
        assert refused.value.status_code == 503
        assert client.files.list(limit=1)
    until(lambda: server.batches.files.uploads == 0)
    until(lambda: set(folder.iterdir()) == before)
    assert client.files.create(file=("a", b"x"), purpose="batch").bytes == 1
