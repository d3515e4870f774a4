"""Agents ask a server: requests with more than it knows, and conversations of which each
turn repeats all earlier ones, in the form of each client."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.app.serve.batches.conftest import begin, ended, line, lines_of
from tests.app.serve.conftest import Running, running
from tests.support import until, with_context

CONTEXT = 16_384
RULES = "\n".join(f"Rule {i}: read a file before you change it." for i in range(60))
TOOLS = {
    name: {
        "type": "object",
        "properties": {"path": {"type": "string", "description": f"What to {name}."}},
        "required": ["path"],
    }
    for name in ("read", "write", "search", "run")
}
ASKED = [f"Step {i}: what is {i} + {i}?" for i in range(3)]


@pytest.fixture(scope="module")
def agents(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose model takes long prompts."""
    folder = tmp_path_factory.mktemp("agents")
    model = with_context(gguf_file, CONTEXT, folder / "agent.gguf")
    with running({"agent": model}, slots=2, context=CONTEXT, data=folder / "data") as found:
        yield found


@pytest.fixture
def ask(agents: Running) -> Any:
    """Posts a body."""

    def post(path: str, **body: Any) -> Any:
        return httpx2.post(f"{agents.address}{path}", json=body, timeout=300)

    return post


def codex(turns: list[tuple[str, str]], asked: str) -> dict[str, Any]:
    """Instructions and surroundings as messages, results of tools as items."""

    def said(role: str, text: str) -> dict[str, Any]:
        kind = "output_text" if role == "assistant" else "input_text"
        return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}

    items = [said("developer", RULES), said("user", "<environment_context>\n  <cwd>/w</cwd>")]
    for number, (question, answer) in enumerate(turns):
        call = {"call_id": f"call_{number}", "name": "read", "arguments": '{"path": "a.txt"}'}
        items += [
            said("user", question),
            {"type": "reasoning", "summary": [], "encrypted_content": f"x{number}"},
            {"type": "function_call", **call},
            {"type": "function_call_output", "call_id": f"call_{number}", "output": "hello"},
            said("assistant", answer),
        ]
    functions = [
        {"type": "function", "name": name, "strict": False, "parameters": schema}
        for name, schema in TOOLS.items()
    ]
    return {
        "input": [*items, said("user", asked)],
        "tools": [*functions, {"type": "web_search"}, {"type": "namespace", "name": "x"}],
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": f"key {len(turns)}",
        "client_metadata": {"turn": str(len(turns))},
        "max_output_tokens": 8,
    }


def claude(turns: list[tuple[str, str]], asked: str) -> dict[str, Any]:
    """A header of the system text that is new in each turn, and marks of where to cache."""
    header = f"x-anthropic-billing-header: cc_version=2.1; cch={len(turns) * 7919:05x};"
    system = [{"type": "text", "text": header}, {"type": "text", "text": RULES}]
    messages: list[dict[str, Any]] = []
    for number, (question, answer) in enumerate(turns):
        used = {"type": "tool_use", "id": f"t{number}", "name": "read", "input": {"path": "a.txt"}}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "hello"}
        messages += [
            {"role": "user", "content": [{"type": "text", "text": question}]},
            {"role": "assistant", "content": [used]},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": [{"type": "text", "text": answer}]},
        ]
    last = {"type": "text", "text": asked, "cache_control": {"type": "ephemeral"}}
    return {
        "system": system,
        "messages": [*messages, {"role": "user", "content": [last]}],
        "tools": [
            {"name": name, "input_schema": {**schema, "propertyNames": {"type": "string"}}}
            for name, schema in TOOLS.items()
        ],
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": f"session {len(turns)}"},
        "max_tokens": 8,
    }


def opencode(turns: list[tuple[str, str]], asked: str) -> dict[str, Any]:
    """Chat completions."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": RULES}]
    for number, (question, answer) in enumerate(turns):
        function = {"name": "read", "arguments": '{"path":"a.txt"}'}
        call = {"id": f"c{number}", "type": "function", "function": function}
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": "hello"},
            {"role": "assistant", "content": answer},
        ]
    return {
        "messages": [*messages, {"role": "user", "content": asked}],
        "tools": [
            {"type": "function", "function": {"name": name, "parameters": schema}}
            for name, schema in TOOLS.items()
        ],
        "tool_choice": "auto",
        "max_tokens": 8,
    }


def of_chat(body: Any) -> tuple[int, int]:
    usage = body["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def of_responses(body: Any) -> tuple[int, int]:
    usage = body["usage"]
    return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]


def of_messages(body: Any) -> tuple[int, int]:
    usage = body["usage"]
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached, cached


CLIENTS = {
    "codex": ("/v1/responses", codex, of_responses),
    "claude": ("/v1/messages", claude, of_messages),
    "opencode": ("/v1/chat/completions", opencode, of_chat),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_no_turn_is_read_twice(ask, agents, client, caplog):
    path, request, counts = CLIENTS[client]
    turns: list[tuple[str, str]] = []
    before = 0
    with caplog.at_level(logging.INFO, "ingot.access"):
        for asked in ASKED:
            answer = ask(path, **request(turns, asked))
            assert answer.status_code == 200, answer.text
            prompt, cached = counts(answer.json())
            assert prompt > before
            assert cached >= 0.99 * before, (len(turns), cached, before)
            said = f" · cached {cached:,} of {prompt:,} · first "
            until(lambda said=said: any(said in one.getMessage() for one in caplog.records))
            before = prompt
            turns.append((asked, "It is so."))
    assert before > 1000
    same = counts(ask(path, **request(turns[:-1], ASKED[-1])).json())
    assert same == (before, before - 1)  # the last token is computed for its logits


def test_what_is_left_out_is_told_to_the_client_and_once_in_the_log(ask, agents, caplog):
    hints = {"own_hint": {"a": 1}, "bad\r\nname": 1}
    search = [{"type": "search_of_ours"}, {"type": "search_of_ours"}]
    with caplog.at_level(logging.INFO, "app.serve"):
        for stream in (False, True, False):
            answer = ask(
                "/v1/responses",
                input="hi",
                tools=search,
                max_output_tokens=2,
                stream=stream,
                **hints,
            )
            assert answer.status_code == 200
            told = answer.headers["x-ingot-ignored"]
            assert told == (
                "own_hint, bad??name, tools[0].type=search_of_ours, tools[1].type=search_of_ours"
            )
        ask(
            "/v1/chat/completions",
            messages=[{"role": "user", "content": "hi"}],
            own_hint=1,
            max_tokens=1,
        )
    said = [one.getMessage() for one in caplog.records if "left out" in one.getMessage()]
    assert said == [
        "/v1/responses: own_hint is left out: it changes nothing here",
        "/v1/responses: bad??name is left out: it changes nothing here",
        "/v1/responses: tools[].type=search_of_ours is left out: it changes nothing here",
        "/v1/chat/completions: own_hint is left out: it changes nothing here",
    ]
    many = {f"hint_{i}_{'x' * 90}": 1 for i in range(1000)}
    answer = ask("/v1/responses", input="hi", max_output_tokens=1, **many)
    assert len(answer.headers["x-ingot-ignored"]) < 1100
    plain = ask("/v1/responses", input="hi", max_output_tokens=1, metadata={})
    assert "x-ingot-ignored" not in plain.headers
    counted = ask(
        "/v1/messages/count_tokens",
        messages=[{"role": "user", "content": "hi"}],
        context_management={},
    )
    assert counted.headers["x-ingot-ignored"] == "context_management"


def test_lines_of_a_batch_may_have_hints(agents, caplog):
    client = agents.client()
    rows = [line(i, model="agent", max_tokens=2, hint_of_rows=i) for i in range(3)]
    with caplog.at_level(logging.INFO, "app.serve"):
        batch = ended(client, begin(client, rows))
    assert batch.status == "completed"
    assert len(lines_of(client, batch.output_file_id)) == 3
    said = [one.getMessage() for one in caplog.records if "hint_of_rows" in one.getMessage()]
    assert said == ["/v1/chat/completions: hint_of_rows is left out: it changes nothing here"]


def test_more_tokens_than_fit_end_with_the_context(server):
    def post(path: str, **body: Any) -> Any:
        asked = {"model": "pebble", "ignore_eos": True, **body}
        answer = httpx2.post(f"{server.address}{path}", json=asked, timeout=300)
        assert answer.status_code == 200, answer.text
        return answer.json()

    text = "word " * 100
    count = server.ask({"model": "pebble", "prompt": text}, "/v1/tokenize")[1]["count"]
    text *= round(0.9 * server.engine().context / count)
    said = [{"role": "user", "content": text}]
    [choice] = post("/v1/chat/completions", messages=said, max_tokens=10**6)["choices"]
    assert choice["finish_reason"] == "length"
    answer = post("/v1/responses", input=text, max_output_tokens=10**6)
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    answer = post("/v1/messages", messages=said, max_tokens=10**6)
    assert answer["stop_reason"] == "model_context_window_exceeded"


def test_the_root_names_the_server(server):
    found = httpx2.get(f"{server.address}/")
    assert found.json() == {"server": "ingot", "models": ["pebble", "pebble-onnx"]}
    head = httpx2.head(f"{server.address}/")
    assert (head.status_code, head.content) == (200, b"")
    foreign = httpx2.get(f"{server.address}/", headers={"host": "evil.example"})
    assert foreign.status_code == 403
