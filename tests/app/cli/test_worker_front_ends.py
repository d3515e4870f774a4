"""What the commands gain from the worker process: nothing native in their own, and no lost rows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.models.library import load_engine
from app.oneshot import ask
from app.prompts import PromptStyle
from runtimes.errors import RequestError
from runtimes.models.registry import read_model
from runtimes.request import Request, SamplingParams
from runtimes.settings import RunnerSettings
from runtimes.stream import Stream
from runtimes.worker.engine import WorkerEngine
from tests.app.workers import step, worker_of

ROOT = Path(__file__).resolve().parents[3]
NATIVE = {"llama_cpp", "onnxruntime", "tokenizers", "numpy"}
ONE = ["--threads", "1"]
QUESTION = "What is the capital of France?"

_COUNT_MODULES = (
    "import sys; from app.cli.main import main; code = main(sys.argv[1:]); "
    "sys.stderr.write('\\n' + ' '.join({m.partition('.')[0] for m in sys.modules})); sys.exit(code)"
)


@pytest.mark.parametrize("command", ["run", "batch"])
@pytest.mark.parametrize("model", ["gguf_file", "onnx_folder"])
def test_the_command_itself_loads_nothing_native(
    command: str, model: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    file = request.getfixturevalue(model)
    rows = tmp_path / "rows.txt"
    rows.write_text(f"{QUESTION}\n" * 3)
    arguments = {
        "run": ["run", file, QUESTION, *ONE],
        "batch": ["batch", rows, "-", "--model", file, "--max-tokens", "12", *ONE],
    }[command]
    done = subprocess.run(
        [sys.executable, "-c", _COUNT_MODULES, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    modules = set(done.stderr.splitlines()[-1].split())
    assert "typer" in modules
    assert not NATIVE & modules


def test_a_batch_whose_worker_is_killed_answers_every_row(
    ingot: Any, gguf_file: Path, tmp_path: Path
) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    count = 80
    rows.write_text(
        "".join(json.dumps({"id": i, "prompt": f"The number {i} is"}) + "\n" for i in range(count))
    )
    journal = out.with_name(out.name + ".journal.jsonl")

    flags = ["--max-tokens", "24", "--slots", "8", "--raw", "--json", *ONE]
    home = {"INGOT_HOME": str(tmp_path / "home")}
    process = ingot.start("batch", rows, out, "--model", gguf_file, *flags, env=home)
    while not (journal.exists() and journal.read_bytes().count(b'"ok":true') >= 5):
        assert process.poll() is None
        step(process)
    worker = worker_of(process)
    assert worker is not None
    worker.kill()
    text, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    report = json.loads(text.splitlines()[-1])
    assert (report["answered"], report["failed"]) == (count, 0)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["id"] for record in records] == list(range(count))
    assert all("response" in record for record in records)
    assert b"killed from outside" in err
    assert b"Traceback" not in err


def test_control_c_ends_the_loading_at_once(ingot: Any, gguf_file: Path) -> None:
    process = ingot.start("run", gguf_file, QUESTION)
    while (worker := worker_of(process)) is None:
        assert process.poll() is None
    worker.suspend()  # so that it never gets ready
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in err
    psutil.wait_procs([worker], timeout=30)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


class KilledOnSubmit(WorkerEngine):
    """Its worker is killed with the first request."""

    kills = 1

    def submit(self, request: Request) -> Stream:
        if not self.kills or self.pid is None:
            return super().submit(request)
        self.kills -= 1
        os.kill(self.pid, signal.SIGSTOP)  # nothing is answered meanwhile
        stream = super().submit(request)
        os.kill(self.pid, signal.SIGKILL)
        return stream


def test_a_question_is_asked_again_while_nothing_was_shown(gguf_file: Path) -> None:
    settings = RunnerSettings(slots=1, context=512, threads=1)
    shown: list[str] = []
    with KilledOnSubmit.load(gguf_file, settings) as engine:
        params = SamplingParams(max_tokens=8)
        answer = ask(engine, QUESTION, PromptStyle(), params, None, shown.append, None)
    assert engine.kills == 0
    assert answer.failure is None
    assert "".join(shown).strip() == answer.completion.text.strip()


def test_an_answer_that_was_shown_in_part_is_not_begun_again(gguf_file: Path) -> None:
    settings = RunnerSettings(slots=1, context=512, threads=1, context_shift=True)
    shown: list[str] = []
    with WorkerEngine.load(gguf_file, settings) as engine:

        def emit(text: str) -> None:
            if not shown and engine.pid is not None:
                os.kill(engine.pid, signal.SIGKILL)
            shown.append(text)

        params = SamplingParams(max_tokens=10**6, ignore_eos=True)
        asked = "Tell me a story about a fox."
        answer = ask(engine, asked, PromptStyle(), params, None, emit, None)
    assert "killed from outside" in (answer.failure or "")
    assert "".join(shown) == answer.completion.text + "\n"


def test_the_step_limit_is_checked(gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ("soon", "0", "-1", "inf", "nan"):
        monkeypatch.setenv("INGOT_STEP_LIMIT_S", bad)
        with pytest.raises(RequestError, match="INGOT_STEP_LIMIT_S"):
            load_engine(read_model(gguf_file), RunnerSettings())
