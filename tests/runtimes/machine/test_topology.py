"""Cores and nodes as Linux tells of them, and how they are dealt out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runtimes.machine.cpu import Core, cores, shares


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes of two cores with two processors each, numbered as most machines do it."""
    for cpu in range(8):
        folder = tmp_path / f"cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        folder.joinpath("thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    for node, cpus in ((0, "0,2,4,6"), (1, "1,3,5,7")):
        folder = tmp_path / f"node/node{node}"
        folder.mkdir(parents=True)
        folder.joinpath("cpulist").write_text(cpus + "\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr("runtimes.machine.cpu._SYSTEM", tmp_path)


@pytest.mark.usefixtures("system")
def test_cores_are_in_the_order_of_their_nodes() -> None:
    found = cores()
    assert found == (Core((0, 4), 0), Core((2, 6), 0), Core((1, 5), 1), Core((3, 7), 1))
    # As many engines as nodes: a node each.
    assert [{core.node for core in share} for share in shares(found, 2)] == [{0}, {1}]


@pytest.mark.usefixtures("system")
def test_what_the_process_may_not_use_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2, 6}, raising=False)
    assert cores() == (Core((2, 6), 0), Core((1,), 1))


def test_a_system_that_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3}, raising=False)
    monkeypatch.setattr("runtimes.machine.cpu._SYSTEM", tmp_path)
    assert cores() == (Core((0,)), Core((3,)))


def test_shares_differ_by_one_core_at_most() -> None:
    dealt = shares([Core((i,)) for i in range(7)], 3)
    assert [len(share) for share in dealt] == [3, 2, 2]
    assert sorted(core.cpus[0] for share in dealt for core in share) == list(range(7))
