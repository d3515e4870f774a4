"""The worker process dies or hangs in every way; this one lives, and the next request works."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from runtimes.errors import ModelError, WorkerError
from runtimes.machine.selftest import ensure
from runtimes.machine.state_file import load_state
from runtimes.request import Completion, FinishReason, Request, SamplingParams
from runtimes.settings import RunnerSettings
from runtimes.stream import Stream
from runtimes.worker import supervisor
from runtimes.worker.engine import WorkerEngine
from runtimes.worker.process import WorkerProcess
from runtimes.worker.recovery import STATE, DeathLimit, limit_lines

SETTINGS = RunnerSettings(slots=8, context=256, threads=1)
# Where a GPU computes, to do without it is tried before the special kernels are blamed.
ON_PROCESSOR = replace(SETTINGS, device="cpu")
LONG = SamplingParams(max_tokens=200, ignore_eos=True)
SHORT = SamplingParams(max_tokens=24)

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="uses LD_PRELOAD")


@pytest.fixture
def worker(gguf: Path) -> Iterator[WorkerEngine]:
    with WorkerEngine.load(gguf, SETTINGS) as engine:
        engine._watchdog._tick_s = 0.05
        yield engine


@pytest.fixture
def fault(fault: Callable[[str], None]) -> Callable[[str], None]:
    assert ensure("llamacpp").extra_buffers  # remembered before anything fails
    return fault


def prompt(worker: WorkerEngine) -> list[int]:
    return worker.encode_chat([{"role": "user", "content": "What is the capital of France?"}])


def begin(worker: WorkerEngine, count: int) -> list[Stream]:
    """Requests of which at least one has begun to answer."""
    ids = prompt(worker)
    streams = [worker.submit(Request(ids, LONG)) for _ in range(count)]
    next(iter(streams[0]))
    return streams


def stop(worker: WorkerEngine) -> None:
    """Stop the process; its step is soon too long, none of the next process is."""
    watchdog = worker._watchdog
    usual = watchdog._limit_s, watchdog._expired

    def once(limit_s: float) -> None:
        watchdog._limit_s, watchdog._expired = usual
        watchdog._expired(limit_s)

    os.kill(worker.pid, signal.SIGSTOP)
    watchdog._limit_s, watchdog._expired = 0.2, once


def check_ended(streams: list[Stream], words: str) -> list[Completion]:
    """Each has an answer or an error that says what happened; the ones with errors."""
    done = [stream.result(120) for stream in streams]
    failed = [one for one in done if one.finish_reason is FinishReason.ERROR]
    assert all(one.finish_reason in (FinishReason.ERROR, FinishReason.LENGTH) for one in done)
    assert all(words in (one.error or "") and one.retryable for one in failed)
    return failed


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGSEGV, "died of SIGSEGV"), (signal.SIGKILL, "killed from outside")],
)
def test_a_signal_in_the_middle_of_32_requests(worker, number, words, caplog):
    expected = worker.generate([prompt(worker)], SHORT)[0].text
    streams = begin(worker, 32)
    dead = worker.pid
    os.kill(dead, number)
    assert check_ended(streams, words)
    assert streams[0].result(0).text  # what had come is not lost
    assert worker.generate([prompt(worker)], SHORT)[0].text == expected
    assert worker.pid != dead
    assert not psutil.pid_exists(dead)
    (line,) = warnings(caplog)
    assert words in line
    assert limit_lines() == []  # once may be chance


@contextmanager
def no_more_files() -> Iterator[None]:
    """This process can open none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_step_without_end_while_no_file_can_be_opened(worker, caplog):
    ids = prompt(worker)
    expected = worker.generate([ids], SHORT)[0].text
    streams = begin(worker, 32)
    stop(worker)
    with no_more_files():
        assert check_ended(streams, "a step took longer than 0.2 s")
        with pytest.raises(WorkerError, match=r"could not be started.*Too many open files"):
            worker.encode("x")
    assert worker.generate([ids], SHORT)[0].text == expected
    assert not any(record.exc_info for record in caplog.records)


def test_a_worker_that_was_stopped_is_no_reason_for_other_settings(worker):
    ids = prompt(worker)
    stop(worker)
    assert worker.stats().slots == 8  # the last known figures
    assert prompt(worker) == ids  # by the next process
    assert load_state(STATE) == {}
    # To drain it is to wait, though it has nothing left to do.
    stop(worker)
    closer = threading.Thread(target=worker.close, kwargs={"drain": True}, daemon=True)
    closer.start()
    closer.join(20)
    assert not closer.is_alive()
    assert worker.pid is None


Start = Callable[[], WorkerProcess]


def kill(worker: WorkerEngine, patch: pytest.MonkeyPatch, change: Callable[[Start], Start]) -> None:
    """End the process; the next one is started as ``change`` has it."""
    os.kill(worker.pid, signal.SIGKILL)
    while worker.pid is not None:
        time.sleep(0.01)
    patch.setattr(worker, "_new_process", change(worker._new_process))


def test_requests_that_come_while_there_is_no_worker(worker, monkeypatch):
    """They are taken at once and served by the next one; a cancelled one is not."""
    ids, taken = prompt(worker), threading.Event()
    kill(worker, monkeypatch, lambda start: lambda: taken.wait(120) and start())
    streams = [worker.submit(Request(ids, SHORT)) for _ in range(4)]
    streams[0].cancel()
    taken.set()
    reasons = [stream.result(120).finish_reason for stream in streams]
    assert reasons[0] is FinishReason.CANCELLED
    assert set(reasons[1:]) == {FinishReason.STOP}


def test_closing_while_a_worker_is_being_started(worker, monkeypatch):
    ids, started = prompt(worker), threading.Event()

    def stopped(start: Start) -> Start:
        def begin() -> WorkerProcess:
            process = start()
            os.kill(process.pid, signal.SIGSTOP)  # it gets no further
            started.set()
            return process

        return begin

    kill(worker, monkeypatch, stopped)
    stream = worker.submit(Request(ids, SHORT))
    assert started.wait(120)
    worker.close()
    assert stream.result(0).finish_reason is FinishReason.CANCELLED


def test_a_worker_that_is_killed_while_it_loads(gguf):
    killed: list[int] = []

    def kill_the_first(worker: WorkerEngine) -> None:
        start = worker._new_process

        def new_process() -> WorkerProcess:
            process = start()
            if not killed:
                os.kill(process.pid, signal.SIGKILL)
                killed.append(process.pid)
            return process

        worker._new_process = new_process

    with WorkerEngine.load(gguf, SETTINGS, begun=kill_the_first) as worker:
        assert worker.pid not in killed
        assert worker.generate([prompt(worker)], SHORT)[0].error is None
    assert killed


_PARENT = """
import sys, time
from runtimes.request import Request, SamplingParams
from runtimes.settings import RunnerSettings
from runtimes.worker.engine import WorkerEngine
worker = WorkerEngine.load(sys.argv[1], RunnerSettings(slots=1, context=256, threads=1))
assert not {"numpy", "llama_cpp", "onnxruntime", "tokenizers"} & set(sys.modules)
ids = worker.encode("Once upon a time")
print(worker.pid, flush=True)
while True:
    worker.generate([ids] * 8, SamplingParams(max_tokens=200, ignore_eos=True))
"""


def test_the_worker_ends_with_its_parent(gguf):
    """Also when it is stopped, where the system is asked to see to that."""
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, gguf], stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        if sys.platform == "linux":
            worker.suspend()
        parent.kill()
        # An orphan is reaped by the system's first process, if that does so.
        with contextlib.suppress(psutil.NoSuchProcess):
            while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.02)  # for ever, if it is not ended
    finally:
        parent.kill()
        parent.communicate()


@linux_only
def test_safer_settings_are_found_remembered_and_announced_once(gguf, fault, caplog):
    fault("SIGILL")
    for loaded in range(2):
        caplog.clear()
        with caplog.at_level(logging.INFO), WorkerEngine.load(gguf, ON_PROCESSOR) as worker:
            assert worker.generate([prompt(worker)], SHORT)[0].error is None
        said = [line for line in warnings(caplog) if "special kernels" in line]
        assert len(said) == (loaded == 0)
        assert len([m for m in caplog.messages if "special kernels" in m]) == 1
    assert "SIGILL" in limit_lines()[0]
    again = ([sys.executable, "-m", "runtimes.worker", "--forget"],)
    shown = subprocess.run(*again, capture_output=True, text=True, check=True).stdout
    assert shown.startswith(gguf.name)
    assert limit_lines() == []


@linux_only
def test_a_native_load_that_never_returns(gguf, fault, monkeypatch):
    """Python's threads in the worker process go on meanwhile."""
    fault("hang")
    limit = DeathLimit(deaths=1)
    monkeypatch.setattr(supervisor, "LOAD_LIMIT_S", 0.4)
    with pytest.raises(ModelError, match=r"died 1 times .* neither computed nor read .* for 0.4 s"):
        WorkerEngine.load(gguf, SETTINGS, step_limit_s=0.4, deaths=limit)
    assert "neither computed" in str(load_state(STATE))  # once may be chance; twice would not be


@linux_only
def test_a_worker_that_always_dies_is_given_up_for_a_while(gguf, fault, caplog):
    """A crash: by chance, then with safer settings, then those are taken back; then it ends."""
    fault("always")
    limit = DeathLimit(deaths=4, seconds=3600)
    with WorkerEngine.load(gguf, ON_PROCESSOR, deaths=limit) as worker:
        for _ in range(4):
            (done,) = worker.generate([[5, 6, 7]], SHORT)
            assert "died of SIGSEGV (a wild memory access)" in (done.error or "")
        assert [bool(load_state(STATE)), limit_lines()] == [True, []]
        assert len([line for line in warnings(caplog) if "special kernels" in line]) == 1
        tried = worker.pid
        (done,) = worker.generate([[5, 6, 7]], SHORT)
        assert "died 4 times" in (done.error or "")
        assert not done.retryable
        assert (tried, worker.pid) == (None, None)  # it is not tried again
        with pytest.raises(ModelError, match="died 4 times"):
            worker.encode("x")
