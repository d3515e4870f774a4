"""Files and batches by the `openai` package's own calls."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace

import pytest
from openai import BadRequestError, NotFoundError

from app.models.planning import LoadChoice, choose
from app.serve import pool
from runtimes.models.memory import estimate
from runtimes.models.registry import read_model
from runtimes.settings import RunnerSettings
from tests.app.endless import CONTEXT
from tests.app.serve import conftest
from tests.app.serve.batches.conftest import TALE, begin, ended, line, lines_of
from tests.app.serve.conftest import HELLO, TEXTS
from tests.support import until

EMBEDDINGS = "/v1/embeddings"
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "boolean"}},
    "required": ["n"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}


def test_a_batch_from_its_file_to_its_results(client):
    lines = [line(i, max_tokens=8) for i in range(20)]
    lines[7] = line(7, "word " * 3000)
    lines[8] = line(8, tools=[TOOL], tool_choice="required", max_tokens=60)
    lines[9] = line(9, response_format=FORM, max_tokens=60)
    owner = {"owner": "ä", "run": "7"}
    began = begin(client, lines, metadata=owner)
    assert (began.status, client.batches.retrieve(began.id).metadata) == ("validating", owner)
    client.files.delete(began.input_file_id)  # the batch keeps it
    batch = ended(client, began)
    assert (batch.status, batch.model, batch.errors) == ("completed", "pebble", None)
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (20, 19, 1)
    times = batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at
    assert sorted(times) == list(times)

    answers = lines_of(client, batch.output_file_id)
    assert [one["custom_id"] for one in answers] == [f"row-{i}" for i in range(20) if i != 7]
    tokens, said = 0, {}
    for one in answers:
        body = one["response"]["body"]
        assert (one["response"]["status_code"], one["error"]) == (200, None)
        assert (body["object"], body["model"]) == ("chat.completion", "pebble")
        message = body["choices"][0]["message"]
        said[one["custom_id"]] = message["content"]
        for call in message.get("tool_calls", ()):
            said[one["custom_id"]] = call["function"]["arguments"]
        tokens += body["usage"]["total_tokens"]
    assert all(said.values())
    for name in ("row-8", "row-9"):
        assert isinstance(json.loads(said[name])["n"], bool)
    assert batch.usage.total_tokens == tokens
    [error] = lines_of(client, batch.error_file_id)
    assert (error["custom_id"], error["response"]["status_code"]) == ("row-7", 400)
    assert error["response"]["body"]["error"]["code"] == "context_length_exceeded"

    output = client.files.retrieve(batch.output_file_id)
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert output.bytes == len(client.files.content(output.id).content)
    with pytest.raises(BadRequestError, match="batch_output"):
        client.batches.create(input_file_id=output.id, endpoint=TEXTS, completion_window="24h")


def test_embeddings(client):
    lines = [
        line(0, url=EMBEDDINGS, input=["The capital of France is Paris.", "Rome"], dimensions=8),
        line(1, url=EMBEDDINGS, input="x", dimensions=10**6),
    ]
    batch = ended(client, begin(client, lines, EMBEDDINGS))
    assert (batch.status, batch.request_counts.completed) == ("completed", 1)
    [whole] = (one["response"]["body"] for one in lines_of(client, batch.output_file_id))
    usage = batch.usage
    assert (usage.output_tokens, usage.input_tokens) == (0, whole["usage"]["prompt_tokens"])
    alone = client.embeddings.create(encoding_format="float", **lines[0]["body"])
    for one, other in zip(whole["data"], alone.data, strict=True):
        assert one["embedding"] == pytest.approx(other.embedding, abs=1e-6)
    [wide] = lines_of(client, batch.error_file_id)
    assert wide["error"]["code"] == "invalid_value"


def test_a_file_is_what_was_uploaded_whatever_it_is_called(client):
    content = bytes(range(256)) * 3000 + b"\r\n--no-boundary\r\n"
    for name in ("../../x", "/etc/passwd", "ä\\..\\b", 'say "hi"', "a\nb"):
        made = client.files.create(file=(name, content), purpose="batch")
        assert made.bytes == len(content)
        assert made.filename if name != "../../x" else made.filename == name
        assert client.files.content(made.id).content == content
        assert client.files.retrieve(made.id) == made
        assert made.id in [file.id for file in client.files.list()]
        assert client.files.delete(made.id).deleted
        assert made.id not in [file.id for file in client.files.list()]
        for gone in (client.files.content, client.files.retrieve, client.files.delete):
            with pytest.raises(NotFoundError):
                gone(made.id)


def test_lists_come_in_pages(client):
    files = [client.files.create(file=(f"{i}", b"{}"), purpose="batch").id for i in range(5)]
    newest = [file.id for file in client.files.list(limit=2, purpose="batch")]
    assert newest[:5] == files[::-1]
    behind = client.files.list(after=files[2], limit=1, order="asc")
    assert ([file.id for file in behind.data], behind.has_more) == ([files[3]], True)
    batches = [begin(client, ["x"]).id for _ in range(3)]
    assert [batch.id for batch in client.batches.list(limit=1)][:3] == batches[::-1]
    page = client.batches.list(limit=1, after=batches[2])
    assert [batch.id for batch in page.data] == [batches[1]]
    with pytest.raises(BadRequestError, match="batch_0"):
        client.batches.list(after="batch_0")


def test_tales_are_counted_give_way_to_a_chat_and_are_cancelled(endless, monkeypatch):
    """Rows of a batch give their slots to any other request, however long they have had them."""

    def chosen(*arguments, **named) -> LoadChoice:
        choice = choose(*arguments, **named)
        return replace(choice, scheduling=replace(choice.scheduling, aging_s=0.1))

    monkeypatch.setattr(conftest, "choose", chosen)  # a server has its own time
    with endless() as server:
        client, none = server.client(), {("running",): 0, ("waiting",): 0}
        assert server.figures("ingot_batches") == none
        tales = [line(i, "Tell a tale.", **TALE) for i in range(4, 9)]
        first = begin(client, [line(i, max_tokens=3) for i in range(4)] + tales)
        until(lambda: client.batches.retrieve(first.id).request_counts.completed == 4)
        queued = begin(client, [line(0, max_tokens=3)])
        until(lambda: set(server.figures("ingot_batches").values()) == {1})
        assert server.figures("ingot_batch_rows_queued") == {("pebble",): 6}
        rows = server.figures("ingot_batch_rows_total")
        assert rows == {("pebble", "completed"): 4, ("pebble", "failed"): 0}

        until(lambda: server.engine().stats().running == 2)
        until(lambda: server.engine().stats().kv_tokens > 500)  # for more than the time above
        assert server.ask(HELLO)[0] == 200
        assert client.batches.retrieve(first.id).status == "in_progress"

        # Another one need not wait for it.
        assert client.batches.cancel(queued.id).status == "cancelling"
        gone = ended(client, queued)
        assert (gone.status, gone.output_file_id) == ("cancelled", None)
        client.batches.cancel(first.id)
        batch = ended(client, first)
        assert batch.status == "cancelled"
        assert batch.cancelling_at <= batch.cancelled_at
        answers = lines_of(client, batch.output_file_id)
        assert [one["custom_id"] for one in answers][:4] == [f"row-{i}" for i in range(4)]
        assert batch.error_file_id is None
        assert batch.request_counts.completed == len(answers) < 9
        with pytest.raises(BadRequestError, match="cancelled"):
            client.batches.cancel(first.id)
        assert server.batches.running() == []
        assert server.figures("ingot_batches") == none
        assert server.figures("ingot_batch_rows_queued") == {}
        rows = server.figures("ingot_batch_rows_total")
        assert rows["pebble", "completed"] == len(answers)


def test_a_batch_gives_its_room_to_another_model_and_waits_for_the_next_server(
    endless, endless_gguf, monkeypatch
):
    monkeypatch.setattr(pool, "REST_S", 0.2)
    model = read_model(endless_gguf)
    need = estimate(model, RunnerSettings(slots=2, context=CONTEXT)).total / 2**30
    memory = {"memory": 1.5 * need}
    with endless("pebble", "granite", **memory) as server:
        client = server.client()
        short = [line(i, max_tokens=3) for i in range(2)]
        batch = begin(client, [*short, *(line(i, "A tale.", **TALE) for i in range(2, 6))])

        def rows_run() -> bool:
            loaded = set(server.pool.loaded()) == {"pebble"}
            done = client.batches.retrieve(batch.id).request_counts.completed
            return loaded and done == 2 and server.engine().stats().running == 2

        until(rows_run)
        assert server.ask({**HELLO, "model": "granite"})[0] == 200
        assert client.batches.retrieve(batch.id).status == "in_progress"
        until(rows_run)  # when nobody asks for the other one any more
    with endless() as server:  # which the end of the first one did not keep
        client = server.client()
        found = client.batches.retrieve(batch.id)
        assert (found.status, found.request_counts.completed) == ("in_progress", 2)
        client.batches.cancel(batch.id)
        assert ended(client, batch).request_counts.completed == 2


def test_the_engine_may_die_under_a_batch(client, server):
    batch = begin(client, [line(i, max_tokens=40, ignore_eos=True) for i in range(40)])
    until(lambda: client.batches.retrieve(batch.id).request_counts.completed)
    os.kill(server.engine().pid, signal.SIGKILL)
    batch = ended(client, batch)
    assert (batch.status, batch.request_counts.completed) == ("completed", 40)
    found = [one["custom_id"] for one in lines_of(client, batch.output_file_id)]
    assert found == [f"row-{i}" for i in range(40)]
