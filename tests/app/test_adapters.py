"""LoRA adapters by the command line: for one prompt and for the rows of a batch; refusals."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.adapters import adapter_files
from app.batch.journal.journal import journal_path
from app.models.library import load_engine
from app.oneshot import OneShot
from app.prompts import PromptStyle
from quantize.resolve import resolve
from runtimes.models.registry import read_model
from runtimes.request import SamplingParams
from runtimes.settings import RunnerSettings
from tests.adapters import write_adapter
from tests.support import read_rows, write_rows

STORY = "Tell me a story about a fox."
FEW = ["--threads", "1", "--max-tokens", "12", "--quiet"]
RECIPES = ("q8_0", "onnx-int8")

Row = dict[str, Any]
Job = Callable[..., tuple[int, str, Any]]


@pytest.fixture(scope="module")
def files(pebble: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter(pebble, folder / f"{name}.gguf", int(name[1:]))
        for name in ("a0", "a1", "a3")
    }


@pytest.fixture(scope="module")
def alone(pebble_built: Path, files: dict[str, Path]) -> dict[str, dict[str | None, str]]:
    """The answer of each adapter, and without one, by the recipes of files."""
    found = {}
    for recipe in RECIPES:
        model, how = read_model(resolve(pebble_built, recipe=recipe)), RunnerSettings(1, threads=1)
        beside = adapter_files([f"{name}={path}" for name, path in files.items()], model)
        with load_engine(model, how, adapters=beside) as engine:
            params = SamplingParams(max_tokens=12)
            found[recipe] = {
                name: OneShot(engine, PromptStyle(), params, name, str, str)
                .ask(STORY)
                .completion.text
                for name in (None, *files)
            }
        assert len(set(found[recipe].values())) >= 3
    return found


@pytest.fixture
def job(command: Any, pebble_built: Path, tmp_path: Path) -> Job:
    """A function that runs `ingot batch`: its exit code, what it says, and what it has written."""

    def run(rows: Sequence[Row], *words: str, recipe: str = "q8_0") -> tuple[int, str, Any]:
        source, out = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
        asked = ("-m", pebble_built, "--recipe", recipe, *FEW, *words)
        done = command("batch", source, out, *asked)
        return done.returncode, done.stderr, read_rows(out) if out.exists() else None

    return run


def given(files: dict[str, Path], *names: str) -> list[str]:
    return [f"--adapter={name}={files[name]}" for name in names]


def responses(rows: Any) -> list[str]:
    return [row["response"] for row in rows]


@pytest.mark.parametrize("recipe", RECIPES)
def test_rows_are_answered_by_the_adapter_that_they_name(
    job: Job, pebble_built: Path, files: dict[str, Path], alone: Any, recipe: str
) -> None:
    body = {"messages": [{"role": "user", "content": STORY}]}
    line = {"method": "POST", "url": "/v1/chat/completions"}
    asked: list[tuple[Row, str | None]] = [
        ({"prompt": STORY}, None),
        *(({"prompt": STORY, "adapter": name}, name) for name in files),
        ({"prompt": STORY, "adapter": None}, None),
        ({"prompt": STORY, "adapter": ""}, None),
        ({"custom_id": "b", **line, "body": {"model": "gpt-4o", **body}}, None),
        ({"custom_id": "a", **line, "body": {"model": "x/y:a3", **body}}, "a3"),
    ]
    rows, beside = [row for row, _ in asked], given(files, *files)
    code, _, found = job(rows, *beside, recipe=recipe)
    assert (code, responses(found)) == (0, [alone[recipe][name] for _, name in asked])
    assert found[1]["adapter"] == "a0"
    _, _, found = job(rows, *beside, "--format", "openai", "--fresh", recipe=recipe)
    name = resolve(pebble_built, recipe=recipe).name
    models = [row["body"]["model"] for row in responses(found)]  # type: ignore[index]
    assert models[-2:] == [name, f"{name}:a3"]


def test_an_unknown_adapter_is_the_error_of_its_row(job: Job, files: dict[str, Path]) -> None:
    line = {"custom_id": "e", "method": "POST", "url": "/v1/embeddings"}
    rows: list[Row] = [
        {"prompt": STORY, "adapter": "nix"},
        {"prompt": STORY, "adapter": 7},
        {**line, "body": {"model": "m:a0", "input": "a"}},
    ]
    two = given(files, "a0", "a1")
    code, said, found = job(rows, *two)
    codes = [row["error"]["code"] for row in found]
    assert (code, codes) == (1, ["unknown_adapter", "wrong_type", "unsupported_parameter"])
    assert "line 1: there is no adapter 'nix'; there is: a0, a1" in said
    assert job(rows, "--fresh", "--strict", *two)[0] == 2
    # Without adapters it is a field like any other.
    assert job(rows[:1], "--fresh")[0] == 0


def test_no_answer_of_another_adapter_is_reused(
    job: Job, files: dict[str, Path], alone: Any, tmp_path: Path
) -> None:
    """The same command, the same name, another file: only the rows of the others are kept."""
    answers = alone["q8_0"]
    file = shutil.copy(files["a0"], tmp_path / "poet.gguf")
    rows: list[Row] = [{"prompt": STORY, "adapter": "poet"}, {"prompt": STORY}]
    two = (f"--adapter={file}", f"--adapter=other={files['a1']}")
    assert responses(job(rows, *two)[2]) == [answers["a0"], answers[None]]
    kept = journal_path(tmp_path / "out.jsonl").read_bytes()
    assert job(rows, *two)[0] == 0  # nothing to do
    shutil.copy(files["a3"], file)
    code, said, _ = job(rows, *two)
    assert code == 2
    assert "adapters.poet" in said
    assert responses(job(rows, *two, "--force")[2]) == [answers["a3"], answers[None]]
    added = journal_path(tmp_path / "out.jsonl").read_bytes()[len(kept) :]
    assert added.count(b'"response"') == 1  # the base model's row was not asked again
