"""Who is let in, and what may come in: sockets and bodies that no client library would send."""

from __future__ import annotations

import http.client
import json
import socket
import threading

import pytest

from tests.app.serve.conftest import Running

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def locked(gguf_file, serving_module):
    with serving_module(
        {"pebble": gguf_file}, slots=2, api_key="s3cret", cors=["https://page.example"]
    ) as found:
        yield found


@pytest.fixture(scope="module")
def serving_module():
    from tests.app.serve.conftest import running

    return running


def ask(server: Running, path="/v1/chat/completions", body=HELLO, method="POST", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, sent)
    answer = connection.getresponse()
    return answer.status, answer.read(), answer


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer s3cret2"}, 401),
        ({"Authorization": "Basic s3cret"}, 401),
        ({"Authorization": "Bearer s3cret"}, 200),
        ({"X-Api-Key": "s3cret"}, 200),
        ({"Authorization": "Bearer s3cr\u00e9t"}, 401),
    ],
)
def test_the_key_is_needed(locked, headers, status):
    found, body, _ = ask(locked, **headers)
    assert found == status
    if status == 401:
        assert json.loads(body)["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/openapi.json", "/v1/models/pebble"])
def test_nothing_is_told_without_the_key(locked, path):
    assert ask(locked, path, None, "GET")[0] == 401


def test_health_is_open(locked):
    assert ask(locked, "/health", None, "GET")[0] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:8080", 200),
        ("", 403),
        ("localhost:80:80", 403),
        ("a b", 403),
    ],
)
def test_a_foreign_name_of_the_host_is_refused(server, host, status):
    found, _body, _ = ask(server, "/v1/models", None, "GET", Host=host)
    assert found == status


def test_pages_of_other_origins_may_not_call(server, locked):
    assert ask(server, Origin="https://evil.example")[0] == 403
    assert ask(server, "/health", None, "GET", Origin=server.address)[0] == 200
    status, _, answer = ask(locked, Origin="https://page.example", Authorization="Bearer s3cret")
    assert status == 200
    assert answer.headers["Access-Control-Allow-Origin"] == "https://page.example"
    status, _, answer = ask(locked, body=None, method="OPTIONS", Origin="https://page.example")
    assert status == 204
    assert "POST" in answer.headers["Access-Control-Allow-Methods"]
    assert ask(locked, body=None, method="OPTIONS", Origin="https://evil.example")[0] == 403


def exchange(server: Running, data: bytes, more: bytes = b"") -> bytes:
    """What comes back until the server ends the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sock:
        sock.sendall(data)
        try:
            while more:
                sock.sendall(more)
        except OSError:  # it has ended the connection
            pass
        found = b""
        try:
            while piece := sock.recv(65536):
                found += piece
        except OSError:
            pass
        return found


def test_a_body_that_says_it_is_too_large_is_not_read(server):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 104857600\r\n\r\n"
    assert exchange(server, head).startswith(b"HTTP/1.1 413")


def test_a_body_that_does_not_say_so_is_cut_off(server):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    found = exchange(server, head, b"100000\r\n" + b" " * 0x100000 + b"\r\n")
    assert not found or found.startswith(b"HTTP/1.1 413")
    assert ask(server, "/health", None, "GET")[0] == 200


def test_a_flood_of_headers_is_refused(server):
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    found = exchange(server, head, b"X-Flood: " + b"a" * 1000 + b"\r\n")
    assert not found or found.startswith(b"HTTP/1.1 4")
    assert ask(server, "/health", None, "GET")[0] == 200


def test_a_thousand_connections_that_say_nothing_keep_nobody_out(server):
    idle = []
    try:
        for _ in range(1000):
            sock = socket.create_connection(("127.0.0.1", server.port), timeout=60)
            sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n")
            idle.append(sock)
        assert ask(server)[0] == 200
    finally:
        for sock in idle:
            sock.close()


def test_many_at_once_are_all_answered(server):
    found = []
    threads = [threading.Thread(target=lambda: found.append(ask(server)[0])) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 32


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"messages": NaN}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "\\ud800"}',
        b'"text"',
        b"null",
    ],
)
def test_what_is_no_request_is_refused(server, body):
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    status = exchange(server, head.encode() + body).split(b" ")[1]
    assert status in (b"400", b"404")
