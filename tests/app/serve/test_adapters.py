"""Clients choose a LoRA adapter by the name of a model, and load and unload those of a folder while
the server runs; whose prefixes are whose; batches."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from app.chat.remote import connect
from runtimes.request import Request, SamplingParams
from tests.adapters import write_adapter
from tests.app.serve.batches.conftest import begin, ended, line, lines_of
from tests.app.serve.conftest import Running, running

STORY = "Tell me a story about a fox."
SYSTEM = "You answer questions about the cities of the world. " * 12
ASKED: Any = {"messages": [{"role": "user", "content": STORY}], "max_tokens": 12}
LISTED = ["pebble", "pebble:a0", "pebble:x", "other"]


@pytest.fixture(scope="module")
def folder(pebble: Path, gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    for number in range(9):
        write_adapter(pebble, folder / f"a{number}.gguf", number)
    shutil.copy(gguf_file, folder / "model.gguf")
    (folder / "below").mkdir()
    shutil.copy(folder / "a0.gguf", folder / "below")
    return folder


@pytest.fixture(scope="module")
def server(gguf_file: Path, folder: Path) -> Any:
    """Two models, the first with two adapters from the start."""
    beside = {"pebble": [str(folder / "a0.gguf"), f"x={folder / 'a3.gguf'}"]}
    models = {"pebble": gguf_file, "other": gguf_file}
    with running(models, adapters=beside, slots=4, adapter_dir=folder) as found:
        yield found


def ask(server: Running, model: str, system: str = "") -> tuple[str, int, str]:
    """The answer, how many tokens of its prompt were cached, and the model that it names."""
    first = [{"role": "system", "content": system}] if system else []
    asked = {**ASKED, "messages": [*first, *ASKED["messages"]]}
    answer = server.client().chat.completions.create(model=model, **asked)
    cached = answer.usage.prompt_tokens_details.cached_tokens
    return answer.choices[0].message.content, cached, answer.model


def listed(server: Running) -> dict[str, Any]:
    return {one.id: one for one in server.client().models.list()}


def load(server: Running, name: Any, file: Any = "", **more: str) -> tuple[int, Any]:
    """Status and body of the answer, or its error."""
    path = file if file is None else file or f"{name}.gguf"
    body = {"lora_name": name, "lora_path": path, **more}
    status, said = server.ask(body, "/v1/load_lora_adapter")
    return status, said.get("error", said)


def unload(server: Running, name: str, **more: str) -> tuple[int, Any]:
    status, said = server.ask({"lora_name": name, **more}, "/v1/unload_lora_adapter")
    return status, said.get("error", said)


def test_clients_at_once_are_answered_by_their_own_adapter_as_others_come_and_go(server):
    found = listed(server)
    assert list(found) == LISTED
    assert found["pebble:x"].parent == "pebble"
    assert not hasattr(found["pebble"], "parent")
    names = LISTED[:3]
    right = {name: ask(server, name)[0] for name in names}
    assert len(set(right.values())) == 3
    asked = names * 7
    with ThreadPoolExecutor(4) as threads:
        answers = threads.map(lambda name: ask(server, name), asked)
        for number in range(1, 9):
            assert load(server, f"a{number}")[0] == (200 if number < 7 else 400)
        for number in range(1, 7):
            assert unload(server, f"a{number}")[0] == 200
        assert [(text, model) for text, _, model in answers] == [(right[n], n) for n in asked]


def test_every_door_takes_it_and_names_it(server):
    client, (expected, _, _) = server.client(), ask(server, "pebble:x")
    asked: Any = {"model": "pebble:x"}
    chunks = list(client.chat.completions.create(stream=True, **asked, **ASKED))
    assert {chunk.model for chunk in chunks} == {"pebble:x"}
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == expected
    said = client.responses.create(input=STORY, max_output_tokens=12, **asked)
    assert (said.model, said.output_text) == ("pebble:x", expected)
    several = client.completions.create(prompt=["a", "b"], max_tokens=4, **asked)
    assert (several.model, len(several.choices)) == ("pebble:x", 2)
    names = {name for (name,) in server.figures("ingot_ttft_seconds_count")}
    assert "pebble" in names <= {"pebble", "other"}  # figures are the model's
    with pytest.raises(openai.BadRequestError, match="made without adapters: ask for pebble"):
        client.embeddings.create(model="pebble:a0", input="a")
    engine = connect(f"{server.address}#pebble:x")
    ids = engine.encode_chat(ASKED["messages"])
    done = engine.submit(Request(ids, SamplingParams(max_tokens=12))).result(60)
    assert (engine.name, done.text) == ("pebble:x", expected)
    rows = [{**line(i, STORY, max_tokens=12, model="pebble:x")} for i in range(3)]
    batch = ended(client, begin(client, rows))
    bodies = [one["response"]["body"] for one in lines_of(client, batch.output_file_id)]
    assert [body["model"] for body in bodies] == ["pebble:x"] * 3
    assert {body["choices"][0]["message"]["content"] for body in bodies} == {expected}


def test_an_adapter_comes_and_goes(server):
    plain, _, _ = ask(server, "pebble")
    said = {"id": "pebble:poet", "object": "model", "loaded": True}
    assert load(server, "poet", "a3.gguf") == (200, said)
    assert list(listed(server)) == [*LISTED[:3], "pebble:poet", "other"]
    third = ask(server, "pebble:poet")[0]
    assert third != plain
    with server.pool.lease("pebble:poet") as served:
        assert served.adapter_file.digest
        status, error = unload(server, "poet")
        assert (status, error["code"]) == (409, "adapter_in_use")
        assert "1 requests use pebble:poet" in error["message"]
    assert unload(server, "poet") == (200, {**said, "loaded": False})
    assert list(listed(server)) == LISTED
    with pytest.raises(openai.NotFoundError, match="no model 'pebble:poet' here"):
        ask(server, "pebble:poet")
    assert load(server, "poet", "a5.gguf")[0] == 200
    assert ask(server, "pebble:poet")[0] != third
    assert unload(server, "poet")[0] == 200
    assert ask(server, "pebble")[0] == plain


def test_a_model_that_is_loaded_later_has_it(server):
    assert "other" not in server.pool.loaded()
    assert load(server, "a2", model="other")[0] == load(server, "a2")[0] == 200
    assert ask(server, "other:a2")[0] == ask(server, "pebble:a2")[0]
    for more in ({"model": "other"}, {}):
        assert unload(server, "a2", **more)[0] == 200


@pytest.mark.parametrize(
    ("name", "file", "status", "said"),
    [
        ("y", "none.gguf", 404, "has no file 'none.gguf'"),
        ("y", "../a1.gguf", 404, "has no file"),
        ("y", "below/a0.gguf", 404, "has no file"),
        ("y", "below", 404, "has no file"),
        ("y", "model.gguf", 400, "no LoRA adapter"),
        ("a0", "a1.gguf", 400, "there is an adapter 'a0' already"),
        ("a:b", "a1.gguf", 400, "cannot be called 'a:b'"),
        ("x=y", "a1.gguf", 400, "cannot be called 'x=y'"),
        (7, "a1.gguf", 400, "lora_name: Input should be a valid string"),
        ("y", None, 400, "lora_path: Field required"),
        ("y" * 60_000, "a3.gguf", 400, "cannot be called"),
    ],
)
def test_what_is_refused(server, name, file, status, said):
    found, error = load(server, name, file)
    assert found == status
    assert said in error["message"]
    assert len(error["message"]) <= 2000
    assert list(listed(server)) == LISTED


def test_what_is_not_there_or_is_not_the_clients_stays(server):
    for status, error in (
        unload(server, "none"),
        unload(server, "a0"),  # of the command line
        load(server, "a1", model="x" * 60_000),
    ):
        assert (status, error["code"]) == (404, "model_not_found")
    status, error = load(server, "a1", model="pebble:a0")
    said = "pebble:a0 is an adapter of pebble: name the model"
    assert (status, error["message"]) == (400, said)


def test_saved_prefixes_are_an_adapters_own(gguf_file, folder, tmp_path):
    """Nobody is given those of another adapter, or of another file under the same name."""
    saved, file = tmp_path / "saved", tmp_path / "poet.gguf"
    beside = {"pebble": [f"poet={file}"]}

    def asked(saved: Path, *models: str) -> list[tuple[str, int]]:
        """What the first of a few says, and how many tokens of its prompt were cached."""
        with running({"pebble": gguf_file}, saved, adapters=beside, slots=2) as server:
            found = [ask(server, model, SYSTEM)[:2] for model in models]
            for model in models:
                ask(server, model, SYSTEM)  # what is asked again is worth saving
            return found

    shutil.copy(folder / "a0.gguf", file)
    (poet, none), (base, also) = asked(saved, "pebble:poet", "pebble")
    assert poet != base
    assert none == also == 0
    assert len(list(saved.glob("*+*.prefix"))) == len(list(saved.glob("*.prefix"))) - 1 == 1
    (text, cached), (same, also) = asked(saved, "pebble:poet", "pebble")
    assert (text, same) == (poet, base)
    assert min(cached, also) > 100
    shutil.copy(folder / "a3.gguf", file)
    (other, none), (same, also) = asked(saved, "pebble:poet", "pebble")
    assert (same, none) == (base, 0)
    assert also > 100
    assert other != poet


def test_what_the_command_refuses(command, gguf_file, folder, tmp_path):
    models = [f"pebble={gguf_file}", f"other={gguf_file}"]
    for arguments, code, said in (
        (
            ("--adapter", f"x:y={folder / 'a0.gguf'}"),
            2,
            "there is no model 'x'; there is: pebble, other",
        ),
        (("--adapter", gguf_file), 3, "no LoRA adapter"),
        (("--adapter-dir", tmp_path / "none"), 2, "--adapter-dir: there is no folder"),
    ):
        refused = command("serve", *models, *arguments)
        assert (refused.returncode, said in refused.stderr) == (code, True), refused.stderr
