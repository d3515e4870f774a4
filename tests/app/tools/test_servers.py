"""Servers of tools: what they return, and that nothing that they do wrong harms anything."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.config.settings import ToolSettings
from app.openai.tool_forms import form_of
from app.openai.tool_parser import ToolParser
from app.tools import transport
from app.tools.calls import CallReader, CallState, ToolCall, call_messages, limit_of
from app.tools.servers import ToolServers
from runtimes.errors import RequestError
from tests.support import until

pytest.importorskip("mcp")
SERVER = str(Path(__file__).with_name("server.py"))


def server(how: str, **more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": (SERVER, how), **more}


def called(servers: ToolServers, name: str, arguments: str = "{}", most: int = 65536) -> ToolCall:
    return servers.call(ToolCall("1", name, arguments), most // 2).result(60)


@pytest.fixture
def serve() -> Any:
    """``ToolServers`` of servers by their names; ended with the test."""
    made: list[ToolServers] = []

    def make(seconds: int = 30, **servers: Any) -> ToolServers:
        made.append(ToolServers(ToolSettings(seconds=seconds, servers=servers)))
        return made[-1]

    yield make
    children = psutil.Process().children(recursive=True)
    for one in made:
        one.close()
    assert not [one for one in children if one.is_running() and SERVER in " ".join(one.cmdline())]


def test_tools_are_offered_and_called(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "secret")
    monkeypatch.setenv("INGOT_SECRET", "not for servers")
    servers = serve(
        one=server("token", env={"TOKEN": "a ${HERE}"}),
        two=server("image"),
        off=server("broken"),
        lacks=server("good", env={"X": "${NOT_THERE}"}),
        both={"command": "x", "url": "http://x"},
        gone={"command": "/no/such/program"},
    )
    assert servers.tools(["one"]) is None  # nothing runs yet
    problems = servers.open(["one", "two", "off", "lacks", "both", "gone"])
    assert sorted(problems) == ["both", "gone", "lacks", "off"]
    assert "no module named luck" in problems["off"]
    assert "NOT_THERE" in problems["lacks"]
    assert "/no/such/program" in problems["gone"]
    names = [one["name"] for one in servers.tools(["one", "two"]).functions]
    assert names == [
        *("zone", "say", "act", "bad_name_here"),
        *("two_zone", "two_say", "two_act", "two_bad_name_here"),
    ]
    assert servers.server_of("two_say") == "two"
    said = called(servers, "say", '{"text": "hello"}')
    assert (said.state, said.result) == (CallState.DONE, "hello")
    assert called(servers, "act").result == "a secret alone"
    assert called(servers, "two_act").result == "[image image/png: not a text]"
    assert called(servers, "nothing").state is CallState.FAILED
    with pytest.raises(RequestError, match=r"no tool server 'three'.*one, two"):
        servers.require(["one", "three"])
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(RequestError, match=r"pip install 'ingot\[mcp\]'"):
        servers.open(["one"])


def test_wrong_servers_are_told_in_words(serve: Any) -> None:
    ways = ("die", "kill", "flood", "endless", "noise", "big", "escape", "error")
    servers = serve(**{how: server(how) for how in ways})
    assert servers.open(["escape"]) == {}
    shown = called(servers, "act")
    assert shown.result == "␛]0;owned␇␛[2Jred\n\\u202eevil"
    assert servers.open(ways) == {}
    for how, part in (
        ("die", "die ended within the call: out of ␛[31mluck"),
        ("kill", "kill ended within the call: signal 9 ended it"),
        ("flood", "flood ended within the call: it sends messages without end"),
        ("endless", "a message of it has more than 32 MiB"),
        ("error", "no such file"),
    ):
        failed = called(servers, f"{how}_act")
        assert failed.state is CallState.FAILED
        assert part in failed.result
    assert called(servers, "noise_act").result == "quiet"
    cut = called(servers, "big_act", most=1000)
    assert cut.state is CallState.DONE
    assert cut.result == "é" + "x" * 998 + "\n[cut here: 1,000 of 10,485,762 bytes]"
    # Whatever has ended is started again by the next call.
    assert called(servers, "die_say", '{"text": "again"}').result == "again"


def test_a_hung_server_a_killed_one_and_a_cancelled_call(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_GRACE_S", 0.1)
    servers = serve(seconds=1, hang=server("hang"), mute=server("mute"), pid=server("pid"))
    problems = servers.open(["hang", "mute", "pid"])
    assert problems == {"mute": "mute does not answer within 1 s"}
    began = time.monotonic()
    failed = called(servers, "act")
    assert failed.result == "no answer within 1 s; hang was ended"
    assert 1 <= failed.seconds < 5
    assert called(servers, "say", '{"text": "again"}').result == "again"
    future = servers.call(ToolCall("1", "act", "{}"), 100)
    threading.Timer(0.2, future.cancel).start()
    with pytest.raises(BaseException) as cancelled:
        future.result(10)
    assert type(cancelled.value).__name__ == "CancelledError"
    assert time.monotonic() - began < 20
    first = int(called(servers, "pid_act").result)
    os.kill(first, signal.SIGKILL)
    until(lambda: not psutil.pid_exists(first))
    # A call meets its end where nobody has noticed it yet; the next one starts it anew.
    assert int(until(lambda: called(servers, "pid_act").result, str.isdigit)) != first


class _Http(BaseHTTPRequestHandler):
    """The same server over HTTP: its answers are JSON, or, of ``act``, bytes without end."""

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method, params = asked.get("method"), asked.get("params") or {}
        if self.headers.get("X-Key") != "open":
            self.send_error(401)
            return
        if params.get("name") == "act":
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(b" " * 2**20)
        schema = {"type": "object"}
        tools = [{"name": one, "inputSchema": schema} for one in ("say", "act")]
        known = {"name": "web", "version": "1"}
        version = params.get("protocolVersion")
        result = {
            "initialize": {
                "protocolVersion": version,
                "capabilities": {"tools": {}},
                "serverInfo": known,
            },
            "tools/list": {"tools": tools},
            "tools/call": {"content": [{"type": "text", "text": str(params.get("arguments"))}]},
        }.get(method)
        said = {"jsonrpc": "2.0", "id": asked.get("id")}
        error = {"code": -32601, "message": "Method not found"}
        body = json.dumps(said | ({"error": error} if result is None else {"result": result}))
        self.send_response(200 if "id" in asked else 202)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body) if "id" in asked else 0))
        self.end_headers()
        if "id" in asked:
            self.wfile.write(body.encode())

    def do_GET(self) -> None:
        self.send_error(405)


def test_a_server_over_http(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "open")
    http = ThreadingHTTPServer(("127.0.0.1", 0), _Http)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{http.server_port}/mcp"
    servers = serve(
        web={"url": url, "headers": {"X-Key": "${KEY}"}},
        shut={"url": url},
        none={"url": "http://127.0.0.1:1/mcp"},
    )
    problems = servers.open(["web", "shut", "none"])
    assert sorted(problems) == ["none", "shut"]
    assert "shut does not start: " in problems["shut"]
    assert "none does not start: " in problems["none"]
    assert called(servers, "say", '{"a": 1}').result == "{'a': 1}"
    failed = called(servers, "act")
    assert failed.state is CallState.FAILED
    assert "it sends messages without end" in failed.result
    assert called(servers, "say").state is CallState.DONE
    servers.close()
    http.shutdown()
    http.server_close()


def test_rules_of_calls_and_what_the_model_reads() -> None:
    call = ToolCall("a", "zone", '{"name": "UTC"}')
    same = ToolCall("b", "zone", '{ "name":"UTC" }')
    assert limit_of(call, [], 2) is None
    assert limit_of(call, [same], 2) is None
    assert limit_of(call, [same, call], 9) == "the model has made the same call 3 times"
    assert (
        limit_of(call, [ToolCall("c", "x", "{}")] * 2, 2) == "a turn may make 2 calls (mcp.calls)"
    )
    assert ToolCall("a", "say", '{"text": "a\\n\\u001b"}').line == 'say(text="a\\n\\u001b")'
    for text, left, name in (
        ('Well. <tool_call>\n{"name": "zo', "Well.", ""),
        ("Well. <", "Well. <", None),
    ):
        parser, reader = ToolParser(form_of(None), ["zone"]), CallReader()
        said = reader.take(parser.feed(text)) + reader.end(parser, whole=False)
        assert (reader.text, said) == (left, left)
        assert [(one.name, one.state) for one in reader.calls] == (
            [] if name is None else [(name, CallState.CUT)]
        )
    parser, reader = ToolParser(form_of(None), ["zone"]), CallReader()
    text = '<tool_call>\n{"name": "zone", "arguments": {"na'
    reader.take(parser.feed(text))
    reader.end(parser, whole=False)
    made, returned = call_messages(
        [call.ended(CallState.DONE, "+00:00"), same.ended(CallState.REFUSED, "no"), *reader.calls]
    )
    assert [one["function"]["arguments"] for one in made] == [{"name": "UTC"}] * 2
    contents = [one["content"] for one in returned]
    assert contents == ["+00:00", "This call was not made: no."]
