"""Random models of several architectures, each built once for the whole session."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path

import pytest
from filelock import FileLock

from tests import parallel, quick
from tests.quantize.shapes import SHAPES, make_random_model

_PATIENCE = 2400  # seconds; a busy machine may take ten times as long as an idle one
LIMIT = 256  # tokens that a measured build is compared on
# By the name of the folder; each recipe takes seconds. llama.cpp gives models with "phi3" in their
# name Phi-3's special tokens; a Phi3 model with a GPT-2 tokenizer is called Phi-4.
RECIPES = {
    "qwen2": "f16,q8_0,onnx-fp32,onnx-int8",
    "gemma3": "f16,onnx-int8",
    "phi4": "f16,onnx-fp32",
}


@dataclass(frozen=True)
class Built:
    source: Path
    out: Path
    stdout: str
    stderr: str


def run_quantize(
    *arguments: object, check: bool = True, drawn: bool = False
) -> subprocess.CompletedProcess[str]:
    """`quantize` in the tests' own process, whose server of children has imported torch already.
    Its report has pictures if it is to be ``drawn``. For what a process alone shows there are
    ``kill_during`` and the wheel's test."""
    from quantize.cli import main

    root, out, err = logging.getLogger(), io.StringIO(), io.StringIO()
    handlers, at_sigterm = root.handlers[:], signal.getsignal(signal.SIGTERM)
    root.handlers.clear()  # the command would close them
    try:
        with (
            pytest.MonkeyPatch.context() as patch,
            redirect_stdout(out),
            redirect_stderr(err),
            nullcontext() if drawn else quick.no_pictures(),
        ):
            patch.setattr(sys, "argv", ["quantize", *map(str, arguments)])
            code = main()
    finally:
        root.handlers[:] = handlers
        signal.signal(signal.SIGTERM, at_sigterm)
    said = err.getvalue()
    assert not check or code == 0, said
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), said)


def kill_during(stage: str, how: signal.Signals, *arguments: object) -> tuple[int, str]:
    """Start a build, send it a signal as it begins ``stage``, whose work is done by a process that
    it has yet to start; its exit code and stderr."""
    process = subprocess.Popen(
        [sys.executable, "-m", "quantize", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    seen = ""
    for line in process.stderr:
        seen += line
        if line.startswith(stage):
            process.send_signal(how)
            break
    seen += process.stderr.read()
    return process.wait(timeout=_PATIENCE), seen


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of a session pays for the builds."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(2 * _PATIENCE))


@pytest.fixture(scope="module")
def hurried() -> Iterator[None]:
    """Builds draw nothing."""
    with quick.no_pictures():
        yield


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the models are made. While working on tests, INGOT_TEST_MODELS may name a folder that
    is kept between sessions."""
    if ready := os.environ.get("INGOT_TEST_MODELS"):
        Path(ready).mkdir(parents=True, exist_ok=True)
        return Path(ready)
    return parallel.once(tmp_path_factory, "quantize", Path.mkdir)


@pytest.fixture(scope="session")
def sources(workplace: Path) -> dict[str, Path]:
    with FileLock(workplace / "sources.lock"):
        for name in (*RECIPES, "llama"):
            if not (workplace / name).exists():
                make_random_model(workplace / name, SHAPES["phi3" if name == "phi4" else name])
    return {name: workplace / name for name in (*RECIPES, "llama")}


@pytest.fixture(scope="session")
def builds(sources: dict[str, Path]) -> Callable[[str], Built]:
    """Gives an architecture in its recipes, built when it is first asked for."""

    @cache
    def run(name: str) -> Built:
        source = sources[name]
        out = source.with_name(f"{name}-built")
        with FileLock(out.with_suffix(".lock")):
            if (kept := out.with_suffix(".json")).exists():
                return Built(source, out, **json.loads(kept.read_text()))
            done = run_quantize(source, "--recipe", RECIPES[name], "--no-measure")
            said = {"stdout": done.stdout, "stderr": done.stderr}
            kept.write_text(json.dumps(said))
        return Built(source, out, **said)

    return run


@pytest.fixture(params=list(RECIPES))
def built(request: pytest.FixtureRequest, builds: Callable[[str], Built]) -> Built:
    return builds(request.param)


@pytest.fixture(scope="session")
def qwen2(builds: Callable[[str], Built]) -> Built:
    return builds("qwen2")


@pytest.fixture(scope="session")
def measured_llama(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A measured build with graded questions: one of the workers makes it, each has a copy."""
    made = parallel.once(tmp_path_factory, "measured", partial(_measure, sources["llama"]))
    mine = tmp_path_factory.mktemp("llama") / "out"
    shutil.copytree(made / "out", mine)
    said = json.loads((made / "said.json").read_text())
    return Built(
        made / "llama", mine, said["stdout"].replace(str(made / "out"), str(mine)), said["stderr"]
    )


def _measure(model: Path, folder: Path) -> None:
    from quantize.quality.float_child import answer
    from quantize.quality.text import GradedQuestion
    from quantize.source import open_source

    source = Path(shutil.copytree(model, folder / "llama"))
    texts = ("one", "two words", "Größe", "3 + 4 =", "de bu ka", "x", "y z", "?")
    asked = [
        GradedQuestion("even" if i % 2 == 0 else "odd", [{"role": "user", "content": text}], "", 3)
        for i, text in enumerate(texts)
    ]
    answers = answer(open_source(str(source)), asked)
    lines = [asdict(replace(q, answer=a)) for q, a in zip(asked, answers, strict=True)]
    graded = "\n".join(map(json.dumps, lines))
    (source / "graded.jsonl").write_text(graded + "\n", encoding="utf-8")
    recipes = "q8_0,onnx-int8"
    asked_of = ("--recipe", recipes, "--limit", LIMIT, "--out", folder / "out", "--json")
    done = run_quantize(source, *asked_of, drawn=True)
    said = {"stdout": done.stdout, "stderr": done.stderr}
    (folder / "said.json").write_text(json.dumps(said))


@pytest.fixture(scope="session")
def pebble_texts(pebble: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two files of different graded questions, with answers, in the demo model's chat format."""
    rows = [json.loads(line) for line in (pebble / "graded.jsonl").read_text().splitlines()]
    folder = tmp_path_factory.mktemp("text")
    for number in range(2):
        text = "".join(
            f"<|{turn['role']}|>\n{turn['content']}<|end|>\n"
            for row in rows[number::12]
            for turn in (*row["messages"], {"role": "assistant", "content": row["answer"]})
        )
        (folder / f"chats-{number}.txt").write_text(text, encoding="utf-8")
    return folder / "chats-0.txt", folder / "chats-1.txt"


@pytest.fixture(scope="session")
def pebble_matrix(
    pebble_f16: Path, pebble_texts: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The demo model's importance matrix over the first of the two files."""
    from quantize.children import run_child
    from quantize.gguf.imatrix import compute

    work = tmp_path_factory.mktemp("imatrix")
    out = work / "m.gguf"
    run_child(partial(compute, pebble_f16, pebble_texts[0], out, 256), what="", work=work)
    return out
