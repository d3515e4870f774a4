"""Threads that wait for each other spin on free cores and sleep beside a busy process."""

from __future__ import annotations

import os
import time

import pytest

from runtimes.llamacpp import omp_wait
from runtimes.llamacpp.omp_wait import OmpWaitPolicy, excess
from tests.support import until


def test_crowded_is_when_all_together_want_more_than_there_is() -> None:
    assert excess(threads=2, others=0.0, cores=2) == 0
    assert excess(threads=2, others=1.5, cores=2) == 1.5
    assert excess(threads=4, others=3.0, cores=8) == -1  # they have cores of their own
    assert excess(threads=9, others=0.25, cores=8) == 0.25


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if omp_wait._openmp() is None:
        pytest.skip("GNU OpenMP is not here")


@pytest.mark.usefixtures("unset")
def test_it_sleeps_while_others_are_busy_and_spins_again_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = [0.0]
    monkeypatch.setattr(omp_wait, "others_share", lambda _: others[0] / omp_wait._cores())
    monkeypatch.setattr(omp_wait, "_LOOK_S", 0.2)
    monkeypatch.setattr(omp_wait, "_REST_S", 0.005)
    watch = OmpWaitPolicy(threads=omp_wait._cores() + 1)
    try:
        watch.__enter__()
        time.sleep(0.1)
        assert watch._asleep is None
        for _ in range(16):  # turns with another engine, some in each look
            watch.__exit__()
            time.sleep(2 * omp_wait._REST_S)
            others[0] = 1.0
            watch.__enter__()
            time.sleep(0.05)
        assert watch._asleep is None
        until(lambda: watch._asleep is not None)
        others[0] = 0.0
        until(lambda: watch._asleep is None)
        watch.__exit__()
        until(lambda: not watch._work.is_set())  # a look may have been under way
        others[0] = 1.0  # as when another engine goes on where this one has ended
        time.sleep(0.1)  # nothing runs, nothing is watched
        assert watch._asleep is None
    finally:
        watch.close()


@pytest.mark.usefixtures("unset")
def test_a_team_that_sleeps_costs_nothing_and_goes_away() -> None:
    tasks = f"/proc/{os.getpid()}/task"
    before = set(os.listdir(tasks))
    team = omp_wait._idle_team()
    until(lambda: len(set(os.listdir(tasks)) - before) > omp_wait._cores())
    team.set()
    until(lambda: set(os.listdir(tasks)) <= before)


def test_what_the_environment_says_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "5000")
    before = set(omp_wait.threading.enumerate())
    watch = OmpWaitPolicy(threads=64)
    watch.__enter__()
    assert set(omp_wait.threading.enumerate()) <= before
    assert watch._asleep is None
    watch.close()
