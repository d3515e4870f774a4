"""Files and batches by the `openai` package's own calls."""

from __future__ import annotations

import json
import os
import signal
import struct
import time
from base64 import b64decode

import pytest
from openai import BadRequestError, NotFoundError

from runtimes.models.memory import estimate
from runtimes.models.registry import read_model
from runtimes.settings import RunnerSettings
from tests.app.endless import CONTEXT, SAMPLING
from tests.app.serve.batches.conftest import begin, ended, line, lines_of
from tests.support import until

SECONDS = 11  # after so long a request of the engine gives way to no other by default
TALE = {**SAMPLING, "ignore_eos": True}


def test_a_batch_from_its_file_to_its_results(client):
    lines = [line(i, max_tokens=8) for i in range(20)]
    lines[7] = line(7, "word " * 3000)
    began = begin(client, lines)
    assert began.status == "validating"
    batch = ended(client, began)
    assert (batch.status, batch.model, batch.errors) == ("completed", "pebble", None)
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (20, 19, 1)
    times = batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at
    assert sorted(times) == list(times)

    answers = lines_of(client, batch.output_file_id)
    assert [one["custom_id"] for one in answers] == [f"row-{i}" for i in range(20) if i != 7]
    tokens = 0
    for one in answers:
        body = one["response"]["body"]
        assert (one["response"]["status_code"], one["error"]) == (200, None)
        assert (body["object"], body["model"]) == ("chat.completion", "pebble")
        assert body["choices"][0]["message"]["content"]
        tokens += body["usage"]["total_tokens"]
    assert batch.usage.total_tokens == tokens
    [error] = lines_of(client, batch.error_file_id)
    assert error["custom_id"] == "row-7"
    assert error["response"]["status_code"] == 400
    assert error["response"]["body"]["error"]["code"] == "context_length_exceeded"

    output = client.files.retrieve(batch.output_file_id)
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert output.bytes == len(client.files.content(output.id).content)


def test_completions(client):
    lines = [
        {
            "custom_id": name,
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": "pebble", "prompt": f"{name} is", "max_tokens": 5, "n": 2},
        }
        for name in ("Paris", "Rome")
    ]
    batch = ended(client, begin(client, lines, "/v1/completions"))
    assert batch.status == "completed"
    answers = lines_of(client, batch.output_file_id)
    assert [one["custom_id"] for one in answers] == ["Paris", "Rome"]
    assert [len(one["response"]["body"]["choices"]) for one in answers] == [2, 2]


def request(name, url, **body):
    return {"custom_id": name, "method": "POST", "url": url, "body": {"model": "pebble", **body}}


def test_embeddings_are_those_of_single_requests(client):
    texts = ["The capital of France is Paris.", "What is 12 + 30?", "Rome"]
    url = "/v1/embeddings"
    lines = [
        request("all", url, input=texts),
        request("short", url, input=texts[0], dimensions=8, encoding_format="base64"),
        request("wide", url, input=texts[0], dimensions=10**6),
    ]
    batch = ended(client, begin(client, lines, url))
    assert (batch.status, batch.request_counts.completed) == ("completed", 2)
    whole, short = (one["response"]["body"] for one in lines_of(client, batch.output_file_id))
    assert batch.usage.output_tokens == 0
    assert batch.usage.input_tokens == sum(
        body["usage"]["prompt_tokens"] for body in (whole, short)
    )
    alone = client.embeddings.create(model="pebble", input=texts, encoding_format="float")
    for one, other in zip(whole["data"], alone.data, strict=True):
        assert one["embedding"] == pytest.approx(other.embedding, abs=1e-6)
    cut = client.post("/embeddings", body=lines[1]["body"], cast_to=object)
    packed, expected = (
        struct.unpack("<8f", b64decode(one["data"][0]["embedding"])) for one in (short, cut)
    )
    assert packed == pytest.approx(expected, abs=1e-6)
    [wide] = lines_of(client, batch.error_file_id)
    assert wide["error"]["code"] == "invalid_value"


def test_prompts_are_said_again_with_their_scores(client):
    url = "/v1/completions"
    body = {"prompt": ["One, two, three", "Rome is"], "echo": True, "logprobs": 1}
    lines = [request("scores", url, **body, max_tokens=0)]
    batch = ended(client, begin(client, lines, url))
    assert batch.status == "completed"
    [line] = lines_of(client, batch.output_file_id)
    alone = client.completions.create(model="pebble", **body, max_tokens=0)
    for one, other in zip(line["response"]["body"]["choices"], alone.choices, strict=True):
        assert (one["index"], one["text"]) == (other.index, other.text)
        assert one["logprobs"]["tokens"] == other.logprobs.tokens
        pairs = zip(one["logprobs"]["token_logprobs"], other.logprobs.token_logprobs, strict=True)
        assert all(a == b or abs(a - b) < 0.5 for a, b in pairs)


def test_rows_may_have_tools_and_schemas(client):
    schema = {
        "type": "object",
        "properties": {"n": {"type": "boolean"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "add", "parameters": schema}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    lines = [
        line(0, tools=[tool], tool_choice="required", max_tokens=60),
        line(1, response_format=form, max_tokens=60),
    ]
    batch = ended(client, begin(client, lines))
    assert batch.status == "completed"
    called, formed = (
        one["response"]["body"]["choices"][0] for one in lines_of(client, batch.output_file_id)
    )
    [call] = called["message"]["tool_calls"]
    assert call["function"]["name"] == "add"
    assert isinstance(json.loads(call["function"]["arguments"])["n"], bool)
    assert isinstance(json.loads(formed["message"]["content"])["n"], bool)


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "ä\\..\\b", 'say "hi"', "a\nb"])
def test_a_file_is_what_was_uploaded_whatever_it_is_called(client, name):
    content = bytes(range(256)) * 3000 + b"\r\n--no-boundary\r\n"
    made = client.files.create(file=(name, content), purpose="batch")
    assert made.bytes == len(content)
    assert made.filename
    assert client.files.content(made.id).content == content
    assert client.files.retrieve(made.id) == made
    assert made.id in [file.id for file in client.files.list()]
    assert client.files.delete(made.id).deleted
    assert made.id not in [file.id for file in client.files.list()]
    for gone in (client.files.content, client.files.retrieve, client.files.delete):
        with pytest.raises(NotFoundError):
            gone(made.id)


def test_a_name_is_kept_as_it_is(client):
    assert client.files.create(file=("../../x", b""), purpose="batch").filename == "../../x"


def test_lists_come_in_pages(client):
    files = [client.files.create(file=(f"{i}", b"{}"), purpose="batch").id for i in range(5)]
    newest = [file.id for file in client.files.list(limit=2, purpose="batch")]
    assert newest[:5] == files[::-1]
    behind = client.files.list(after=files[2], limit=1, order="asc")
    assert [file.id for file in behind.data] == [files[3]]
    assert behind.has_more
    batches = [begin(client, ["x"]).id for _ in range(3)]
    assert [batch.id for batch in client.batches.list(limit=1)][:3] == batches[::-1]
    page = client.batches.list(limit=1, after=batches[2])
    assert [batch.id for batch in page.data] == [batches[1]]
    with pytest.raises(BadRequestError, match="batch_0"):
        client.batches.list(after="batch_0")


def test_metadata_comes_back(client):
    file = client.files.create(file=("a", b"x"), purpose="batch")
    said = {"owner": "ä", "run": "7"}
    made = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata=said,
    )
    assert client.batches.retrieve(made.id).metadata == said


def test_a_batch_keeps_its_input_when_the_file_is_deleted(client):
    batch = begin(client, [line(i, max_tokens=4) for i in range(6)])
    client.files.delete(batch.input_file_id)
    assert ended(client, batch).request_counts.completed == 6


def running(server):
    """The engine's figures, if rows of the oldest batch run."""
    loaded = server.pool.loaded().get("pebble")
    stats = loaded and loaded.engine.stats()
    return stats and server.batches.running()[0][1] and stats.running and stats


def test_cancelling_ends_what_runs_and_keeps_what_is_done(endless):
    short = [line(i, max_tokens=3) for i in range(4)]
    with endless() as server:
        client = server.client()
        first = begin(client, short + [line(i, "Tell a tale.", **TALE) for i in range(4, 9)])
        queued = begin(client, [line(0, max_tokens=3)])
        until(lambda: client.batches.retrieve(first.id).request_counts.completed == 4)
        until(lambda: running(server))

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


def test_a_chat_does_not_wait_for_a_batch(endless):
    with endless() as server:
        client = server.client()
        batch = begin(client, [line(i, "Tell a tale.", **TALE) for i in range(6)])
        # Both slots are taken for minutes, and the rows have had them for a while.
        until(lambda: running(server), lambda stats: stats and stats.running == 2)
        time.sleep(SECONDS)
        for _ in range(3):
            answer = client.chat.completions.create(
                model="pebble", messages=[{"role": "user", "content": "Hi"}], max_tokens=3
            )
            assert answer.choices[0].message.content
        assert client.batches.retrieve(batch.id).status == "in_progress"


def test_a_batch_gives_its_room_to_another_model(endless, endless_gguf, monkeypatch):
    monkeypatch.setattr("app.serve.pool.REST_S", 1.0)
    model = read_model(endless_gguf)
    need = estimate(model, RunnerSettings(slots=2, context=CONTEXT)).total / 2**30
    with endless("pebble", "granite", memory=1.5 * need) as server:
        client = server.client()
        batch = begin(client, [line(i, "Tell a tale.", **TALE) for i in range(6)])
        until(lambda: running(server), lambda stats: stats)
        answer = client.chat.completions.create(
            model="granite", messages=[{"role": "user", "content": "Hi"}], max_tokens=3
        )
        assert answer.choices[0].message.content
        assert client.batches.retrieve(batch.id).status == "in_progress"
        # When nobody asks for the other one any more.
        until(lambda: running(server), lambda stats: stats)
        assert set(server.pool.loaded()) == {"pebble"}


def test_the_engine_may_die_under_a_batch(client, server):
    batch = begin(client, [line(i, max_tokens=40, ignore_eos=True) for i in range(40)])
    until(lambda: client.batches.retrieve(batch.id).request_counts.completed)
    os.kill(server.pool.loaded()["pebble"].engine.pid, signal.SIGKILL)
    batch = ended(client, batch)
    assert (batch.status, batch.request_counts.completed) == ("completed", 40)
    found = [one["custom_id"] for one in lines_of(client, batch.output_file_id)]
    assert found == [f"row-{i}" for i in range(40)]
