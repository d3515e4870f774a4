"""What a row may cost: crashes of the worker, timeouts and retries, on Pebble in a real worker."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.batch.input.source import Row
from app.batch.schedule import job as jobs
from app.batch.schedule.pool_engine import PoolEngine
from app.openai.task import Task
from app.prompts import PromptStyle
from runtimes.errors import ModelError
from runtimes.request import Constraint, Priority, Request, SamplingParams
from runtimes.settings import RunnerSettings
from runtimes.stream import Stream
from runtimes.worker.engine import WorkerEngine
from tests.app.batch.schedule.jobs import POISON, rows_of, run
from tests.support import own_home

SLOTS = 4


class Killed(WorkerEngine):
    """Its worker is killed as soon as it has run a prompt that ends in one of ``poison``, and when
    it is asked ``worst``."""

    poison: tuple[list[int], ...] = ()
    worst: list[int] | None = None
    asked: Counter[tuple[int, ...]]
    priorities: list[Priority]

    def submit(self, request: Request) -> Stream:
        if request.prompt == self.worst and self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
        stream = super().submit(request)
        self.asked[tuple(request.prompt)] += 1
        self.priorities.append(request.priority)
        if any(request.prompt[-len(end) :] == end for end in self.poison):
            threading.Thread(target=self._kill, args=(stream, self.pid)).start()
        return stream

    def _kill(self, stream: Stream, pid: int) -> None:
        if next(iter(stream), None) is not None:
            with contextlib.suppress(ProcessLookupError):  # another row was faster
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def loaded(model: Path, home: Path) -> Iterator[Killed]:
    settings = RunnerSettings(slots=SLOTS, context=4096, threads=1)
    with own_home(home), Killed.load(model, settings) as engine:  # where deaths are remembered
        engine.asked, engine.priorities = Counter(), []
        yield engine


@pytest.fixture
def engine(endless_gguf: Path, tmp_path: Path) -> Iterator[Killed]:
    """One that is killed."""
    with loaded(endless_gguf, tmp_path / "home") as engine:
        yield engine


@pytest.fixture(scope="module")
def calm(endless_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    """One that nothing happens to."""
    with loaded(endless_gguf, tmp_path_factory.mktemp("home")) as engine:
        yield engine


def test_a_row_that_kills_the_worker_fails_alone(engine: Killed) -> None:
    prompts = [f"The number {i} is" for i in range(3 * SLOTS)]
    prompts[1] = prompts[6] = POISON
    engine.poison = (engine.encode(POISON)[-3:],)
    job, results = run([PoolEngine(engine)], rows_of(prompts), retries=0)
    failed = {index: r.error for index, r in results.items() if r.error}
    assert set(failed) == {1, 6}
    assert {error.code for error in failed.values()} == {"worker_crash"}
    assert "twice with this row" in failed[1].message
    assert len(results) == len(prompts)
    assert job.counts.crashes <= 4  # two for each of the two
    # Each neighbour was asked once more for each crash in its company, and no more.
    others = [engine.asked[tuple(engine.encode(text))] for text in set(prompts) - {prompts[1]}]
    assert max(others) <= 3


def test_a_worker_that_dies_of_anything_ends_the_job(engine: Killed) -> None:
    engine.poison = (engine.encode(POISON)[-3:],)
    engine.worst = engine.encode(".")  # what a new process is tried with
    prompts = ["The number 1 is", POISON, "The number 2 is"]
    with pytest.raises(ModelError, match=r"cannot even answer one token any more: .*SIGKILL"):
        run([PoolEngine(engine)], rows_of(prompts))


def test_rows_that_kill_one_after_another_end_the_job_at_last(
    engine: Killed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_DEATHS_IN_A_ROW", 3)
    engine.poison = (engine.encode(POISON)[-3:],)
    with pytest.raises(ModelError, match=r"died 3 times, .* --skip-failed"):
        run([PoolEngine(engine)], rows_of([POISON] * 3))


def test_rows_with_a_constraint_of_their_own_fail_alone(calm: Killed) -> None:
    """It is too large to be followed, which is known only when it is tried. Whoever tries it first
    may get by with the few tokens that are wanted."""
    own = SamplingParams(max_tokens=4, constraint=Constraint("regex", "a{1000000}"))
    limit = jobs._FAILURES_IN_A_ROW * SLOTS
    count = limit + 1 + SLOTS
    bad, good = rows_of(["a"] * count, sampling=own), rows_of(["b"] * (count + 1))[-1:]
    job, results = run([PoolEngine(calm)], [*bad, *good], retries=0)
    failed = [row for row in bad if results[row.index].error]
    assert job.counts.failed == len(failed) > limit
    assert results[good[0].index].error is None
    assert results[failed[0].index].error.code == "engine_error"
    assert "constraint" in results[failed[0].index].error.message


def test_a_crash_from_outside_fails_no_row(
    engine: Killed, calm: Killed, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of([f"The number {i} is" for i in range(2 * SLOTS)])
    killed = False
    _, expected = run([PoolEngine(calm)], rows)
    submit = engine.submit

    def held(request: Request) -> Stream:
        if not killed and len(engine.asked) == len(rows) - 1 and engine.pid is not None:
            os.kill(engine.pid, signal.SIGSTOP)  # the last one is not answered before the kill
        return submit(request)

    def tick() -> None:
        nonlocal killed
        if not killed and engine.pid is not None:
            killed = True
            os.kill(engine.pid, signal.SIGKILL)

    monkeypatch.setattr(engine, "submit", held)
    job, results = run([PoolEngine(engine)], rows, tick, retries=0)
    assert (job.counts.crashes, job.counts.failed) == (1, 0)
    assert {i: one.response for i, one in results.items()} == {
        i: one.response for i, one in expected.items()
    }


def test_a_row_that_takes_too_long_fails_after_its_retries(calm: Killed) -> None:
    long = SamplingParams(max_tokens=200, ignore_eos=True)
    slow, quick = rows_of(["Once upon a time"], sampling=long), rows_of(["a", "b"])[1:]
    job, results = run([PoolEngine(calm)], [*slow, *quick], timeout_s=0.002, retries=2)
    assert results[0].error.code == "timeout"
    assert "--row-timeout" in results[0].error.message
    assert calm.asked[tuple(calm.encode("Once upon a time"))] == 3
    assert job.counts.retried >= 2


def test_a_conversation_continues_before_another_begins(calm: Killed) -> None:
    turns = ("Hello.", "Who are you?")
    for priority, asked in (
        (Priority.NORMAL, [Priority.NORMAL, Priority.HIGH]),
        (Priority.CRITICAL, [Priority.CRITICAL] * 2),
    ):
        calm.priorities.clear()
        run(
            [PoolEngine(calm)],
            [Row(0, 1, 0, Task((), turns, priority=priority))],
            style=PromptStyle(),
        )
        assert calm.priorities == asked
