"""Clients load and unload LoRA adapters of the server's folder while it runs."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from runtimes.errors import RequestError
from tests.adapters import write_adapter
from tests.app.serve.conftest import Running, running
from tests.app.serve.test_adapters import ask


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
    beside = {"pebble": [str(folder / "a0.gguf")]}
    models = {"pebble": gguf_file, "other": gguf_file}
    with running(models, adapters=beside, slots=4, adapter_dir=folder) as found:
        yield found


def post(server: Running, path: str, **body: Any) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{server.address}/v1/{path}_lora_adapter",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


def load(server: Running, name: str, file: str | None = None, **more: str) -> tuple[int, Any]:
    return post(server, "load", lora_name=name, lora_path=file or f"{name}.gguf", **more)


def unload(server: Running, name: str, **more: str) -> tuple[int, Any]:
    return post(server, "unload", lora_name=name, **more)


def listed(server: Running) -> list[str]:
    return [one.id for one in server.client().models.list()]


def test_a_message_does_not_quote_everything(server):
    status, error = load(server, "poet", "a3.gguf", model="x" * 60_000)
    assert (status, error["code"]) == (404, "model_not_found")
    status, error = load(server, "y" * 60_000, "a3.gguf")
    assert status == 400
    assert len(error["message"]) <= 2000


def test_an_adapter_comes_and_goes(server):
    plain = ask(server, "pebble")[0]
    said = {"id": "pebble:poet", "object": "model", "loaded": True}
    assert load(server, "poet", "a3.gguf") == (200, said)
    assert listed(server) == ["pebble", "pebble:a0", "pebble:poet", "other"]
    third = ask(server, "pebble:poet")[0]
    assert third != plain
    with server.pool.lease("pebble:poet") as served:
        assert served.adapter_file.digest
    assert unload(server, "poet") == (200, {**said, "loaded": False})
    assert listed(server) == ["pebble", "pebble:a0", "other"]
    with pytest.raises(openai.NotFoundError, match="no model 'pebble:poet' here"):
        ask(server, "pebble:poet")
    assert load(server, "poet", "a5.gguf")[0] == 200
    assert ask(server, "pebble:poet")[0] != third
    assert unload(server, "poet")[0] == 200
    assert ask(server, "pebble")[0] == plain


def test_one_that_is_used_stays(server):
    assert load(server, "a4")[0] == 200
    with server.pool.lease("pebble:a4"):
        status, error = unload(server, "a4")
        assert (status, error["code"]) == (409, "adapter_in_use")
        assert "1 requests use pebble:a4" in error["message"]
    assert unload(server, "a4")[0] == 200


def test_a_model_that_is_loaded_later_has_it(server):
    assert "other" not in server.pool.loaded()
    assert load(server, "a2", model="other")[0] == 200
    assert load(server, "a2")[0] == 200
    assert ask(server, "other:a2")[0] == ask(server, "pebble:a2")[0]
    for more in ({"model": "other"}, {}):
        assert unload(server, "a2", **more)[0] == 200


def test_others_are_answered_right_meanwhile(server):
    right = {name: ask(server, name)[0] for name in ("pebble", "pebble:a0")}
    assert len(set(right.values())) == 2
    asked = list(right) * 10
    with ThreadPoolExecutor(4) as threads:
        answers = threads.map(lambda name: ask(server, name)[0], asked)
        for number in range(1, 9):
            assert load(server, f"a{number}")[0] == (200 if number < 8 else 400)
        for number in range(1, 8):
            assert unload(server, f"a{number}")[0] == 200
        assert list(answers) == [right[name] for name in asked]


@pytest.mark.parametrize(
    ("name", "file", "status", "said"),
    [
        ("x", "none.gguf", 404, "has no file 'none.gguf'"),
        ("x", "../a1.gguf", 404, "has no file"),
        ("x", "below/a0.gguf", 404, "has no file"),
        ("x", "below", 404, "has no file"),
        ("x", "model.gguf", 400, "no LoRA adapter"),
        ("a0", "a1.gguf", 400, "there is an adapter 'a0' already"),
        ("a:b", "a1.gguf", 400, "cannot be called 'a:b'"),
        ("x=y", "a1.gguf", 400, "cannot be called 'x=y'"),
        (7, "a1.gguf", 400, "lora_name must be a text"),
        ("x", None, 400, "lora_path must be a text"),
    ],
)
def test_what_is_refused(server, name, file, status, said):
    found, error = post(server, "load", lora_name=name, lora_path=file)
    assert found == status
    assert said in error["message"]
    assert listed(server) == ["pebble", "pebble:a0", "other"]


def test_what_is_not_there_or_is_not_the_clients_stays(server):
    assert unload(server, "none")[0] == 404
    status, error = unload(server, "a0")  # of the command line
    assert (status, error["code"]) == (404, "model_not_found")
    assert load(server, "a1", model="none")[0] == 404
    status, error = load(server, "a1", model="pebble:a0")
    assert (status, error["message"]) == (
        400, "pebble:a0 is an adapter of pebble: name the model",
    )  # fmt: skip


def test_without_a_folder_nothing_is_loaded(gguf_file, tmp_path, ingot):
    with running({"pebble": gguf_file}, slots=1) as server:
        for status, error in (load(server, "a1"), unload(server, "a1")):
            assert (status, error["code"]) == (403, "adapters_fixed")
    done = ingot("serve", gguf_file, "--adapter-dir", tmp_path / "none")
    assert done.returncode == RequestError.exit_code
    assert "--adapter-dir: there is no folder" in done.stderr
