"""What the commands gain from the worker process: no lost rows, and an end at once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.models.library import load_engine
from app.oneshot import OneShot
from app.prompts import PromptStyle
from runtimes.errors import RequestError
from runtimes.models.registry import read_model
from runtimes.request import Request, SamplingParams
from runtimes.settings import RunnerSettings
from runtimes.stream import Stream
from runtimes.worker.engine import WorkerEngine
from tests.app.workers import worker_of

ONE = ["--threads", "1"]
QUESTION = "What is the capital of France?"


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


def test_a_question_is_asked_again_only_while_nothing_was_shown(gguf_file: Path) -> None:
    settings = RunnerSettings(slots=1, context=512, threads=1, context_shift=True)
    shown: list[str] = []
    with KilledOnSubmit.load(gguf_file, settings) as engine:
        params = SamplingParams(max_tokens=8)
        answer = OneShot(engine, PromptStyle(), params, None, shown.append, str).ask(QUESTION)
        assert (engine.kills, answer.failure) == (0, None)
        assert "".join(shown).strip() == answer.completion.text.strip()
        shown.clear()

        def emit(text: str) -> None:
            if not shown and engine.pid is not None:
                os.kill(engine.pid, signal.SIGKILL)
            shown.append(text)

        params = SamplingParams(max_tokens=10**6, ignore_eos=True)
        answer = OneShot(engine, PromptStyle(), params, None, emit, str).ask(QUESTION)
    assert "killed from outside" in (answer.failure or "")
    assert "".join(shown) == answer.completion.text + "\n"


def test_the_step_limit_is_checked(gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ("soon", "0", "-1", "inf", "nan"):
        monkeypatch.setenv("INGOT_STEP_LIMIT_S", bad)
        with pytest.raises(RequestError, match="INGOT_STEP_LIMIT_S"):
            load_engine(read_model(gguf_file), RunnerSettings())
