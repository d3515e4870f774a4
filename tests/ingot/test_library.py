"""`import ingot`: what docs/library.md promises."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import ingot
from tests.conftest import ROOT

_PAGE = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
_EXAMPLES = re.findall(r"```python\n(.*?)```", _PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def model(pebble_built: Path) -> Iterator[ingot.LoadedModel]:
    with ingot.load(pebble_built, recipe="q8_0", slots=2, context=512) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def checkout(
    pebble_short: Path, pebble_built: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder in which the page's examples find the demo model."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(pebble_short, folder / "assets" / "pebble")
    for name, count in (("evaluation.txt", 40), ("graded.jsonl", 2)):
        file = folder / "assets" / "pebble" / name
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:count]))
    (folder / "assets" / "pebble-built").symlink_to(pebble_built)
    return folder


@pytest.mark.parametrize("example", range(len(_EXAMPLES)))
def test_the_examples_of_the_page_run(
    example: int,
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(checkout)
    exec(_EXAMPLES[example], {"__name__": "__main__"})
    written = capsys.readouterr().out
    assert written.strip()
    for line, said in re.findall(r"print\((\w+\.text)\)  # (.+)", _EXAMPLES[example]):
        assert said in written, line


def test_it_loads_no_engine_until_asked(checkout: Path):
    """A program of its own: the first example, behind what it has imported so far."""
    seen = "print(sorted({'numpy', 'typer', 'llama_cpp'} & set(sys.modules)))"
    program = f"import ingot, sys; {seen}\n{_EXAMPLES[0]}"
    command = [sys.executable, "-P", "-c", program]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[]\nThe capital of France is Paris.\n")


def test_answers_come_with_their_figures(model: ingot.LoadedModel):
    asked = "What is the capital of France?"
    first, again = (model.generate(asked) for _ in range(2))
    assert first.text == again.text == "The capital of France is Paris."
    assert (first.finish_reason, first.thought) == ("stop", None)
    assert again.cached_tokens == again.prompt_tokens - 1  # the last one gives the logits
    assert first.ttft_s > 0
    assert first.decode_tps
    assert "".join(model.stream(asked)) == first.text
    cut = model.generate(asked, max_tokens=3)
    assert (cut.finish_reason, cut.completion_tokens) == ("length", 3)


def test_threads_may_ask_at_the_same_time(model: ingot.LoadedModel):
    found: dict[int, str] = {}

    def ask(n: int) -> None:
        found[n] = model.generate(f"What is {n} plus {n}?").text

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: f"{n} + {n} = {2 * n}" for n in range(1, 6)}


def test_a_stream_that_is_let_go_frees_its_slot(model: ingot.LoadedModel):
    pieces = model.stream("Tell me a story about a robot.", max_tokens=400, ignore_eos=True)
    assert next(iter(pieces))
    pieces.close()  # type: ignore[attr-defined]
    model.generate("What is the capital of France?")
    assert model.engine.stats().decoding == 0


@pytest.mark.parametrize(
    ("prompt", "sampling", "said"),
    [
        (" ", {}, "blank"),
        ([], {}, "empty list"),
        (["a", "b"], {}, "generate_all"),
        ([{"role": "king", "content": "x"}], {}, "role must be"),
        ("a " * 5000, {}, "tokens"),
        ("x", {"temperature": -1}, "temperature must be"),
        ("x", {"regex": "("}, "regular expression"),
        ("x", {"regex": "a", "choices": ["b"]}, "one can be given"),
        ("x", {"json_schema": "{"}, "schema"),
    ],
)
def test_what_cannot_be_asked_is_said(model: ingot.LoadedModel, prompt, sampling, said: str):
    for ask in (model.generate, model.stream):
        with pytest.raises(ingot.RequestError, match=said):
            ask(prompt, **sampling)


def test_a_model_whose_process_dies_is_loaded_again(model: ingot.LoadedModel):
    pid = model.engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert model.generate("What is the capital of Italy?").text == "The capital of Italy is Rome."
    assert model.engine.pid != pid


def test_what_cannot_be_loaded_or_made_is_said(pebble_built: Path, tmp_path: Path):
    with pytest.raises(ingot.ModelError, match="no such file"):
        ingot.load(tmp_path / "none.gguf")
    with pytest.raises(ingot.ModelError, match="q3"):
        ingot.load(pebble_built, recipe="q3")
    with pytest.raises(ingot.RequestError, match="q99"):
        ingot.quantize(tmp_path, ["q99"])
    with pytest.raises(ingot.RequestError, match="there is no folder"):
        ingot.measure([pebble_built / "pebble-q8_0.gguf"], tmp_path / "none")


def test_onnx_files_give_no_embeddings(pebble_built: Path):
    with (
        ingot.load(pebble_built, recipe="onnx-int8", slots=1) as model,
        pytest.raises(ingot.RequestError, match="embed"),
    ):
        model.embed(["a king"])
