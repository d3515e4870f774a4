"""Clients that are slow, go away, send what is no HTTP or take more than their share: each is
ended, and the log says so, while others are answered."""

from __future__ import annotations

import http.client
import json
import logging
import re
import socket
import sys
from collections.abc import Iterator

import psutil
import pytest

from app.serve import bodies, connection
from tests.app.serve.conftest import Running, running, started
from tests.support import until

HELLO = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
QUIET_S = 60.0


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "app.serve"):
        yield caplog


def connect(server: Running, data: bytes = b"") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=QUIET_S)
    sock.sendall(data)
    return sock


def ended(sock: socket.socket) -> bytes:
    """What came until the server ended the connection."""
    found = b""
    try:
        while piece := sock.recv(65536):
            found += piece
    except ConnectionResetError:
        pass
    return found


def ask(server: Running, body: bytes = HELLO) -> int:
    asking = http.client.HTTPConnection("127.0.0.1", server.port, timeout=QUIET_S)
    try:
        asking.request("POST", "/v1/chat/completions", body)
        return asking.getresponse().status
    finally:
        asking.close()


def answered(server: Running, status: int) -> int:
    """Requests with this status so far."""
    asking = http.client.HTTPConnection("127.0.0.1", server.port, timeout=QUIET_S)
    asking.request("GET", "/metrics")
    text = asking.getresponse().read().decode()
    asking.close()
    found = re.findall(rf'ingot_requests_total{{.*status="{status}"}} (\S+)', text)
    return sum(int(float(one)) for one in found)


def test_a_client_that_goes_while_its_body_comes_is_no_error_of_the_server(server, log):
    before = answered(server, 499), answered(server, 500)
    sock = connect(server, HEAD + b"Content-Length: 100\r\n\r\n{")
    sock.close()
    until(lambda: answered(server, 499) == before[0] + 1)
    assert answered(server, 500) == before[1]
    assert not [record for record in log.records if record.levelno >= logging.ERROR]


def test_a_head_that_comes_at_once_may_be_no_longer_either(server):
    flood = b"".join(b"X-%d: flood\r\n" % number for number in range(10_000))
    found = ended(connect(server, HEAD + flood + b"Connection: close\r\nContent-Length: 0\r\n\r\n"))
    assert not found or found.split()[1] in (b"400", b"431")
    assert ask(server) == 200


def test_what_is_no_http_is_refused_and_logged(server, log):
    sock = connect(server, b"\x16\x03\x01\x02\x00\x01\r\n\r\n")
    name = "{}:{}".format(*sock.getsockname())
    assert ended(sock).startswith(b"HTTP/1.1 400")
    assert f"{name}: Invalid HTTP request received." in log.messages


def test_a_broken_body_after_the_answer_ends_the_connection(server, log):
    sock = connect(
        server, HEAD + b"Host2: x\r\nOrigin: http://evil\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    answer = ended(sock)
    assert b" 403 " in answer
    assert b"\r\nconnection: close\r\n" in answer.lower()
    sock.sendall(b"no length of a chunk\r\n")
    sock.close()
    assert ask(server) == 200
    assert not [record for record in log.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("data", [b"", b"POST /v1/chat/comp", HEAD])
def test_who_says_nothing_more_is_ended(server, log, monkeypatch, data):
    monkeypatch.setattr(connection, "HEAD_S", 0.1)
    sock = connect(server, data)
    assert ended(sock) == b""
    assert "{}:{}: no request came in time".format(*sock.getsockname()) in log.messages


def test_who_does_not_read_an_answer_is_ended(gguf_file, tmp_path, log, monkeypatch):
    monkeypatch.setattr(connection, "STALL_S", 0.1)
    with running({"pebble": gguf_file}, slots=1, data=tmp_path) as server:
        row = b'{"custom_id": "' + b"a" * 2**24 + b'"}\n'
        file = server.client().files.create(file=("rows.jsonl", row), purpose="batch")
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        sock.sendall(
            f"GET /v1/files/{file.id}/content HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        name = "{}:{}".format(*sock.getsockname())
        until(lambda: f"{name}: does not read its answer" in log.messages)
        assert ask(server) == 200
        sock.settimeout(QUIET_S)
        assert len(ended(sock)) < len(row)


def test_the_last_of_too_many_connections_is_answered(server, log, monkeypatch):
    monkeypatch.setattr(connection, "MOST_CONNECTIONS", 8)
    silent = [connect(server) for _ in range(8)]
    try:
        said = "{}:{}: makes room for another connection".format(*silent[0].getsockname())
        # Those that other tests' clients have left are older.
        until(lambda: ask(server) == 200 and said in log.messages)
        assert ended(silent[0]) == b""
    finally:
        for sock in silent:
            sock.close()


def test_all_bodies_together_have_a_limit(server, monkeypatch):
    monkeypatch.setattr(bodies, "MOST_BODIES_BYTES", 2**20)
    large = HELLO + b" " * (2**20 - 1000)
    assert ask(server, large) == 200
    unfinished = HEAD + b"Content-Length: %d\r\n\r\n" % (len(large) + 1) + large

    def asked_beside() -> int:
        """Whichever of the two bodies passes the limit is refused."""
        with connect(server, unfinished):
            status = ask(server, large)
            return status if ask(server) == 200 else 0

    until(asked_beside, lambda status: status == 503)
    until(lambda: ask(server, large), lambda status: status == 200)


def test_a_text_of_megabytes_is_refused_before_its_tokens_are_made(server):
    text = "a" * 2**20
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    asking = http.client.HTTPConnection("127.0.0.1", server.port, timeout=QUIET_S)
    asking.request("POST", "/v1/chat/completions", body)
    error = json.loads(asking.getresponse().read())["error"]
    assert error["code"] == "context_length_exceeded"
    assert f"{2**20:,} characters" in error["message"]
    for path, said in (("tokenize", {"prompt": text}), ("embeddings", {"input": text})):
        asking.request("POST", f"/v1/{path}", json.dumps(said))
        assert b"1,048,576 characters" in asking.getresponse().read()
    asking.close()


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's way with freed memory")
def test_the_memory_of_large_bodies_is_given_back(ingot, gguf_file, tmp_path):
    process, port = started(ingot, tmp_path, gguf_file)
    memory, body = psutil.Process(process.pid).memory_info, b" " * 8_000_000
    head = HEAD + b"Content-Length: %d\r\n\r\n" % (len(body) + 1)
    before = memory().rss
    for _ in range(2):
        silent = [socket.create_connection(("127.0.0.1", port), QUIET_S) for _ in range(10)]
        for sock in silent:
            sock.sendall(head + body)
        until(lambda: memory().rss > before + 5 * len(body))
        for sock in silent:
            sock.close()
        until(lambda: memory().rss < before + 3 * len(body))
