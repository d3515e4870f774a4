"""A worker process that hangs before it has a model, and others that only take their time."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from runtimes.errors import ModelError
from runtimes.machine.selftest import ensure
from runtimes.machine.state_file import load_state
from runtimes.request import SamplingParams
from runtimes.settings import RunnerSettings
from runtimes.worker import process, supervisor
from runtimes.worker.engine import WorkerEngine
from runtimes.worker.process import LoadMonitor
from runtimes.worker.recovery import STATE

SETTINGS = RunnerSettings(slots=2, context=64, threads=1)

SLEEPS = "import time; time.sleep(60)"
COMPUTES = "while True: pass"
READS_SLOWLY = """
import time
while True:
    open({file!r}, "rb").read(1)
    time.sleep(0.05)
"""
HAS_A_CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', {program!r}])"


def first_child(parent: int) -> psutil.Process:
    """The worker process of ``parent``, as soon as there is one."""
    while True:
        for child in psutil.Process(parent).children():
            with contextlib.suppress(psutil.Error):
                if "runtimes.worker.child" in child.cmdline():
                    return child
        time.sleep(0.005)


def test_a_worker_that_is_stopped_while_it_loads(gguf, caplog, monkeypatch):
    assert ensure("llamacpp").usable
    stopped: list[int] = []

    def stop_first(pid: int, limit_s: float) -> LoadMonitor:
        if not stopped:
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)
            limit_s = 0.3
        return LoadMonitor(pid, limit_s)

    monkeypatch.setattr(supervisor, "LoadMonitor", stop_first)
    with WorkerEngine.load(gguf, SETTINGS) as one:
        assert one.pid not in stopped
        assert not psutil.pid_exists(stopped[0])
        assert one.generate([[5, 6, 7]], SamplingParams(max_tokens=2))[0].error is None
        assert one.slots == 2
    (line,) = [text for text in caplog.messages if "was ended" in text]
    assert "neither computed nor read anything for 0.3 s while it loaded" in line
    assert "stopped from outside" in line
    assert load_state(STATE) == {}  # no reason for other settings


def test_what_a_worker_logs_has_its_level_and_name_once(gguf, caplog):
    with caplog.at_level(logging.INFO), WorkerEngine.load(gguf, SETTINGS):
        pass
    told = [record for record in caplog.records if record.process != os.getpid()]
    assert told
    for record in told:
        assert record.levelname not in record.getMessage()
        assert record.name not in record.getMessage()


def test_what_counts_as_a_sign_of_life(gguf, monkeypatch):
    monkeypatch.setattr(process, "_COMPUTING", 2)

    def watch(program: str, seconds: float) -> str | None:
        """What is wrong with it, as soon as something is."""
        with subprocess.Popen([sys.executable, "-c", program]) as process:
            watched = LoadMonitor(process.pid, 0.5)
            end = time.monotonic() + seconds
            while watched.problem is None and time.monotonic() < end:
                watched.wait(queue.SimpleQueue())
            problem = watched.problem
            for one in (*psutil.Process(process.pid).children(), process):
                one.kill()
            return problem

    reader = READS_SLOWLY.format(file=str(gguf))
    programs = (SLEEPS, COMPUTES, HAS_A_CHILD.format(program=reader), reader)
    with ThreadPoolExecutor(4) as pool:
        sleeps, computes, has_a_child, reads = pool.map(watch, programs, (60, 60, 1.5, 1.5))
    assert sleeps == "it neither computed nor read anything for 0.5 s"
    assert "but neither read nor stored anything" in (computes or "")
    assert (has_a_child, reads) == (None, None)


_PARENT = """
import sys
from runtimes.settings import RunnerSettings
from runtimes.worker import supervisor
from runtimes.worker.engine import WorkerEngine
supervisor.LOAD_LIMIT_S = 2.5
with WorkerEngine.load(sys.argv[1], RunnerSettings(slots=1, context=64), step_limit_s=2.5) as one:
    print(one.pid)
"""


def test_a_machine_that_sleeps_while_a_worker_loads(gguf: Path) -> None:
    """Both processes stop and go on together: nothing was wrong with the load."""
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, gguf], stdout=subprocess.PIPE)
    try:
        child = first_child(parent.pid)
        child.suspend()
        time.sleep(0.3)  # the parent looks once
        os.kill(parent.pid, signal.SIGSTOP)
        time.sleep(2.5)
        os.kill(parent.pid, signal.SIGCONT)
        time.sleep(0.1)
        child.resume()
        out, _ = parent.communicate(timeout=60)
        assert int(out) == child.pid
    finally:
        parent.kill()
        parent.wait()


def test_a_module_that_cannot_be_imported_changes_no_settings(gguf, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "home"))
    (tmp_path / "numpy.py").write_text("import no_such_package")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for _ in range(2):
        with pytest.raises(ModelError) as raised:
            WorkerEngine.load(gguf, SETTINGS)
        told = str(raised.value)
        assert "the worker process could not import a module: ModuleNotFoundError" in told
        assert f"({tmp_path}/numpy.py, line 1)" in told
    assert load_state(STATE) == {}
    assert not caplog.records
