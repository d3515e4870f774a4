"""What happens to requests whose client goes, whose worker dies, or whose server is told to end."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import InternalServerError

from tests.adapters import write_adapter
from tests.app.serve.conftest import QUESTION, STORY, Running, running, started
from tests.support import until

SHORT = {"messages": QUESTION, "max_tokens": 8}


@pytest.fixture(scope="module")
def endlessly(endless_gguf: Path) -> Iterator[Running]:
    with running({"pebble": endless_gguf}, slots=2, queue=1) as found:
        with found.pool.lease(None) as served:
            assert served.engine.context == 4096  # as long as a slot gets by default
        yield found


def runs(server: Running, running: int, queued: int = 0) -> None:
    """Wait until so many requests do."""

    def now() -> tuple[int, int]:
        stats = server.engine().stats()
        return stats.running, stats.queued

    until(now, lambda seen: seen == (running, queued))


def test_a_client_that_goes_frees_its_slot_or_its_place(endlessly):
    whole, stream = (endlessly.begin({**STORY, "stream": one}) for one in (False, True))
    runs(endlessly, 2)
    waiting = endlessly.begin({**STORY, "stream": True})
    runs(endlessly, 2, 1)
    answer = endlessly.begin(SHORT).getresponse()
    assert answer.status == 429
    assert int(answer.headers["Retry-After"]) >= 1
    assert endlessly.ask({"input": "a text"}, "/v1/embeddings")[0] == 429
    waiting.close()
    runs(endlessly, 2)
    whole.close()
    runs(endlessly, 1)
    stream.close()
    runs(endlessly, 0)
    assert endlessly.ask(SHORT)[0] == 200


def test_a_worker_that_dies_is_a_503_and_nothing_else(endlessly):
    found: list[InternalServerError] = []

    def ask() -> None:
        try:
            endlessly.client().chat.completions.create(model="pebble", **STORY)
        except InternalServerError as error:
            found.append(error)

    deaths = endlessly.engine().deaths
    thread = threading.Thread(target=ask)
    thread.start()
    response = endlessly.begin({**STORY, "stream": True}).getresponse()
    response.readline()
    runs(endlessly, 2)
    os.kill(endlessly.engine().pid, signal.SIGKILL)
    thread.join(120)
    [error] = found
    assert (error.status_code, error.code) == (503, "worker_crash")
    last = response.read().decode().strip().splitlines()[-1].removeprefix("data: ")
    assert json.loads(last)["error"]["code"] == "worker_crash"
    assert endlessly.ask(SHORT)[0] == 200
    assert endlessly.figures("ingot_worker_restarts_total") == {("pebble",): deaths + 1}


def test_models_make_room_for_each_other_and_those_in_use_stay(gguf_file, onnx_folder):
    from app.models.planning import choose
    from app.options import ModelOptions, PlanOptions
    from runtimes.models.memory import estimate

    def need(path: Path) -> float:
        choice = choose(str(path), ModelOptions(), PlanOptions(), "batch", 1)
        return estimate(choice.file, choice.settings).total / 2**30

    room = max(need(gguf_file), need(onnx_folder)) * 1.2
    with running({"a": gguf_file, "b": onnx_folder}, slots=1, memory=room) as server:
        for name in "aba":
            if name == "a" and server.pool.loaded():
                with server.pool.lease("b"):
                    assert server.refused({**SHORT, "model": "a"}) == (503, "model_busy")
            assert server.ask({**SHORT, "model": name})[0] == 200
            assert set(server.pool.loaded()) == {name}


def test_a_model_that_does_not_fit_says_what_would(gguf_file):
    with running({"pebble": gguf_file}, slots=128, memory=0.1) as server:
        status, said = server.ask(SHORT)
        assert (status, "--slots" in said["error"]["message"]) == (507, True)


def test_a_second_ctrl_c_ends_at_once(ingot, endless_gguf, tmp_path):
    options = ("--slots", 1, "--context", 32768)
    process, door = started(ingot, tmp_path, f"pebble={endless_gguf}", *options)
    asking = door.begin({**STORY, "stream": True})
    answer = asking.getresponse()  # held: a client that leaves ends its request
    answer.readline()
    process.send_signal(signal.SIGINT)
    line = until(process.stderr.readline, lambda line: b"finishing 1 request" in line)
    assert b"ctrl+c ends at once" in line
    process.send_signal(signal.SIGINT)
    assert process.wait(60) in (0, 130)
    answer.close()


def test_a_model_is_loaded_as_the_settings_say_and_the_log_has_no_text(
    ingot, command, gguf_file, pebble, tmp_path, monkeypatch
):
    settings = tmp_path / "config.toml"
    named = '[models."own.name"]\naliases = ["gpt-4o"]\n'
    settings.write_text(f"{named}slots = 3\ncontext = 256\nthreads = 1\n")
    monkeypatch.setenv("INGOT_CONFIG", str(settings))
    model = f"own.name={gguf_file}"
    adapter = f"own.name:a={write_adapter(pebble, tmp_path / 'a.gguf', 0)}"
    options = ("--context", 1024, "--log-json", "--adapter", adapter)
    process, door = started(ingot, tmp_path / "data", model, *options)
    told = door.get("/v1/models")[1]["data"]
    assert [one["id"] for one in told] == ["own.name", "own.name:a", "gpt-4o", "gpt-4o:a"]
    for path in ("load", "unload"):
        body = {"lora_name": "b", "lora_path": "b.gguf"}
        assert door.refused(body, f"/v1/{path}_lora_adapter") == (403, "adapters_fixed")
    # The command line comes first.
    assert [(one["slots"], one["context"]) for one in told] == [(3, 1024)] * 4
    # As an agent asks that writes the time into its system prompt.
    rules = " ".join(f"Rule {n}: be kind to {n} cats." for n in range(24))
    for minute in (41, 42):
        system = {"role": "system", "content": f"You are kind. It is 10:{minute} now. {rules}"}
        asked = {"model": "gpt-4o", "messages": [system, *QUESTION], "max_tokens": 2}
        assert door.ask(asked)[1]["model"] == "own.name"
    process.terminate()
    said = process.stderr.read().decode()
    assert process.wait(60) == 0
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    chats = [line for line in lines if line.get("path") == "/v1/chat/completions"]
    assert [line["status"] for line in chats] == [200, 200]
    assert all(line["completion_tokens"] > 0 for line in chats)
    assert "France" not in said
    [parts] = [one["message"] for one in lines if "are computed again" in one.get("message", "")]
    assert "10:4" in parts
    for text, said in (
        ('[models."own.name"]\nslots = "many"\n', f"{settings}: models.own.name.slots must be a"),
        (f"{named}[models.b]\naliases = ['gpt-4o']\n", "two models are called gpt-4o"),
    ):
        settings.write_text(text)
        refused = command("serve", model, f"b={gguf_file}", "--port", 0)
        assert (refused.returncode, said in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a=MODEL", "--host", "0.0.0.0"), "--api-key"),
        (("a=MODEL", "--port", "BUSY"), "--port names another"),
        (("a=MODEL", "--host", "no.such.host.invalid"), "no.such.host.invalid"),
        (("a=MODEL", "a=MODEL"), "two models are called a"),
    ],
)
def test_what_cannot_be_served_is_said(command, gguf_file, server, arguments, said):
    places = {"MODEL": str(gguf_file), "BUSY": str(server.port)}
    for name, place in places.items():
        arguments = [one.replace(name, place) for one in arguments]
    done = command("serve", *arguments)
    assert (done.returncode, said in done.stderr) == (2, True)
