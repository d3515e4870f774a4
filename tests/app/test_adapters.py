"""LoRA adapters by the command line: of one prompt, of a batch's rows, and what is refused."""

from __future__ import annotations

import json
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from app.adapters import AdapterFile, adapter_files, name_and_path
from app.batch.journal.journal import journal_path
from app.cli.main import main
from quantize.resolve import resolve
from runtimes.errors import IngotError
from runtimes.models.registry import read_model
from tests.adapters import write_adapter
from tests.app.batch.conftest import Batch
from tests.support import write_rows

STORY = "Tell me a story about a fox."
FEW = ["--threads", "1", "--max-tokens", "12", "--quiet"]
HOW = ["--recipe", "q8_0", *FEW]
Answers = dict[str | None, str]


@pytest.fixture(scope="module")
def files(pebble: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter(pebble, folder / f"{name}.gguf", int(name[1:]))
        for name in ("a0", "a1", "a3")
    }


@pytest.fixture(scope="module", params=["q8_0", "onnx-int8"])
def recipe(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def alone(pebble_built: Path, files: dict[str, Path], recipe: str) -> Answers:
    """By `ingot run`, with each adapter and without."""
    found: Answers = {}
    for name in (None, *files):
        more = given(files, name) if name else []
        words = ["run", str(pebble_built), STORY, "--recipe", recipe, *FEW, "--json", *more]
        with redirect_stdout(StringIO()) as shown, pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stdin", None)
            assert main(words) == 0
        said = json.loads(shown.getvalue())
        assert said.get("adapter") == name
        found[name] = said["text"]
    assert len(set(found.values())) >= 3
    return found


@pytest.fixture
def batch(command: Any, pebble_built: Path, tmp_path: Path) -> Batch:
    return Batch(command, pebble_built, tmp_path)


def given(files: dict[str, Path], *names: str) -> list[str]:
    return [f"--adapter={name}={files[name]}" for name in names]


def said(batch: Batch) -> list[str]:
    return [row["response"] for row in batch.records]


def test_rows_are_answered_by_the_adapter_that_they_name(
    batch: Batch, alone: Answers, files: dict[str, Path], recipe: str
) -> None:
    how = ["--recipe", recipe, *FEW]
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
    write_rows(batch.source, [row for row, _ in asked])
    batch(*how, *given(files, *files))
    assert said(batch) == [alone[name] for _, name in asked]
    assert batch.records[1]["adapter"] == "a0"
    batch(*how, *given(files, *files), "--format", "openai")  # of the same journal
    name = resolve(batch.model, recipe=recipe).name
    models = [row["response"]["body"]["model"] for row in batch.records]
    assert models[-2:] == [name, f"{name}:a3"]

    # A single one answers all that name none.
    write_rows(batch.source, [{"prompt": STORY}, {"prompt": STORY, "adapter": None}])
    batch(*how, *given(files, "a3"), "--fresh")
    assert said(batch) == [alone["a3"], alone[None]]


def test_no_answer_of_another_adapter_is_reused(
    batch: Batch, alone: Answers, files: dict[str, Path], recipe: str, tmp_path: Path
) -> None:
    """The same command, the same name, another file: only the rows of the others are kept."""
    file = shutil.copy(files["a0"], tmp_path / "poet.gguf")
    write_rows(batch.source, [{"prompt": STORY, "adapter": "poet"}, {"prompt": STORY}])
    job = ["--recipe", recipe, *FEW, f"--adapter={file}", f"--adapter=other={files['a1']}"]
    batch(*job)
    assert said(batch) == [alone["a0"], alone[None]]
    kept = journal_path(batch.out).read_bytes()
    batch(*job)  # nothing to do
    shutil.copy(files["a3"], file)
    assert "adapters.poet" in batch(*job, code=2).stderr
    batch(*job, "--force")
    assert said(batch) == [alone["a3"], alone[None]]
    added = journal_path(batch.out).read_bytes()[len(kept) :]
    assert added.count(b'"response"') == 1  # the base model's row was not asked again


def test_an_unknown_adapter_is_the_error_of_its_row(batch: Batch, files: dict[str, Path]) -> None:
    line = {"custom_id": "e", "method": "POST", "url": "/v1/embeddings"}
    rows: list[dict[str, Any]] = [
        {"prompt": STORY, "adapter": "nix"},
        {"prompt": STORY, "adapter": 7},
        {**line, "body": {"model": "m:a0", "input": "a"}},
    ]
    write_rows(batch.source, rows)
    done = batch(*HOW, *given(files, "a0", "a1"), code=1)
    codes = [row["error"]["code"] for row in batch.records]
    assert codes == ["unknown_adapter", "wrong_type", "unsupported_parameter"]
    assert "line 1: there is no adapter 'nix'; there is: a0, a1" in done.stderr
    batch(*HOW, "--fresh", "--strict", *given(files, "a0", "a1"), code=2)
    # Without adapters it is a field like any other.
    batch(*HOW, "--limit", "1", out="-")


@pytest.mark.parametrize(
    ("more", "code", "words"),
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
    batch: Batch, files: dict[str, Path], more: list[str], code: int, words: str
) -> None:
    write_rows(batch.source, [{"prompt": STORY}])
    model = resolve(batch.model, recipe="q8_0")
    more = [one.format(**files, model=model) for one in more]
    assert words in batch(*HOW, *more, out="-", code=code).stderr


def test_names_and_architectures(
    command: Any, files: dict[str, Path], pebble_built: Path, tmp_path: Path
) -> None:
    assert name_and_path("poet=a/b.gguf") == ("poet", Path("a/b.gguf"))
    assert name_and_path("a/b.gguf") == ("b", Path("a/b.gguf"))
    odd = Path(shutil.copy(files["a0"], tmp_path / "x=y.gguf"))
    assert name_and_path(str(odd)) == ("x=y", odd)
    model = read_model(resolve(pebble_built, recipe="q8_0"))
    found = adapter_files([f"p={odd}", str(files["a0"]), str(files["a1"])], model)
    assert [one.name for one in found] == ["p", "a0", "a1"]
    assert found[0] == AdapterFile("p", odd, found[1].digest)
    assert found[1].digest != found[2].digest
    done = command("run", pebble_built, STORY, *HOW, *given(files, "a0", "a1"))
    assert (done.returncode, "give one" in done.stderr) == (2, True)
    other = tmp_path / "other.gguf"
    other.write_bytes(files["a0"].read_bytes().replace(b"llama", b"qwen2", 1))
    for recipe, words in (
        ("q8_0", "is for qwen2 models, and pebble-q8_0.gguf is a llama"),
        ("onnx-int8", "which is llama: it is for qwen2"),
    ):
        with pytest.raises(IngotError, match=words):
            adapter_files([str(other)], read_model(resolve(pebble_built, recipe=recipe)))
