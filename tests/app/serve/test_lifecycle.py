"""What happens to requests whose client goes, whose worker dies, or whose server is told to end."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
from pathlib import Path

import pytest
from openai import APIStatusError, InternalServerError, OpenAI

from tests.app import endless
from tests.app.serve.conftest import Running, running, started
from tests.support import until

STORY = {
    "model": "pebble",
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "frequency_penalty": -2,
    "max_tokens": endless.CONTEXT - 1024,
}
SHORT = {
    "model": "pebble",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
}


@pytest.fixture
def endlessly(endless_gguf: Path):
    with running({"pebble": endless_gguf}, slots=2, queue=1) as found:
        with found.pool.lease(None) as served:
            assert served.engine.context == 4096  # as long as a slot gets by default
        yield found


def stats(server: Running):
    return server.pool.loaded()["pebble"].engine.stats()


def begin(server: Running, **more) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request("POST", "/v1/chat/completions", json.dumps({**STORY, **more}))
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_frees_its_slot(endlessly, stream):
    connection = begin(endlessly, stream=stream)
    until(lambda: stats(endlessly).running == 1)
    connection.close()
    until(lambda: stats(endlessly).running == 0)
    assert endlessly.client().chat.completions.create(**SHORT).choices[0].message.content


def test_a_client_that_goes_while_it_waits_frees_its_place(endlessly):
    running_now = [begin(endlessly, stream=True) for _ in range(2)]
    until(lambda: stats(endlessly).running == 2)
    waiting = begin(endlessly, stream=True)
    until(lambda: stats(endlessly).queued == 1)
    with pytest.raises(APIStatusError) as refused:
        endlessly.client().chat.completions.create(**SHORT)
    assert refused.value.status_code == 429
    assert int(refused.value.response.headers["Retry-After"]) >= 1
    with pytest.raises(APIStatusError) as refused:
        endlessly.client().embeddings.create(model="pebble", input="a text")
    assert refused.value.status_code == 429
    waiting.close()
    until(lambda: stats(endlessly).queued == 0)
    for connection in running_now:
        connection.close()
    until(lambda: stats(endlessly).running == 0)
    assert endlessly.client().chat.completions.create(**SHORT).choices[0].message.content


def test_a_worker_that_dies_is_a_503_and_nothing_else(endlessly):
    found: list[BaseException] = []

    def ask() -> None:
        try:
            endlessly.client().chat.completions.create(**STORY)
        except InternalServerError as error:
            found.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    streamed = begin(endlessly, stream=True)
    until(lambda: stats(endlessly).running == 2)
    response = streamed.getresponse()
    response.readline()
    os.kill(endlessly.pool.loaded()["pebble"].engine.pid, signal.SIGKILL)
    thread.join(120)
    [error] = found
    assert error.status_code == 503
    assert error.code == "worker_crash"
    rest = response.read().decode()
    last = json.loads(rest.strip().splitlines()[-1].removeprefix("data: "))
    assert last["error"]["code"] == "worker_crash"
    assert endlessly.client().chat.completions.create(**SHORT).choices[0].message.content


def test_models_make_room_for_each_other_and_those_in_use_stay(gguf_file, onnx_folder):
    from app.models.planning import choose
    from app.options import ModelOptions, PlanOptions
    from runtimes.models.memory import estimate

    def need(path: Path) -> float:
        choice = choose(str(path), ModelOptions(), PlanOptions(), "batch", 1)
        return estimate(choice.file, choice.settings).total / 2**30

    room = max(need(gguf_file), need(onnx_folder)) * 1.2
    models = {"a": gguf_file, "b": onnx_folder}
    with running(models, slots=1, memory=room) as server:
        client = server.client()
        client.chat.completions.create(**{**SHORT, "model": "a"})
        assert set(server.pool.loaded()) == {"a"}
        client.chat.completions.create(**{**SHORT, "model": "b"})
        assert set(server.pool.loaded()) == {"b"}
        with server.pool.lease("b"), pytest.raises(APIStatusError) as refused:
            client.chat.completions.create(**{**SHORT, "model": "a"})
        assert refused.value.status_code == 503
        assert refused.value.code == "model_busy"
        client.chat.completions.create(**{**SHORT, "model": "a"})
        assert set(server.pool.loaded()) == {"a"}


def test_a_model_that_does_not_fit_says_what_would(gguf_file):
    with running({"pebble": gguf_file}, slots=128, memory=0.1) as server:
        with pytest.raises(APIStatusError) as refused:
            server.client().chat.completions.create(**SHORT)
        assert refused.value.status_code == 507
        assert "--slots" in refused.value.message


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_told_to_end_finishes_what_runs(ingot, endless_gguf, tmp_path, number):
    process, port = started(ingot, tmp_path, f"pebble={endless_gguf}", "--slots", 1)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(
        "POST", "/v1/chat/completions", json.dumps({**STORY, "stream": True, "max_tokens": 400})
    )
    response = connection.getresponse()
    response.readline()
    process.send_signal(number)
    text = response.read().decode()
    assert text.rstrip().endswith("data: [DONE]")
    assert '"finish_reason": "length"' in text
    assert process.wait(60) == 0
    assert b"finishing 1 request" in process.stderr.read()


def test_a_second_ctrl_c_ends_at_once(ingot, endless_gguf, tmp_path):
    process, port = started(
        ingot, tmp_path, f"pebble={endless_gguf}", "--slots", 1, "--context", 32768
    )
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/chat/completions", json.dumps({**STORY, "stream": True}))
    response = connection.getresponse()
    response.readline()
    process.send_signal(signal.SIGINT)
    line = until(process.stderr.readline, lambda line: b"finishing" in line)
    assert b"ctrl+c ends at once" in line
    process.send_signal(signal.SIGINT)
    assert process.wait(60) in (0, 130)


def test_the_log_has_no_text(ingot, gguf_file, tmp_path):
    process, port = started(ingot, tmp_path, f"pebble={gguf_file}", "--log-json", "--slots", 1)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/chat/completions", json.dumps(SHORT))
    assert (
        "Paris" in json.loads(connection.getresponse().read())["choices"][0]["message"]["content"]
    )
    line = json.loads(process.stderr.readline())
    process.terminate()  # what is written then is for people
    assert line["status"] == 200
    assert line["completion_tokens"] > 0
    assert "France" not in json.dumps(line)
    assert process.wait(60) == 0


def test_a_model_is_loaded_as_the_settings_say(ingot, gguf_file, tmp_path):
    settings = tmp_path / "config.toml"
    named = '[models."own.name"]\naliases = ["gpt-4o"]\n'
    settings.write_text(f"{named}slots = 3\ncontext = 256\nthreads = 1\n")
    env = {"INGOT_CONFIG": str(settings)}
    process, port = started(
        *(ingot, tmp_path / "data", f"own.name={gguf_file}", "--context", 128), env=env
    )
    client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
    assert [model.id for model in client.models.list()] == ["own.name", "gpt-4o"]
    for name in ("own.name", "gpt-4o"):
        told = client.models.retrieve(name)
        assert (told.slots, told.context) == (3, 128)  # the command line comes first
        assert client.chat.completions.create(**{**SHORT, "model": name}).model == "own.name"
    process.terminate()
    assert process.wait(60) == 0
    for text, said in (
        ('[models."own.name"]\nslots = "many"\n', f"{settings}: models.own.name.slots must be a"),
        (f"{named}[models.b]\naliases = ['gpt-4o']\n", "two models are called gpt-4o"),
    ):
        settings.write_text(text)
        models = (f"own.name={gguf_file}", f"b={gguf_file}")
        refused = ingot.start("serve", *models, "--port", 0, env=env)
        assert refused.wait(60) == 2
        assert said in refused.stderr.read().decode()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--host", "0.0.0.0"), "--api-key"),
        (("--port", "BUSY"), "--port names another"),
        (("--host", "no.such.host.invalid"), "no.such.host.invalid"),
    ],
)
def test_what_cannot_be_listened_on_is_said(command, gguf_file, server, arguments, said):
    given = [str(server.port) if one == "BUSY" else one for one in arguments]
    done = command("serve", gguf_file, *given)
    assert done.returncode == 2
    assert said in done.stderr


def test_two_models_of_one_name_are_refused(command, gguf_file):
    done = command("serve", f"a={gguf_file}", f"a={gguf_file}")
    assert done.returncode == 2
    assert "two models are called a" in done.stderr


def test_the_log_says_where_a_prompt_parts_from_what_is_cached(ingot, gguf_file, tmp_path):
    """As an agent's does that writes the time into its system prompt."""
    process, port = started(ingot, tmp_path / "data", gguf_file)
    rules = " ".join(f"Rule {n}: be kind to {n} cats." for n in range(24))
    client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    for minute in (41, 42):
        system = f"You are kind. It is 10:{minute} now. {rules}"
        messages = [{"role": "system", "content": system}, SHORT["messages"][0]]
        client.chat.completions.create(model=gguf_file.stem, messages=messages, max_tokens=2)
    process.send_signal(signal.SIGINT)
    said = process.stderr.read().decode()
    assert process.wait() == 0
    (line,) = [line for line in said.splitlines() if "are computed again" in line]
    assert "10:4" in line
