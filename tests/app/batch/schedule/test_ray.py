"""A job on a Ray cluster: a local one with two workers, one of which is killed in the middle."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.batch.report.figures import JobFigures
from app.batch.report.progress import Progress
from app.batch.schedule import cluster as cluster_module
from app.batch.schedule.cluster import require_ray, share_out
from runtimes.errors import RequestError
from tests.app.batch.conftest import Batch
from tests.support import own_home, read_rows, write_rows

ROWS = 120


def test_engines_are_shared_out_over_nodes() -> None:
    even, mixed = [{"CPU": 8.0}] * 3, [{"CPU": 16.0}, {"CPU": 8.0, "GPU": 4.0}]
    for nodes, wanted, gpu, shared in (
        (even, "auto", False, (3, 8, 0)),
        (even, 6, False, (6, 4, 0)),
        (even, 7, False, (7, 2, 0)),  # one of the nodes has three
        # A head node without processors takes none; the smallest node decides.
        ([{"CPU": 0.0}, {"CPU": 4.0}, {"CPU": 16.0}], "auto", False, (2, 8, 0)),
        (mixed, "auto", True, (4, 2, 1)),
        (mixed, "auto", False, (2, 8, 0)),
    ):
        share = share_out(nodes, wanted, gpu=gpu)
        assert (share.count, share.cpus, share.gpus) == shared
    for nodes, wanted, gpu, words in (
        (even, 25, False, "the Ray cluster has 24 processors"),
        (mixed, 5, True, "the Ray cluster has 4 GPUs"),
        ([{"memory": 1.0}], "auto", False, "no node with a processor"),
    ):
        with pytest.raises(RequestError, match=words):
            share_out(nodes, wanted, gpu=gpu)


def test_without_ray_or_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("127.0.0.1:9", "127.0.0.1:99999", "ray://x:1", "here", ":1"):
        with pytest.raises(
            RequestError, match=r"no Ray cluster at|--ray takes auto, local or HOST"
        ):
            cluster_module._check_address(address)
    monkeypatch.setattr(cluster_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"pip install 'ingot\[ray\]'"):
        require_ray()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Ray on this machine, with two workers' worth of processors."""
    ray = pytest.importorskip("ray", reason="Ray is not installed (the extra `ray`)")
    with own_home(tmp_path_factory.mktemp("home")), pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        quiet = {"include_dashboard": False, "log_to_driver": False}
        ray.init(num_cpus=2, num_gpus=0, logging_level=logging.ERROR, **quiet)
        yield ray
        ray.shutdown()


def test_a_killed_worker_costs_no_row(
    cluster: Any, batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, update = list[int](), Progress.update

    def kill_one(progress: Progress, figures: JobFigures) -> None:
        """Kill an actor's process as soon as there are some answers."""
        update(progress, figures)
        for process in psutil.Process().children(recursive=True):
            if killed or figures.done < ROWS // 8:
                return
            if " ".join(process.cmdline()).startswith("ray::EngineActor"):
                killed.append(process.pid)
                os.kill(process.pid, signal.SIGKILL)

    monkeypatch.setattr(Progress, "update", kill_one)
    write_rows(batch.source, [{"id": i, "prompt": f"Row {i} says"} for i in range(ROWS)])
    words = "--raw --max-tokens 96 --min-tokens 96 --slots 4 --context 128".split()
    there = ["--ray", "auto", "--engines", "2"]
    end = batch.end(*words, *there)
    assert len(killed) == 1
    assert (end["answered"], end["failed"], end["crashes"]) == (ROWS, 0, 1)
    assert sum(engine["rows"] for engine in end["engines"]) == ROWS
    assert all(engine["rows"] for engine in end["engines"])
    assert sorted(batch.computed) == list(range(ROWS))

    local = tmp_path / "local.jsonl"
    batch(*words, out=local)
    answers = [
        [(one["id"], one["response"]) for one in read_rows(out)] for out in (batch.out, local)
    ]
    assert answers[0] == answers[1]

    # The same job again, there or here, finds every row answered.
    for where in (there, []):
        end = batch.end(*words, *where)
        assert (end["reused"], end["slots"]) == (ROWS, 0)
