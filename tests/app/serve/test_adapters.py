"""Clients choose a LoRA adapter by the model's name; whose prefixes are whose; batches."""

from __future__ import annotations

import io
import json
import shutil
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from app.chat.remote import connect
from app.serve.options import ServeAdapters
from runtimes.errors import RequestError
from runtimes.request import Request, SamplingParams
from tests.adapters import write_adapter
from tests.app.serve.conftest import Running, running, started
from tests.support import until

STORY = "Tell me a story about a fox."
SYSTEM = "You answer questions about the cities of the world. " * 12
NAMES = (None, "a0", "a1", "a3")


@pytest.fixture(scope="module")
def files(pebble: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter(pebble, folder / f"{name}.gguf", int(name[1:]))
        for name in NAMES
        if name
    }


@pytest.fixture(scope="module")
def server(gguf_file: Path, files: dict[str, Path]) -> Any:
    beside = {"pebble": [f"{name}={path}" for name, path in files.items()]}
    with running({"pebble": gguf_file}, adapters=beside, slots=4) as found:
        yield found


def model_name(adapter: str | None, model: str = "pebble") -> str:
    return model if adapter is None else f"{model}:{adapter}"


def ask(server: Running, model: str, system: str = "") -> tuple[str, int, str]:
    """The answer, how many tokens of its prompt were cached, and the model that it names."""
    answer = server.client().chat.completions.create(
        model=model,
        messages=[
            *([{"role": "system", "content": system}] if system else []),
            {"role": "user", "content": STORY},
        ],
        max_tokens=12,
    )
    cached = answer.usage.prompt_tokens_details.cached_tokens
    return answer.choices[0].message.content, cached, answer.model


def alone(server: Running) -> dict[str | None, str]:
    found = {name: ask(server, model_name(name))[0] for name in NAMES}
    assert len(set(found.values())) >= 3
    return found


def test_models_are_listed_with_their_adapters(server):
    listed = {one.id: one for one in server.client().models.list()}
    assert list(listed) == [model_name(name) for name in NAMES]
    assert listed["pebble:a1"].parent == "pebble"
    assert not hasattr(listed["pebble"], "parent")
    one = server.client().models.retrieve("pebble:a3")
    assert (one.id, one.parent) == ("pebble:a3", "pebble")


def test_clients_at_once_are_answered_by_their_own_adapter(server):
    expected = alone(server)
    asked = [name for name in NAMES for _ in range(6)]
    with ThreadPoolExecutor(len(asked)) as pool:
        found = list(pool.map(lambda name: ask(server, model_name(name)), asked))
    assert [text for text, _, _ in found] == [expected[name] for name in asked]
    assert [model for _, _, model in found] == [model_name(name) for name in asked]


def test_every_door_takes_it_and_names_it(server):
    client, expected = server.client(), alone(server)
    chunks = list(
        client.chat.completions.create(
            model="pebble:a3",
            messages=[{"role": "user", "content": STORY}],
            max_tokens=12,
            stream=True,
        )
    )
    assert {chunk.model for chunk in chunks} == {"pebble:a3"}
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == expected["a3"]
    said = client.responses.create(model="pebble:a3", input=STORY, max_output_tokens=12)
    assert (said.model, said.output_text) == ("pebble:a3", expected["a3"])
    several = client.completions.create(model="pebble:a3", prompt=["a", "b"], max_tokens=4)
    assert (several.model, len(several.choices)) == ("pebble:a3", 2)
    figures = urllib.request.urlopen(f"{server.address}/metrics").read().decode()
    assert 'ingot_ttft_seconds_count{model="pebble"}' in figures
    assert "pebble:a3" not in figures  # figures are the model's


def test_the_chat_talks_with_one_of_a_server(server):
    expected = alone(server)
    engine = connect(f"{server.address}#pebble:a3")
    ids = engine.encode_chat([{"role": "user", "content": STORY}])
    done = engine.submit(Request(ids, SamplingParams(max_tokens=12))).result(60)
    assert (engine.name, done.text) == ("pebble:a3", expected["a3"])
    assert engine.stats().slots == 4


def test_what_there_is_not(server):
    client = server.client()
    with pytest.raises(openai.NotFoundError, match="no model 'pebble:nix' here"):
        ask(server, "pebble:nix")
    with pytest.raises(openai.BadRequestError, match="made without adapters: ask for pebble"):
        client.embeddings.create(model="pebble:a0", input="a")


def test_saved_prefixes_are_an_adapters_own(gguf_file, files, tmp_path):
    """Nobody is given those of another adapter, or of another file under the same name."""
    saved, file = tmp_path / "saved", tmp_path / "poet.gguf"
    beside = {"pebble": [f"poet={file}"]}

    def asked(folder: Path | None, *models: str) -> list[tuple[str, int]]:
        """What the first of a few says, and how many tokens of its prompt were cached."""
        with running({"pebble": gguf_file}, folder, adapters=beside, slots=2) as server:
            found = [ask(server, model, SYSTEM)[:2] for model in models]
            for model in models:
                ask(server, model, SYSTEM)  # what is asked again is worth saving
            return found

    shutil.copy(files["a0"], file)
    (poet, _), (base, _) = asked(None, "pebble:poet", "pebble")
    assert poet != base
    assert asked(saved, "pebble:poet") == [(poet, 0)]
    assert len(list(saved.glob("*+*.prefix"))) == len(list(saved.glob("*.prefix"))) == 1
    assert asked(saved, "pebble") == [(base, 0)]
    (text, cached), (same, also) = asked(saved, "pebble:poet", "pebble")
    assert (text, same) == (poet, base)
    assert min(cached, also) > 100
    shutil.copy(files["a3"], file)
    (other, none), (same, also) = asked(saved, "pebble:poet", "pebble")
    assert (same, none) == (base, 0)
    assert also > 100
    assert other == asked(None, "pebble:poet")[0][0] != poet


def test_a_batch_is_answered_by_an_adapter(gguf_file, files, tmp_path):
    lines = "".join(
        json.dumps(
            {
                "custom_id": f"r{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": "pebble:a3",
                    "messages": [{"role": "user", "content": STORY}],
                    "max_tokens": 12,
                },
            }
        )
        + "\n"
        for number in range(3)
    )
    beside = {"pebble": [str(files["a3"])]}
    with running({"pebble": gguf_file}, adapters=beside, slots=2, data=tmp_path) as server:
        client = server.client()
        expected = ask(server, "pebble:a3")[0]
        assert expected != ask(server, "pebble")[0]
        file = client.files.create(file=io.BytesIO(lines.encode()), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        until(lambda: client.batches.retrieve(batch.id).status in ("completed", "failed"))
        done = client.batches.retrieve(batch.id)
        assert done.status == "completed", done.errors
        for line in client.files.content(done.output_file_id).text.splitlines():
            body = json.loads(line)["response"]["body"]
            assert body["model"] == "pebble:a3"
            assert body["choices"][0]["message"]["content"] == expected


def test_the_command(ingot, gguf_file, files, tmp_path):
    more = ["--adapter", files["a0"], "--adapter", f"other:x={files['a3']}", "--slots", "2"]
    models = [f"pebble={gguf_file}", f"other={gguf_file}"]
    process, port = started(ingot, tmp_path, *models, *more)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models") as answer:
        listed = [one["id"] for one in json.load(answer)["data"]]
    assert listed == ["pebble", "pebble:a0", "other", "other:x"]
    process.terminate()
    process.communicate()
    refused = ingot("serve", *models, "--adapter", f"x:y={files['a0']}")
    assert refused.returncode == 2
    assert "there is no model 'x'; there is: pebble, other" in refused.stderr
    refused = ingot("serve", *models, "--adapter", gguf_file)
    assert refused.returncode == 3
    assert "no LoRA adapter" in refused.stderr


def test_which_model_an_adapter_is_of():
    given = ServeAdapters(["p.gguf", "x=q.gguf", "b:y=r.gguf", "a:z=s.gguf"])
    assert given.by_model(["a", "b"]) == {
        "a": ["p=p.gguf", "x=q.gguf", "z=s.gguf"],
        "b": ["y=r.gguf"],
    }
    with pytest.raises(RequestError, match="there is no model 'c'"):
        ServeAdapters(["c:x=p.gguf"]).by_model(["a"])
