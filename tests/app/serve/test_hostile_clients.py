"""Clients that mean harm, or are slow, go away and send what is no HTTP: who is let in, what they
send is bounded before it costs, each is ended, and the others are answered."""

from __future__ import annotations

import json
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import h11
import psutil
import pytest

from app.serve import bodies, connection, guard
from app.serve.bodies import Charge, Held
from app.serve.errors import HttpError
from app.serve.generate import _check
from app.serve.options import (
    MOST_BODY_BYTES,
    MOST_DEPTH,
    MOST_HEAD_BYTES,
    MOST_IDS,
    MOST_NAMES,
    MOST_VALUES,
)
from app.serve.pool import MOST_SLOTS
from runtimes.checks import UNFOLLOWED
from runtimes.engine.sequence import unstarted
from runtimes.request import FinishReason, Request
from tests.app.serve.conftest import CHAT, HELLO, STORY, TEXTS, Running, running, started
from tests.app.workers import step, worker_of
from tests.support import until

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
HELLO_BYTES = json.dumps(HELLO).encode()


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "app.serve"):
        yield caplog


@pytest.fixture(scope="module")
def locked(gguf_file: Path) -> Iterator[Running]:
    """A server that needs a key, and has no queue."""
    options = {"slots": 2, "queue": 0, "api_key": "s3cret", "cors": ["https://page.example"]}
    with running({"pebble": gguf_file}, **options) as found:
        yield found


def ended(sock: socket.socket) -> bytes:
    """What came until the server ended the connection."""
    found = b""
    with suppress(ConnectionResetError):
        while piece := sock.recv(65536):
            found += piece
    return found


def keep_sending(sock: socket.socket, piece: bytes = b"1\r\na\r\n" * 1000) -> None:
    """Until the server ends the connection; a time-out is another error."""
    with suppress(BrokenPipeError, ConnectionResetError):
        while True:
            sock.sendall(piece)


def name_of(sock: socket.socket) -> str:
    return "{}:{}".format(*sock.getsockname())


# Who is let in

ALLOWED = {"Authorization": "Bearer s3cret"}


def test_who_is_let_in(server, locked):
    for given in ("", "Bearer wrong", "Bearer s3cret2", "Basic s3cret", "Bearer s3cr\u00e9t"):
        assert locked.refused(Authorization=given) == (401, "invalid_api_key"), given
    for path in ("/v1/models", "/metrics", "/openapi.json", "/v1/models/pebble"):
        assert locked.get(path)[0] == 401
    assert locked.get("/health")[0] == 200
    assert locked.ask(HELLO, X_Api_Key="s3cret")[0] == 200
    page = "https://page.example"
    answer = locked.begin(Origin=page, **ALLOWED).getresponse()
    assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, page)
    answer = locked.begin(None, CHAT, "OPTIONS", Origin=page).getresponse()
    assert answer.status == 204
    assert "POST" in answer.headers["Access-Control-Allow-Methods"]
    assert locked.ask(None, CHAT, "OPTIONS", Origin="https://evil.example")[0] == 403
    assert server.ask(Origin="https://evil.example")[0] == 403
    assert server.get("/health", Origin=server.address)[0] == 200


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
    assert server.get("/v1/models", Host=host)[0] == status


# Models that load


def test_requests_for_a_model_that_loads_keep_no_others_waiting(gguf_file, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(gguf_file.read_bytes()[:100_000])
    models = {"a": gguf_file, "b": gguf_file, "c": broken}
    with running(models, slots=2, queue=40) as server:
        assert server.ask()[0] == 200
        with server.pool._loading:  # no load gets on
            to_b = {**HELLO, "model": "b", "max_tokens": 1}
            waiting = [server.begin(to_b) for _ in range(48)]  # more than there are threads
            waiting += [server.begin({"model": "b", "input": "x"}, "/v1/embeddings")]
            counting = server.begin({"model": "b", "prompt": "x"}, "/v1/tokenize")
            failing = [server.begin({**HELLO, "model": "c"}) for _ in range(8)]
            adapters = [
                server.begin({"lora_name": f"x{number}"}, "/v1/unload_lora_adapter")
                for number in range(40)
            ]
            until(lambda: server.generator.running("b") == 49)
            until(lambda: server.generator.running("c") == 8)
            assert server.ask()[0] == 200
            assert server.ask({"input": "x"}, "/v1/embeddings")[0] == 200
            assert server.ask({"prompt": "x"}, "/v1/tokenize")[0] == 200
            assert server.get("/metrics")[0] == 200
            gone, waiting = waiting[:10], waiting[10:]
            for one in gone:
                one.close()
            until(lambda: server.generator.running("b") == 39)
            waiting += [server.begin(to_b) for _ in range(MOST_SLOTS + 40 - 39)]
            until(lambda: server.generator.running("b") == MOST_SLOTS + 40)
            assert server.refused(to_b) == (429, "queue_full")
        assert {one.getresponse().status for one in (*waiting, counting)} == {200}
        assert {one.getresponse().status for one in adapters} == {403}
        assert {one.getresponse().status for one in failing} == {500}
        until(lambda: server.generator.running("b") == server.generator.running("c") == 0)
        with server.pool._lock:
            assert not any(one.leases for one in server.pool._loaded.values())


# Bodies

BAD: dict[str, tuple[bytes, int, str]] = {
    "lists": (b'{"metadata": [' + b"[]," * (MOST_IDS + 1) + b"1]}", 413, "more than"),
    "numbers": (b'{"messages": [' + b"1," * (MOST_VALUES + 1) + b"1]}", 413, "more than"),
    "names": (b"{%b}" % b",".join(b'"%d":0' % n for n in range(MOST_NAMES + 1)), 413, "more than"),
    "texts": (b'["\\"[' + b'","\\\\","' * (MOST_VALUES // 2) + b'"]', 413, "more than"),
    **{
        f"{opened!a} {depth} times": (
            b'{"metadata": ' + opened * depth + b"1" + closed * depth + b"}",
            400,
            "nested too deeply",
        )
        for opened, closed in ((b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]"))
        for depth in (MOST_DEPTH + 1, 900, 100_000)
    },
    **{
        number: (b'{"seed": %b}' % number.encode(), 400, "not JSON")
        for number in ("1e400", "-1e400", "NaN", "-Infinity", "1" * 5000, "1" * 299 + "e99")
    },
    "half a pair": (b'{"user": "a\\ud800"}', 400, "half a surrogate pair"),
    "as a name": (b'{"metadata": {"\\udfff": 1}}', 400, "half a surrogate pair"),
    "alone": (b'"\\udc00\\ud800"', 400, "half a surrogate pair"),
    "in bytes": (b'{"user": "\xed\xa0\x80"}', 400, "not JSON"),
    "no UTF-8": (b'{"user": "\xff"}', 400, "not JSON"),
    "zeros": (b"\x00\x00", 400, "not JSON"),
    "nothing": (b"", 400, "not JSON"),
    "cut": (b"{", 400, "not JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_body_that_is_too_much_or_no_json_is_refused(name):
    body, status, said = BAD[name]
    with pytest.raises(HttpError, match=said) as refused:
        bodies._parsed(body, Charge(Held()), MOST_VALUES)
    assert refused.value.status == status
    assert ("pair" in said) == (refused.value.problem.code == "invalid_unicode")


PATHS = {
    CHAT: HELLO,
    TEXTS: {"prompt": "Hello", "max_tokens": 2},
    "/predict": {"prompt": "Hello", "max_tokens": 2},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 4},
    "/v1/messages": {**HELLO, "model": "pebble"},
    "/v1/messages/count_tokens": {"messages": HELLO["messages"], "model": "pebble"},
    "/v1/embeddings": {"input": "Hello"},
    "/v1/rerank": {"query": "Hello", "documents": ["a"]},
    "/v1/tokenize": {"prompt": "Hello"},
    "/v1/load_lora_adapter": {"lora_name": "a", "lora_path": "b"},
    "/v1/unload_lora_adapter": {"lora_name": "a"},
    "/v1/batches": {},
}


@pytest.mark.parametrize("path", PATHS)
def test_each_path_reads_its_body_so(server, path):
    for name in ("lists", "b'[' 900 times", "NaN", "alone", "no UTF-8", "nothing"):
        status, said = server.ask(BAD[name][0], path)
        assert (status, "error" in said) == (BAD[name][1], True), name
    for field in ("model", "user", "metadata", "lora_name"):
        for value in ("a\ud800", {"a\ud800": 1}, [{"role": "user", "content": "\udfff"}]):
            status, said = server.ask({**PATHS[path], field: value, "stream": True}, path)
            assert (status, "surrogate" in said["error"]["message"]) == (400, True)
    for body in (b'"text"', b"null"):
        assert server.ask(body, path)[0] in (400, 403)


def test_texts_may_hold_what_would_be_values_and_pairs(server):
    said = '[{,:"\\' * 40_000 + "\u00e9"
    for text in (said, f"{said}\\"):
        body = {"prompt": text}
        assert server.refused(body, "/v1/tokenize") == (400, "context_length_exceeded")
    assert server.ask({"prompt": "\U0001f600\\ud800"}, "/v1/tokenize")[0] == 200


@pytest.mark.parametrize("piece", [1, 2, 3, 2**20])
def test_values_names_and_levels_are_counted_as_the_parser_reads_them(monkeypatch, piece):
    monkeypatch.setattr(bodies, "_PIECE", piece)
    value = {"a\\": ['\\"[{:,', {'"': [[], {}]}, "\\"], "b": "\u4e2d,\\u0041", "c": [1, -2.5, None]}
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=2)):
        values, names, depth = bodies._shape(text.encode(), MOST_VALUES)
        assert (names, depth) == (4, 5)
        assert values >= 4 + 13


def test_what_a_body_becomes_is_counted_beside_others(monkeypatch):
    monkeypatch.setattr(bodies, "MOST_BODIES_BYTES", 2**24)
    held = Held()
    first, second, small = Charge(held), Charge(held), Charge(held)
    first.add(2**20)
    bodies._parsed(b"[" + b"[]," * 50_000 + b"1]", first, MOST_VALUES)
    assert held.total > 50_000 * 80  # an empty list and its place
    wide = json.dumps({"a": "x" * 2**22 + "\U0001f600"}).encode()
    with pytest.raises(HttpError) as refused:
        bodies._parsed(wide, second, MOST_VALUES)  # four bytes a character
    assert refused.value.status == 503
    small.add(1000)  # is never too much
    for one in (first, second, small):
        one.close()
    assert held.total == 0


def test_all_bodies_together_have_a_limit(server, monkeypatch):
    monkeypatch.setattr(bodies, "MOST_BODIES_BYTES", 2**20)
    large = HELLO_BYTES + b" " * (2**20 - 1000)
    assert server.ask(large)[0] == 200
    unfinished = HEAD + b"Content-Length: %d\r\n\r\n" % (len(large) + 1) + large

    def asked_beside() -> int:
        """Whichever of the two bodies passes the limit is refused."""
        with server.connect(unfinished):
            status = server.ask(large)[0]
            return status if server.ask()[0] == 200 else 0

    until(asked_beside, lambda status: status == 503)
    until(lambda: server.ask(large)[0] == 200)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's way with freed memory")
def test_the_memory_of_bodies_is_bounded_and_given_back(ingot, gguf_file, tmp_path):
    process, door = started(ingot, tmp_path, f"pebble={gguf_file}", "--slots", 1)
    memory, body = psutil.Process(process.pid).memory_info, b" " * 8_000_000
    before, most = memory().rss, 0
    with ExitStack() as stack:
        for _ in range(10):
            unfinished = HEAD + b"Content-Length: %d\r\n\r\n" % (len(body) + 1) + body
            stack.enter_context(door.connect(unfinished))
        until(lambda: memory().rss > before + 5 * len(body))
    until(lambda: memory().rss < before + 3 * len(body))
    # Of each of the long ones the parser would make 300 MB.
    long, within = (b'{"metadata": [' + b"[]," * n + b"1]}" for n in (5_000_000, 100_000))
    waiting = [door.begin(one) for one in (long, long, within)]
    while waiting:
        most = max(most, memory().rss)
        with suppress(TimeoutError):
            waiting[0].sock.settimeout(0.05)
            assert waiting[0].getresponse().status in (400, 413, 503)
            waiting.pop(0)
    assert most - before < 250 * 2**20
    assert door.ask()[0] == 200


def test_large_bodies_are_read_one_after_the_other_beside_the_loop(server, monkeypatch):
    gate, counted, reading = threading.Event(), bodies.checked_values, []

    def held(data: bytes, most: int) -> int:
        if len(data) > bodies.SMALL_BYTES:
            reading.append(data)
            assert gate.wait(60)
        return counted(data, most)

    monkeypatch.setattr(bodies, "checked_values", held)
    body = {"prompt": ["x" * 2**21], "max_tokens": 1}
    first = server.begin(body, TEXTS)
    until(lambda: reading)
    before = server.answered(499)
    gone = [server.begin(body, TEXTS) for _ in range(5)]
    assert server.ask()[0] == 200
    for one in gone:
        one.close()
    until(lambda: server.answered(499) == before + 5)
    assert len(reading) == 1
    monkeypatch.setattr(bodies, "_TURN_S", 0.0)
    assert server.refused(body, TEXTS) == (503, "bodies_full")
    monkeypatch.undo()
    gate.set()
    assert first.getresponse().status == 400
    assert server.refused(body, TEXTS) == (400, "context_length_exceeded")


def test_a_text_of_megabytes_is_refused_before_its_tokens_are_made(server):
    text = "a" * 2**20
    for path, body in (
        ("chat/completions", {"messages": [{"role": "user", "content": text}]}),
        ("tokenize", {"prompt": text}),
        ("embeddings", {"input": text}),
    ):
        error = server.ask(body, f"/v1/{path}")[1]["error"]
        assert error["code"] == "context_length_exceeded"
        assert "1,048,576 characters" in error["message"]


# Heads and connections


def test_a_head_that_is_too_large_is_431_in_the_form_of_an_error(server):
    for flood in (b"X-Flood: " + b"a" * 200_000 + b"\r\n", b"a: b\r\n" * 5000, b"a: b\r\n" * 300):
        head, _, body = ended(server.connect(HEAD + flood + b"\r\n")).partition(b"\r\n\r\n")
        assert head.split()[1] == b"431"
        assert b"connection: close" in head.lower()
        assert json.loads(body)["error"]["code"] == "headers_too_large"
    found = ended(server.connect(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a" * 200_000))
    assert found.startswith(b"HTTP/1.1 431")
    keep_sending(server.connect(HEAD), b"X-Flood: " + b"a" * 1000 + b"\r\n")
    assert server.ask()[0] == 200


@pytest.mark.parametrize("flood", [b"X: " + b"a" * MOST_HEAD_BYTES + b"\r\n", b"a: b\r\n" * 300])
def test_a_head_that_comes_at_once_may_be_no_larger(flood):
    http = connection._Http(h11.SERVER, MOST_HEAD_BYTES)
    http.receive_data(HEAD + flood + b"\r\n")
    with pytest.raises(h11.RemoteProtocolError, match="head is too large"):
        http.next_event()
    assert http.refusal.status == 431


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/%ED%A0%80",
        "/v1/models/%00",
        "/v1/models/" + "a" * 30_000,
        "/v1/models/..%2f..%2fetc%2fpasswd",
        "/%ED%A0%80?%ED%A0%80=%ED%A0%80",
    ],
)
def test_paths_that_are_no_text_are_not_found(server, path):
    for method in ("GET", "POST", "DELETE"):
        assert server.ask(None, path, method)[0] in (404, 405)


KEY = b"Authorization: Bearer s3cret\r\n"
REFUSED = {
    "no key": (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n", b"401"),
    "no key at all paths": (b"PUT /nowhere HTTP/1.1\r\nHost: localhost\r\n", b"401"),
    "foreign host": (b"POST /v1/completions HTTP/1.1\r\nHost: evil\r\n" + KEY, b"403"),
    "foreign page": (b"POST / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil\r\n", b"403"),
    "no such path": (b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\n" + KEY, b"404"),
    "no such method": (b"PUT /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + KEY, b"405"),
    "open path": (b"POST /health HTTP/1.1\r\nHost: localhost\r\n", b"405"),
    "body of a GET": (b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b"200"),
    "body of a HEAD": (b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n", b"405"),
}


@pytest.mark.parametrize("length", [b"Transfer-Encoding: chunked", b"Content-Length: 16000000"])
def test_an_answer_before_the_whole_body_ends_the_connection(locked, monkeypatch, length):
    monkeypatch.setattr(connection, "LINGER_S", 0.02)
    for name, (head, status) in REFUSED.items():
        sock = locked.connect(head + length + b"\r\n\r\n" + b"1\r\na\r\n" * 10)
        found = b""
        while b"\r\n\r\n" not in found:
            found += sock.recv(65536)
        assert found.split()[1] == status, name
        assert b"\r\nconnection: close\r\n" in found.lower()
        keep_sending(sock)


def test_a_client_reads_why_it_is_refused(server, locked):
    """Also one that sends all of its body first, or says that it will be too large."""
    for size in (10, 200_000, MOST_BODY_BYTES - 10):
        assert locked.refused(b"a" * size) == (401, "invalid_api_key")
    assert ended(server.connect(HEAD + b"Content-Length: 104857600\r\n\r\n")).split()[1] == b"413"
    asking = locked.begin(None, "/v1/models", "GET")
    for _ in range(3):  # one that has all come keeps the connection
        assert asking.getresponse().read().startswith(b'{"error"')
        port = asking.sock.getsockname()
        asking.request("GET", "/v1/models")
        assert asking.sock.getsockname() == port
    sock = server.connect(HEAD + CHUNKED)
    keep_sending(sock, b"100000\r\n" + b" " * 0x100000 + b"\r\n")
    assert server.ask()[0] == 200


def test_refusals_in_great_number_are_answered_one_after_the_other(locked, monkeypatch):
    monkeypatch.setattr(guard, "_REFUSALS", 10)
    asking = locked.begin(None, "/v1/models", "GET")
    begun = time.monotonic()
    for _ in range(30):
        assert asking.getresponse().read()
        asking.request("GET", "/v1/models")
    assert time.monotonic() - begun > 0.3  # twenty of fifty a second
    assert locked.ask(HELLO, **ALLOWED)[0] == 200


def test_what_is_broken_ends_its_connection_and_is_no_error_of_the_server(server, log):
    before = server.answered(499), server.answered(500)
    sock = server.connect(HEAD + b"Content-Length: 100\r\n\r\n{")
    sock.close()  # while its body comes
    until(lambda: server.answered(499) == before[0] + 1)
    sock = server.connect(b"\x16\x03\x01\x02\x00\x01\r\n\r\n")
    name = name_of(sock)
    assert ended(sock).startswith(b"HTTP/1.1 400")
    assert f"{name}: Invalid HTTP request received." in log.messages
    sock = server.connect(HEAD + b"Host2: x\r\nOrigin: http://evil\r\n" + CHUNKED)
    answer = ended(sock)
    assert b" 403 " in answer
    assert b"\r\nconnection: close\r\n" in answer.lower()
    with suppress(OSError):
        sock.sendall(b"no length of a chunk\r\n")
    sock.close()
    assert server.ask()[0] == 200
    assert server.answered(500) == before[1]
    assert not [record for record in log.records if record.levelno >= logging.ERROR]


def test_who_says_nothing_more_is_ended(server, log, monkeypatch):
    monkeypatch.setattr(connection, "HEAD_S", 0.1)
    for data in (b"", b"POST /v1/chat/comp", HEAD):
        sock = server.connect(data)
        assert ended(sock) == b""
        assert f"{name_of(sock)}: no request came in time" in log.messages


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
        name = name_of(sock)
        until(lambda: f"{name}: does not read its answer" in log.messages)
        assert server.ask()[0] == 200
        sock.settimeout(60)
        assert len(ended(sock)) < len(row)


def test_the_last_of_too_many_connections_is_answered(server, log, monkeypatch):
    with ExitStack() as stack:
        for _ in range(1000):  # which is not too many
            stack.enter_context(server.connect(b"POST /v1/chat/completions HTTP/1.1\r\n"))
        assert server.ask()[0] == 200
    monkeypatch.setattr(connection, "MOST_CONNECTIONS", 8)
    with ExitStack() as stack:
        silent = [stack.enter_context(server.connect()) for _ in range(8)]
        said = f"{name_of(silent[0])}: makes room for another connection"
        # Those that other tests' clients have left are older.
        until(lambda: server.ask()[0] == 200 and said in log.messages)
        assert ended(silent[0]) == b""


# Input that takes long


def noted_turns(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """The seconds that each piece took, and the share that it got, as they come."""
    noted, wait_s = [], connection._turns.wait_s

    def wait(now: float, seconds: float, share: float) -> float:
        noted.append((seconds, share))
        return wait_s(now, seconds, share)

    monkeypatch.setattr(connection._turns, "wait_s", wait)
    return noted


def test_input_that_takes_long_gets_a_part_of_the_time(server, monkeypatch):
    noted = noted_turns(monkeypatch)
    over, socks = threading.Event(), []

    def send() -> None:
        with suppress(OSError), server.connect(HEAD + CHUNKED) as sock:
            socks.append(sock)
            while not over.is_set():
                sock.sendall(b"1\r\n \r\n" * 10_000)

    def spent() -> list[float]:  # not while the first one is alone
        return [seconds for seconds, share in noted if share == connection._SHARE]

    begun = time.monotonic()
    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(spent()) >= 30)
        seconds = time.monotonic() - begun
        assert sum(spent()[:-6]) <= connection._SHARE * seconds * 1.2
        assert server.ask()[0] == 200
    finally:
        over.set()
        for sock in socks:  # which may wait to be read from
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


def test_who_sends_endless_small_pieces_is_ended(server, monkeypatch, log):
    monkeypatch.setattr(connection, "_MOST_S", 0.05)
    monkeypatch.setattr(connection, "_SHARE", 0.5)  # what others sent before is read soon
    keep_sending(server.connect(HEAD + CHUNKED))
    assert any("in too small pieces" in message for message in log.messages)
    large = b" " * (MOST_BODY_BYTES - 1000) + HELLO_BYTES
    assert server.ask(large)[0] == 200


# Answers


def test_samples_and_prompts_count_for_the_queue(endless_gguf):
    texts = {"prompt": ["Tell me"] * 200, "max_tokens": 2000, "frequency_penalty": -2}
    with running({"pebble": endless_gguf}, slots=2, queue=2) as server:
        count = server.generator.running
        status, said = server.ask({**STORY, "n": 5, "temperature": 1})
        assert (status, said["error"]["message"][:12]) == (400, "n: 5 answers")
        asking = server.begin({**STORY, "n": 3, "temperature": 1, "stream": True})
        until(lambda: count("pebble") == 3)
        assert server.refused({**HELLO, "n": 2}) == (429, "queue_full")
        one = server.begin({**HELLO, "stream": True})
        until(lambda: count("pebble") == 4)
        asking.close()
        assert one.getresponse().status == 200
        one.close()
        until(lambda: count("pebble") == 0)
        asking = server.begin(texts, TEXTS)  # takes no more of the queue than slots
        until(lambda: count("pebble") == 2)
        assert server.ask({"prompt": "x"}, "/v1/tokenize")[0] == 200
        one = server.begin({**HELLO, "stream": True})  # waits for a slot, and is not refused
        assert one.getresponse().status == 200
        assert count("pebble") <= 3
        asking.close()
        one.close()
        until(lambda: count("pebble") == 0)


def test_what_waits_is_ended_with_the_server_and_what_runs_is_finished(
    ingot, endless_gguf, tmp_path
):
    process, door = started(ingot, tmp_path, f"pebble={endless_gguf}", "--slots", 1)
    response = door.begin({**STORY, "stream": True, "max_tokens": 900}).getresponse()
    for _ in range(3):
        response.readline()
    waiting = [door.begin(STORY) for _ in range(3)]
    waiting.append(door.begin({"prompt": ["Tell"] * 100, "max_tokens": 900}, TEXTS))
    waiting.append(door.begin({**STORY, "n": 8, "temperature": 1}))
    slow = door.connect(HEAD + b"Content-Length: 1000\r\n\r\n{")
    silent = door.connect(HEAD)
    worker = worker_of(process)
    assert worker is not None
    worker.suspend()

    def queued() -> int:
        step(process)  # a few tokens of the answer that runs
        return int(door.get("/v1/stats")[1]["models"]["pebble"]["queued"])

    until(queued, lambda count: count >= 5)
    process.send_signal(signal.SIGTERM)
    worker.resume()
    for one in waiting:
        answer = one.getresponse()
        assert answer.status == 503
        assert json.loads(answer.read())["error"]["code"] == "shutting_down"
    assert ended(slow).startswith(b"HTTP/1.1 503")
    assert ended(silent) == b""
    slow.close()  # nothing more comes of it
    silent.close()
    text = response.read().decode()
    assert '"finish_reason": "length"' in text
    assert text.rstrip().endswith("data: [DONE]")
    assert process.wait(60) == 0
    assert b"finishing" in process.stderr.read()


def test_a_constraint_that_fails_on_its_way_is_the_requests_fault():
    """Which texts the parser gives up on depends on what is sampled."""
    for said, status in ((f"{UNFOLLOWED}: lexer error", 400), ("the engine failed", 500)):
        with pytest.raises(HttpError) as problem:
            _check(unstarted(Request([1]), FinishReason.ERROR, said))
        assert problem.value.status == status
