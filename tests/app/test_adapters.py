"""LoRA adapters by the command line: of one prompt, of a batch's rows, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from app.adapters import AdapterFile, adapter_files, name_and_path
from app.batch.journal.journal import journal_path
from quantize.resolve import resolve
from runtimes.errors import IngotError
from runtimes.models.registry import read_model
from tests.adapters import write_adapter
from tests.support import read_rows, write_rows

STORY = "Tell me a story about a fox."
FEW = ["--threads", "1", "--max-tokens", "12", "--quiet"]
HOW = ["--recipe", "q8_0", *FEW]


@pytest.fixture(scope="module")
def files(pebble: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter(pebble, folder / f"{name}.gguf", int(name[1:]))
        for name in ("a0", "a1", "a3")
    }


def given(files: dict[str, Path], *names: str) -> list[str]:
    return [f"--adapter={name}={files[name]}" for name in names]


def answers(
    command: Any, model: Path, files: dict[str, Path], how: list[str] = HOW
) -> dict[str | None, str]:
    """By `ingot run`, with each adapter and without."""
    found = {}
    for name in (None, *files):
        more = given(files, name) if name else []
        done = command("run", model, STORY, *how, "--json", *more)
        said = json.loads(done.stdout)
        assert said.get("adapter") == name
        found[name] = said["text"]
    assert len(set(found.values())) >= 3
    return found


@pytest.mark.parametrize("recipe", ["q8_0", "onnx-int8"])
def test_rows_are_answered_by_the_adapter_that_they_name(
    command: Any, pebble_built: Path, files: dict[str, Path], tmp_path: Path, recipe: str
) -> None:
    how = ["--recipe", recipe, *FEW]
    alone = answers(command, pebble_built, files, how)
    body = {"messages": [{"role": "user", "content": STORY}]}
    line = {"method": "POST", "url": "/v1/chat/completions"}
    asked: list[tuple[dict[str, Any], str | None]] = [
        ({"prompt": STORY}, None),
        *(({"prompt": STORY, "adapter": name}, name) for name in files),
        ({"prompt": STORY, "adapter": None}, None),
        ({"prompt": STORY, "adapter": ""}, None),
        ({"custom_id": "b", **line, "body": {"model": "gpt-4o", **body}}, None),
        ({"custom_id": "a", **line, "body": {"model": "x/y:a3", **body}}, "a3"),
    ]
    source = write_rows(tmp_path / "in.jsonl", [row for row, _ in asked])
    out = tmp_path / "out.jsonl"
    job = ["batch", source, out, "-m", pebble_built, *how]
    assert command(*job, *given(files, *files)).returncode == 0
    assert [row["response"] for row in read_rows(out)] == [alone[name] for _, name in asked]
    assert read_rows(out)[1]["adapter"] == "a0"

    body_of = tmp_path / "bodies.jsonl"
    job = ["batch", source, body_of, "-m", pebble_built, *how, "--format", "openai"]
    assert command(*job, *given(files, *files)).returncode == 0
    name = resolve(pebble_built, recipe=recipe).name
    models = [row["response"]["body"]["model"] for row in read_rows(body_of)]
    assert models[-2:] == [name, f"{name}:a3"]


def test_a_single_adapter_answers_all_that_name_none(
    command: Any, pebble_built: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    alone = answers(command, pebble_built, files)
    rows: list[dict[str, Any]] = [{"prompt": STORY}, {"prompt": STORY, "adapter": None}]
    source, out = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    assert (
        command("batch", source, out, "-m", pebble_built, *HOW, *given(files, "a3")).returncode == 0
    )
    assert [row["response"] for row in read_rows(out)] == [alone["a3"], alone[None]]


def test_an_unknown_adapter_is_the_error_of_its_row(
    command: Any, pebble_built: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    line = {"custom_id": "e", "method": "POST", "url": "/v1/embeddings"}
    rows: list[dict[str, Any]] = [
        {"prompt": STORY, "adapter": "nix"},
        {"prompt": STORY, "adapter": 7},
        {**line, "body": {"model": "m:a0", "input": "a"}},
    ]
    source, out = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    job = ["batch", source, out, "-m", pebble_built, *HOW]
    done = command(*job, *given(files, "a0", "a1"))
    assert done.returncode == 1
    codes = [row["error"]["code"] for row in read_rows(out)]
    assert codes == ["unknown_adapter", "wrong_type", "unsupported_parameter"]
    assert "line 1: there is no adapter 'nix'; there is: a0, a1" in done.stderr
    done = command(*job, "--fresh", "--strict", *given(files, "a0", "a1"))
    assert done.returncode == 2
    # Without adapters it is a field like any other.
    assert command("batch", source, "-", "-m", pebble_built, *HOW, "--limit", "1").returncode == 0


def test_no_answer_of_another_adapter_is_reused(
    command: Any, pebble_built: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    """The same command, the same name, another file: only the rows of the others are kept."""
    alone = answers(command, pebble_built, files)
    file = shutil.copy(files["a0"], tmp_path / "poet.gguf")
    rows: list[dict[str, Any]] = [{"prompt": STORY, "adapter": "poet"}, {"prompt": STORY}]
    source, out = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    job = ["batch", source, out, "-m", pebble_built, *HOW]
    job += [f"--adapter={file}", f"--adapter=other={files['a1']}"]
    assert command(*job).returncode == 0
    assert [row["response"] for row in read_rows(out)] == [alone["a0"], alone[None]]
    kept = journal_path(out).read_bytes()
    assert command(*job).returncode == 0  # nothing to do
    shutil.copy(files["a3"], file)
    refused = command(*job)
    assert refused.returncode == 2
    assert "adapters.poet" in refused.stderr
    assert command(*job, "--force").returncode == 0
    assert [row["response"] for row in read_rows(out)] == [alone["a3"], alone[None]]
    added = journal_path(out).read_bytes()[len(kept) :]
    assert added.count(b'"response"') == 1  # the base model's row was not asked again


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--adapter=no.gguf"], 2, "there is no file no.gguf"),
        (["--adapter={model}"], 3, "no LoRA adapter"),
        (["--adapter=README.md"], 3, "README.md: not a GGUF file"),
        (["--adapter=a:b={a0}"], 2, "cannot be called 'a:b'"),
        (["--adapter={a0}", "--adapter=a0={a1}"], 2, "two are called 'a0'"),
        (["--adapter={a0}", "--reproducible"], 2, "merge it instead"),
        (["--adapter={a0}", "--task", "embed"], 2, "--task embed has no adapters"),
        ([f"--adapter=n{number}={{a0}}" for number in range(9)], 2, "8 adapters are loaded"),
    ],
)
def test_what_is_refused_before_a_model_is_loaded(
    command: Any,
    pebble_built: Path,
    files: dict[str, Path],
    tmp_path: Path,
    more: list[str],
    code: int,
    said: str,
) -> None:
    source = write_rows(tmp_path / "in.jsonl", [{"prompt": STORY}])
    known = {name: str(path) for name, path in files.items()}
    known["model"] = str(resolve(pebble_built, recipe="q8_0"))
    more = [one.format(**known) for one in more]
    done = command("batch", source, "-", "-m", pebble_built, *HOW, *more)
    assert done.returncode == code
    assert said in done.stderr


def test_one_prompt_has_one_adapter(
    command: Any, pebble_built: Path, files: dict[str, Path]
) -> None:
    done = command("run", pebble_built, STORY, *HOW, *given(files, "a0", "a1"))
    assert done.returncode == 2
    assert "give one" in done.stderr


def test_an_adapter_of_another_architecture(
    pebble_built: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "other.gguf"
    file.write_bytes(files["a0"].read_bytes().replace(b"llama", b"qwen2", 1))
    model = read_model(resolve(pebble_built, recipe="q8_0"))
    with pytest.raises(IngotError, match=r"is for qwen2 models, and pebble-q8_0.gguf is a llama"):
        adapter_files([str(file)], model)
    folder = read_model(resolve(pebble_built, recipe="onnx-int8"))
    with pytest.raises(IngotError, match="which is llama: it is for qwen2"):
        adapter_files([str(file)], folder)


def test_names(files: dict[str, Path], pebble_built: Path, tmp_path: Path) -> None:
    assert name_and_path("poet=a/b.gguf") == ("poet", Path("a/b.gguf"))
    assert name_and_path("a/b.gguf") == ("b", Path("a/b.gguf"))
    odd = Path(shutil.copy(files["a0"], tmp_path / "x=y.gguf"))
    assert name_and_path(str(odd)) == ("x=y", odd)
    model = read_model(resolve(pebble_built, recipe="q8_0"))
    found = adapter_files([f"p={odd}", str(files["a0"]), str(files["a1"])], model)
    assert [one.name for one in found] == ["p", "a0", "a1"]
    same, other = found[1].digest, found[2].digest
    assert found[0] == AdapterFile("p", odd, same)
    assert same != other
