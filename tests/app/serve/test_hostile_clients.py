"""Clients that mean harm: what they send is bounded before it costs, and others are answered."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.serve import bodies, connection, guard
from app.serve.bodies import Charge, Held
from app.serve.errors import HttpError
from app.serve.generate import _check
from app.serve.options import MOST_BODY_BYTES, MOST_DEPTH, MOST_NAMES, MOST_VALUES
from app.serve.pool import MOST_SLOTS
from runtimes.checks import UNFOLLOWED
from runtimes.engine.sequence import unstarted
from runtimes.request import FinishReason, Request
from tests.app import endless
from tests.app.serve.conftest import Running, running, started
from tests.app.serve.test_rude_clients import HEAD, answered, connect, ended
from tests.support import until

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
STORY = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "frequency_penalty": -2,
    "max_tokens": endless.CONTEXT - 1024,
}
CHAT, TEXTS = "/v1/chat/completions", "/v1/completions"
QUIET_S = 120.0


def begin(
    server: Running | int, body: Any = HELLO, path: str = CHAT, method: str = "POST", **headers: str
) -> http.client.HTTPConnection:
    port = server if isinstance(server, int) else server.port
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=QUIET_S)
    data = body if isinstance(body, (bytes, type(None))) else json.dumps(body)
    asking.request(method, path, data, headers)
    return asking


def ask(server: Running | int, *arguments: Any, **more: Any) -> tuple[int, dict[str, Any]]:
    asking = begin(server, *arguments, **more)
    answer = asking.getresponse()
    found = answer.status, json.loads(answer.read())
    asking.close()
    return found


def code(found: tuple[int, dict[str, Any]]) -> tuple[int, str]:
    return found[0], found[1]["error"]["code"]


# Models that load


def test_a_large_body_gets_more_of_the_time_where_it_is_alone(server, monkeypatch):
    shares, wait_s = [], connection._turns.wait_s

    def noted(now: float, seconds: float, share: float) -> float:
        shares.append(share)
        return wait_s(now, seconds, share)

    monkeypatch.setattr(connection._turns, "wait_s", noted)
    body = json.dumps(HELLO).encode()
    pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in body + b" " * 20_000) + b"0\r\n\r\n"

    def read_alone() -> bool:
        shares.clear()
        sock = connect(server, HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
        sock.sendall(pieces)
        assert ended(sock).startswith(b"HTTP/1.1 200")
        return shares[-1] == connection._SHARE_ALONE

    until(read_alone)  # the first test: others leave requests that the server waits for


def test_requests_for_a_model_that_loads_keep_no_others_waiting(gguf_file):
    with running({"a": gguf_file, "b": gguf_file}, slots=2, queue=100) as server:
        assert ask(server)[0] == 200
        with server.pool._loading:  # no load gets on
            waiting = [begin(server, {**HELLO, "model": "b"}) for _ in range(80)]
            waiting += [begin(server, {"model": "b", "input": "x"}, "/v1/embeddings")]
            counting = begin(server, {"model": "b", "prompt": "x"}, "/v1/tokenize")
            adapters = [
                begin(server, {"lora_name": f"x{number}"}, "/v1/unload_lora_adapter")
                for number in range(40)
            ]
            until(lambda: server.generator.running("b") == 81)
            assert ask(server)[0] == 200
            assert ask(server, {"input": "x"}, "/v1/embeddings")[0] == 200
            assert ask(server, {"prompt": "x"}, "/v1/tokenize")[0] == 200
            assert begin(server, None, "/metrics", "GET").getresponse().status == 200
            gone, waiting = waiting[:20], waiting[20:]
            for one in gone:
                one.close()
            until(lambda: server.generator.running("b") == 61)
        assert {one.getresponse().status for one in (*waiting, counting)} == {200}
        assert {one.getresponse().status for one in adapters} == {403}
        until(lambda: server.generator.running("b") == 0)
        with server.pool._lock:
            assert not any(one.leases for one in server.pool._loaded.values())


def test_those_who_wait_for_a_load_count_for_the_queue(gguf_file):
    with running({"a": gguf_file, "b": gguf_file}, slots=2, queue=1) as server:
        assert ask(server)[0] == 200
        with server.pool._loading:
            waiting = [begin(server, {**HELLO, "model": "b"}) for _ in range(MOST_SLOTS + 1)]
            until(lambda: server.generator.running("b") == MOST_SLOTS + 1)
            assert code(ask(server, {**HELLO, "model": "b"})) == (429, "queue_full")
        assert {one.getresponse().status for one in waiting} == {200}


def test_a_model_that_cannot_be_loaded_is_told_to_all_who_wait(gguf_file, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(gguf_file.read_bytes()[:100_000])
    with running({"a": gguf_file, "b": broken}, slots=2) as server:
        with server.pool._loading:
            waiting = [begin(server, {**HELLO, "model": "b"}) for _ in range(8)]
            until(lambda: server.generator.running("b") == 8)
        assert {one.getresponse().status for one in waiting} == {500}
        assert server.generator.running("b") == 0
        assert ask(server)[0] == 200


# Bodies


BOMBS = {
    "lists": b'{"metadata": [' + b"[]," * 5_000_000 + b"1]}",
    "objects": b"[" + b"{}," * (MOST_VALUES + 1) + b"1]",
    "numbers": b'{"messages": [' + b"1," * (MOST_VALUES + 1) + b"1]}",
    "names": b"{" + b",".join(b'"%d":0' % n for n in range(MOST_NAMES + 1)) + b"}",
    "texts": b'["\\"[' + b'","\\\\","' * (MOST_VALUES // 2) + b'"]',
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/rerank"])
def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(server, name, path):
    status, found = ask(server, BOMBS[name], path)
    assert status == 413
    assert "body has more than" in found["error"]["message"]


@pytest.mark.parametrize(("open_", "close"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
def test_a_body_that_is_nested_too_deeply_is_refused(server, open_, close):
    for path in (CHAT, TEXTS, "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/tokenize"):
        for depth in (MOST_DEPTH + 1, 900, 100_000):
            nested = open_ * depth + b"1" + close * depth
            body = b'{"prompt": "x", "input": "x", "metadata": ' + nested + b"}"
            status, found = ask(server, body, path)
            assert status == 400
            assert "nested too deeply" in found["error"]["message"]


def test_brackets_and_escapes_in_texts_are_no_values(server):
    said = '[{,:"\\' * 40_000 + "\u00e9"
    for body in ({"prompt": said}, {"prompt": f"{said}\\"}):
        status, found = ask(server, body, "/v1/tokenize")
        assert (status, found["error"]["code"]) == (400, "context_length_exceeded")


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


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's way with freed memory")
def test_the_memory_of_bodies_is_bounded_by_what_they_become(ingot, gguf_file, tmp_path):
    process, port = started(ingot, tmp_path, f"pebble={gguf_file}", "--slots", 1)
    memory = psutil.Process(process.pid).memory_info
    before, most = memory().rss, 0
    within = b'{"metadata": [' + b"[]," * (MOST_VALUES // 2 - 10) + b"1]}"
    asking = [begin(port, body) for body in (BOMBS["lists"], within) for _ in range(6)]
    waiting = list(asking)
    while waiting:
        most = max(most, memory().rss)
        try:
            waiting[0].sock.settimeout(0.05)
            assert waiting[0].getresponse().status in (400, 413, 503)
            waiting.pop(0)
        except TimeoutError:
            continue
    assert most - before < 700 * 2**20
    assert ask(port)[0] == 200


def test_large_bodies_are_read_one_after_the_other_beside_the_loop(server, monkeypatch):
    gate, counted, reading = threading.Event(), bodies.checked_values, []

    def held(data: bytes, most: int) -> int:
        if len(data) > bodies.SMALL_BYTES:
            reading.append(data)
            assert gate.wait(QUIET_S)
        return counted(data, most)

    monkeypatch.setattr(bodies, "checked_values", held)
    body = {"prompt": ["x" * 2**21], "max_tokens": 1}
    first = begin(server, body, TEXTS)
    until(lambda: reading)
    gone = [begin(server, body, TEXTS) for _ in range(5)]
    before = answered(server, 499)
    assert ask(server)[0] == 200
    for one in gone:
        one.close()
    until(lambda: answered(server, 499) == before + 5)
    assert len(reading) == 1
    monkeypatch.setattr(bodies, "_TURN_S", 0.0)
    assert code(ask(server, body, TEXTS)) == (503, "bodies_full")
    monkeypatch.setattr(bodies, "_TURN_S", QUIET_S)
    gate.set()
    assert first.getresponse().status == 400
    assert code(ask(server, body, TEXTS)) == (400, "context_length_exceeded")


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
}
FIELDS = ("model", "user", "metadata", "stop", "prompt", "input", "messages", "tools", "lora_name")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_half_a_surrogate_pair_anywhere_is_a_bad_request(server, path, stream):
    bad = "a\ud800"
    for field in FIELDS:
        for value in (bad, [bad], {bad: 1}, {"a": bad}, [{"role": "user", "content": bad}]):
            body = {**PATHS[path], field: value} | ({"stream": True} if stream else {})
            status, found = ask(server, body, path)
            assert status == 400, (field, value)
            assert field in found["error"]["message"] or "body" in found["error"]["message"]
    for raw in (b'{"user": "\xed\xa0\x80"}', b'{"user": "\xff"}', b'"\\udc00\\ud800"', b"\x00\x00"):
        assert ask(server, raw, path)[0] == 400


def test_whole_pairs_and_escaped_backslashes_are_texts(server):
    body = {"prompt": "\U0001f600\\ud800"}
    assert ask(server, body, "/v1/tokenize")[0] == 200


@pytest.mark.parametrize("path", PATHS)
def test_numbers_that_are_none_are_a_bad_request(server, path):
    numbers = ("1e400", "-1e400", "NaN", "-Infinity", "1" * 5000, "1.0e99999999999999999999")
    for number in numbers:
        for field in ("seed", "temperature", "max_tokens", "n", "top_n", "user", "metadata"):
            rest = json.dumps(PATHS[path])[1:]
            status, _ = ask(server, f'{{"{field}": {number}, {rest}'.encode(), path)
            assert status == 400, (field, number)
    for field in ("seed", "max_tokens", "n", "temperature"):
        for number in ("10000000000000000000000", "true", "-1e308", '"1"', "[]"):
            rest = json.dumps({k: v for k, v in PATHS[path].items() if k != field})[1:]
            status, _ = ask(server, f'{{"{field}": {number}, {rest}'.encode(), path)
            assert status in (200, 400, 403), (field, number)


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
        assert ask(server, None, path, method)[0] in (404, 405)


# Connections


def test_a_head_that_is_too_large_is_431_in_the_form_of_an_error(server):
    for flood in (b"X-Flood: " + b"a" * 200_000 + b"\r\n", b"a: b\r\n" * 5000, b"a: b\r\n" * 300):
        found = ended(connect(server, HEAD + flood + b"\r\n"))
        head, _, body = found.partition(b"\r\n\r\n")
        assert head.split()[1] == b"431"
        assert b"connection: close" in head.lower()
        assert json.loads(body)["error"]["code"] == "headers_too_large"
    found = ended(connect(server, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a" * 200_000))
    assert found.startswith(b"HTTP/1.1 431")
    assert ask(server)[0] == 200


@pytest.fixture(scope="module")
def locked(gguf_file):
    with running({"pebble": gguf_file}, slots=2, queue=0, api_key="s3cret") as found:
        yield found


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


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("length", [b"Transfer-Encoding: chunked", b"Content-Length: 16000000"])
def test_an_answer_before_the_whole_body_ends_the_connection(locked, monkeypatch, name, length):
    monkeypatch.setattr(connection, "LINGER_S", 0.5)
    head, status = REFUSED[name]
    sock = connect(locked, head + length + b"\r\n\r\n" + b"1\r\na\r\n" * 10)
    found = b""
    while b"\r\n\r\n" not in found:
        found += sock.recv(65536)
    assert found.split()[1] == status
    assert b"\r\nconnection: close\r\n" in found.lower()
    sock.settimeout(QUIET_S)
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        keep_sending(sock)


def keep_sending(sock: socket.socket) -> None:
    while True:  # a time-out is another error
        sock.sendall(b"1\r\na\r\n" * 1000)


@pytest.mark.parametrize("size", [10, 200_000, 8_000_000, MOST_BODY_BYTES - 10])
def test_a_client_that_sends_all_of_its_body_first_reads_why_it_is_refused(locked, size):
    assert code(ask(locked, b"a" * size)) == (401, "invalid_api_key")


def test_a_refusal_of_a_request_that_has_all_come_keeps_the_connection(locked):
    asking = begin(locked, None, "/v1/models", "GET")
    for _ in range(3):
        assert asking.getresponse().read().startswith(b'{"error"')
        port = asking.sock.getsockname()
        asking.request("GET", "/v1/models")
        assert asking.sock.getsockname() == port


def test_input_that_takes_long_gets_a_part_of_the_time(server, monkeypatch):
    spent, wait_s = [], connection._turns.wait_s

    def noted(now: float, seconds: float, share: float) -> float:
        if share == connection._SHARE:  # not the first one, while it is alone
            spent.append(seconds)
        return wait_s(now, seconds, share)

    monkeypatch.setattr(connection._turns, "wait_s", noted)
    over, socks = threading.Event(), []

    def send() -> None:
        head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
        with suppress(OSError), connect(server, head) as sock:
            socks.append(sock)
            while not over.is_set():
                sock.sendall(b"1\r\n \r\n" * 10_000)

    begun = time.monotonic()
    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(spent) >= 100)
        seconds = time.monotonic() - begun
        assert sum(spent[:-6]) <= connection._SHARE * seconds * 1.2
        assert ask(server)[0] == 200
    finally:
        over.set()
        for sock in socks:  # which may wait to be read from
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


def test_a_body_in_small_pieces_is_read_all_the_same(server):
    body = json.dumps(HELLO).encode()
    pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in body + b" " * 600) + b"0\r\n\r\n"
    sock = connect(server, HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
    for at in range(0, len(pieces), 500):
        sock.sendall(pieces[at : at + 500])
    assert ended(sock).startswith(b"HTTP/1.1 200")


def test_who_sends_endless_small_pieces_is_ended(server, monkeypatch, caplog):
    monkeypatch.setattr(connection, "_MOST_S", 0.05)
    monkeypatch.setattr(connection, "_SHARE", 0.5)  # what others sent before is read soon
    sock = connect(server, HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    with (
        caplog.at_level("INFO", "app.serve"),
        pytest.raises((BrokenPipeError, ConnectionResetError)),
    ):
        keep_sending(sock)
    assert any("in too small pieces" in message for message in caplog.messages)
    large = b" " * (MOST_BODY_BYTES - 1000) + json.dumps(HELLO).encode()
    assert ask(server, large)[0] == 200


def test_refusals_in_great_number_are_answered_one_after_the_other(locked, monkeypatch):
    monkeypatch.setattr(guard, "_REFUSALS", 10)
    asking = begin(locked, None, "/v1/models", "GET")
    begun = time.monotonic()
    for _ in range(30):
        assert asking.getresponse().read()
        asking.request("GET", "/v1/models")
    assert time.monotonic() - begun > 0.3  # twenty of fifty a second
    assert ask(locked, HELLO, Authorization="Bearer s3cret")[0] == 200


# Answers


def test_prompts_times_samples_are_bounded(server):
    for prompts, n in ((256, 64), (256, 2), (5, 52), (32, 9)):
        body = {"prompt": ["x"] * prompts, "n": n, "temperature": 1, "max_tokens": 1}
        status, found = ask(server, body, TEXTS)
        assert status == 400
        assert "prompt and n" in found["error"]["message"]
    body = {"prompt": ["x"] * 4, "best_of": 65, "max_tokens": 1}
    assert ask(server, body, TEXTS)[0] == 400


def test_samples_count_for_the_queue(endless_gguf: Path):
    with running({"pebble": endless_gguf}, slots=2, queue=2) as server:
        found = ask(server, {**STORY, "n": 5, "temperature": 1})
        assert code(found) == (400, "invalid_value")
        assert found[1]["error"]["message"].startswith("n: 5 answers")
        asking = begin(server, {**STORY, "n": 3, "temperature": 1, "stream": True})
        until(lambda: server.generator.running("pebble") == 3)
        assert code(ask(server, {**HELLO, "n": 2})) == (429, "queue_full")
        one = begin(server, {**HELLO, "stream": True})
        until(lambda: server.generator.running("pebble") == 4)
        asking.close()
        assert one.getresponse().status == 200
        one.close()
        until(lambda: server.generator.running("pebble") == 0)


def test_a_body_with_many_prompts_takes_no_more_of_the_queue_than_slots(endless_gguf: Path):
    texts = {"prompt": ["Tell me"] * 200, "max_tokens": 2000, "frequency_penalty": -2}
    with running({"pebble": endless_gguf}, slots=2, queue=1) as server:
        asking = begin(server, texts, TEXTS)
        until(lambda: server.generator.running("pebble") == 2)
        assert ask(server, {"prompt": "x"}, "/v1/tokenize")[0] == 200
        one = begin(server, {**HELLO, "stream": True})  # waits for a slot, and is not refused
        assert one.getresponse().status == 200
        assert server.generator.running("pebble") <= 3
        asking.close()
        one.close()
        until(lambda: server.generator.running("pebble") == 0)


def test_many_prompts_are_answered_in_their_order(server):
    body = {"prompt": [f"{n} + 1 =" for n in range(9)], "n": 2, "max_tokens": 3, "temperature": 0}
    status, found = ask(server, body, TEXTS)
    assert status == 200
    one = [ask(server, {**body, "prompt": text}, TEXTS)[1]["choices"] for text in body["prompt"]]
    texts = [choice["text"] for choices in one for choice in choices]
    assert [choice["text"] for choice in found["choices"]] == texts


def test_what_waits_is_ended_with_the_server_and_what_runs_is_finished(
    ingot, endless_gguf: Path, tmp_path: Path
):
    process, port = started(ingot, tmp_path, f"pebble={endless_gguf}", "--slots", 1)
    first = begin(port, {**STORY, "stream": True, "max_tokens": 600})
    response = first.getresponse()
    response.readline()
    response.readline()
    response.readline()
    waiting = [begin(port, STORY) for _ in range(3)]
    waiting.append(begin(port, {"prompt": ["Tell"] * 100, "max_tokens": 900}, TEXTS))
    waiting.append(begin(port, {**STORY, "n": 8, "temperature": 1}))
    slow = connect_to(port, HEAD + b"Content-Length: 1000\r\n\r\n{")
    silent = connect_to(port, HEAD)
    engine = begin(port, None, "/v1/stats", "GET").getresponse()
    assert engine.status == 200

    def queued() -> int:
        stats = json.loads(begin(port, None, "/v1/stats", "GET").getresponse().read())
        return stats["models"]["pebble"]["queued"]

    until(queued, lambda count: count >= 5)
    process.send_signal(signal.SIGTERM)
    for one in waiting:
        answer = one.getresponse()
        assert answer.status == 503
        assert json.loads(answer.read())["error"]["code"] == "shutting_down"
    assert ended(slow).startswith(b"HTTP/1.1 503")
    assert ended(silent) == b""
    text = response.read().decode()
    assert '"finish_reason": "length"' in text
    assert process.wait(60) == 0


def connect_to(port: int, data: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=QUIET_S)
    sock.sendall(data)
    return sock


def test_a_constraint_that_fails_on_its_way_is_the_requests_fault():
    """Which texts the parser gives up on depends on what is sampled."""
    ended = unstarted(Request([1]), FinishReason.ERROR, f"{UNFOLLOWED}: lexer error")
    with pytest.raises(HttpError) as problem:
        _check(ended)
    assert problem.value.status == 400
    with pytest.raises(HttpError) as other:
        _check(unstarted(Request([1]), FinishReason.ERROR, "the engine failed"))
    assert other.value.status == 500
