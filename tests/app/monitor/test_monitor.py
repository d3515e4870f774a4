"""The monitor over a real engine that is crashed, and the log of events over real loggers."""

import io
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from app.chat.host import EngineHost
from app.monitor import monitor as watch
from app.monitor.monitor import OURSELVES, Event, EventLog, MachineReader, Monitor
from runtimes.errors import RequestError
from runtimes.request import FinishReason, Request, SamplingParams
from tests.support import own_home, until


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[EventLog]:
    """An event log that listens; pytest's own handlers stand aside."""
    monkeypatch.setattr(watch, "_KEPT", 5)
    made = EventLog()
    yield made
    made.detach()


def texts(events: tuple[Event, ...]) -> list[str]:
    return [event.text for event in events]


# The log of events


def test_what_is_logged_is_kept_and_handlers_stay(log: EventLog) -> None:
    own = io.StringIO()
    handler = logging.StreamHandler(own)
    stubborn = logging.getLogger("a_library_with_its_own_handler")
    stubborn.addHandler(handler)
    stubborn.propagate = False
    try:
        log.attach()
        log.attach()
        logging.getLogger("runtimes.worker").info("an %s", "event")
        logging.getLogger("somebody.else").info("chatter")
        stubborn.warning("loud")
        log.detach()
        log.detach()
        stubborn.warning("afterwards")
        logging.getLogger("runtimes.worker").warning("afterwards")
    finally:
        stubborn.handlers.clear()
        stubborn.propagate = True
    assert texts(log.events()) == ["an event", "loud"]
    (first, _) = log.events()
    assert (first.level_name, first.source, first.number) == ("INFO", "runtimes.worker", 1)
    assert abs(first.time - time.time()) < 60
    assert own.getvalue() == "loud\nafterwards\n"
    assert logging.getLogger("runtimes").level == logging.NOTSET


def test_the_oldest_go_and_what_is_malformed_is_an_event(log: EventLog) -> None:
    log.attach()
    for number in range(1, 6):
        logging.getLogger("app").info("%d", number)
    try:
        raise ValueError("the reason")
    except ValueError:
        logging.getLogger("quantize").exception("it failed")
    odd = ("quantize", logging.WARNING, __file__, 1, "%d", ("no number",), None)
    log.handle(logging.LogRecord(*odd))
    *earlier, failed, malformed = texts(log.events())
    assert earlier == ["3", "4", "5"]
    assert failed == "it failed: ValueError: the reason"
    assert "malformed" in malformed
    assert [event.number for event in log.events(after=6)] == [7]
    assert log.events(after=7) == ()


def test_many_threads_may_log(monkeypatch: pytest.MonkeyPatch, log: EventLog) -> None:
    monkeypatch.setattr(log, "_events", deque())
    log.attach()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: logging.getLogger("app.work").info("x"), range(4000)))
    assert [event.number for event in log.events()] == list(range(1, 4001))


# The machine


def test_the_machine_is_read_as_psutil_sees_it() -> None:
    reader = MachineReader()
    child = psutil.Popen([sys.executable, "-c", "while True: pass"])
    try:
        reader.read()
        begin, cpu = time.monotonic(), time.process_time()
        while time.process_time() < cpu + 0.2:
            pass
        # A look takes a while, and at which moment of it we are read is not known.
        most = 100 * (time.process_time() - cpu) / (time.monotonic() - begin)
        use = reader.read()
    finally:
        child.kill()
        child.wait()
        reader.close()
    assert len(use.cores) == len(os.sched_getaffinity(0))
    assert all(0 <= core <= 100 for core in use.cores)
    me, *others = use.processes
    assert (me.pid, me.name) == (os.getpid(), OURSELVES)
    assert 0.3 * most < me.cpu < 1.5 * most
    (spinning,) = [process for process in others if process.pid == child.pid]
    assert spinning.cpu > 0
    assert 0.5 * me.rss < psutil.Process().memory_info().rss < 2 * me.rss
    assert 0 < use.ram_used < use.ram_total
    assert use.gpus or use.no_gpu
    assert child.pid not in [process.pid for process in reader.read().processes]


# The engine


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with own_home(tmp_path_factory.mktemp("home")) as folder:
        yield folder


@pytest.fixture(scope="module")
def monitor(home: Path, gguf_file: Path) -> Iterator[Monitor]:
    host = EngineHost()
    watching = Monitor(host)
    watching.start()
    host.load(str(gguf_file))
    yield watching
    host.close()
    watching.stop()


def host_of(monitor: Monitor) -> EngineHost:
    host = monitor._host
    assert isinstance(host, EngineHost)
    return host


def answer(monitor: Monitor, tokens: int = 32) -> FinishReason:
    engine = host_of(monitor).engine
    assert engine is not None
    ids = engine.encode("One, two, three, four, five, six, seven, eight, nine, ten.")
    request = Request(ids, SamplingParams(max_tokens=tokens, ignore_eos=True))
    return engine.submit(request).result().finish_reason


def test_without_a_model_there_is_only_the_machine() -> None:
    empty = Monitor(EngineHost())
    sample = empty.sample()
    assert (sample.engine, sample.engine_pid, sample.label) == (None, None, "")
    assert sample.machine.ram_total > 0
    with pytest.raises(RequestError, match="no model is loaded"):
        empty.trim()
    empty.stop()


def test_samples_have_the_engines_figures(monitor: Monitor, gguf_file: Path) -> None:
    answer(monitor)
    until(lambda: (s := monitor.sample().engine) is not None and s.completions and s.kv_tokens)
    sample = monitor.sample()
    assert sample in monitor.samples()
    assert any(process.pid == sample.engine_pid for process in sample.machine.processes)
    assert any(f"not planned: {gguf_file.name}" in text for text in texts(monitor.events()))
    needs = sample.needs
    assert needs is not None
    assert needs.weights <= gguf_file.stat().st_size < needs.total + needs.weights
    assert monitor.sample().needs is needs, "estimated once"
    answer(monitor)  # what it found cached is kept beside the slots
    until(lambda: (s := monitor.sample().engine) is not None and s.kv_tokens)
    assert monitor.trim() > 0
    until(lambda: (s := monitor.sample().engine) is not None and not s.kv_tokens)
    assert any("caches trimmed" in text for text in texts(monitor.events()))


def test_a_crash_and_the_restart_are_events(monitor: Monitor) -> None:
    seen = monitor.events()[-1].number
    before = monitor.sample().engine_pid
    assert before is not None
    os.kill(before, signal.SIGSEGV)
    until(lambda: monitor.sample().engine_pid != before)
    assert answer(monitor) is FinishReason.LENGTH
    until(lambda: any("has loaded" in text for text in texts(monitor.events(seen))))
    died, again = (e for e in monitor.events(seen) if "worker process" in e.text)
    assert (died.level_name, again.level_name) == ("WARNING", "INFO")
    assert "SIGSEGV" in died.text
    assert again.number > died.number
    assert monitor.sample().engine_pid not in (None, before)
