"""A job on a Ray cluster: a local one with two workers, one of which is killed in the middle."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.batch.input.source import open_source
from app.batch.journal.journal import journal_path
from app.batch.report.figures import JobFigures
from app.batch.report.progress import Progress
from app.batch.runner import run_to_file
from app.batch.schedule import cluster as cluster_module
from app.batch.schedule.cluster import require_ray, share_out
from app.batch.schedule.engines import JobPlan
from app.batch.settings import JobSettings
from app.batch.spec import BatchSpec, RunningOptions
from app.models.planning import LoadChoice
from runtimes.errors import ModelError, RequestError
from runtimes.models.modelfile import fingerprint
from runtimes.models.registry import read_model
from runtimes.request import SamplingParams
from runtimes.settings import RunnerSettings, SchedulerSettings

ROWS = 120
PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)


def test_engines_are_shared_out_over_nodes() -> None:
    def shared(nodes: list[dict[str, Any]], wanted: Any = "auto", *, gpu: bool = False) -> Any:
        share = share_out(nodes, wanted, gpu=gpu)
        return share.count, share.cpus, share.gpus

    even = [{"CPU": 8.0}] * 3
    assert shared(even) == (3, 8, 0)
    assert shared(even, 6) == (6, 4, 0)
    assert shared(even, 7) == (7, 2, 0)  # one of the nodes has three
    # A head node without processors takes none; the smallest node decides.
    assert shared([{"CPU": 0.0}, {"CPU": 4.0}, {"CPU": 16.0}]) == (2, 8, 0)
    mixed = [{"CPU": 16.0}, {"CPU": 8.0, "GPU": 4.0}]
    assert shared(mixed, gpu=True) == (4, 2, 1)
    assert shared(mixed, gpu=False) == (2, 8, 0)
    with pytest.raises(RequestError, match="the Ray cluster has 24 processors"):
        shared(even, 25)
    with pytest.raises(RequestError, match="the Ray cluster has 4 GPUs"):
        shared(mixed, 5, gpu=True)
    with pytest.raises(RequestError, match="no node with a processor"):
        shared([{"memory": 1.0}])


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"pip install 'ingot\[ray\]'"):
        require_ray()


@pytest.mark.parametrize("address", ["127.0.0.1:9", "127.0.0.1:99999", "ray://x:1", "here", ":1"])
def test_an_address_without_a_cluster(address: str) -> None:
    with pytest.raises(RequestError, match=r"no Ray cluster at|--ray takes auto, local or HOST"):
        cluster_module._check_address(address)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Ray on this machine, with two workers' worth of processors."""
    pytest.importorskip("ray", reason="Ray is not installed (the extra `ray`)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("INGOT_HOME", str(tmp_path_factory.mktemp("home")))
        import ray

        ray.init(
            num_cpus=2,
            num_gpus=0,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        yield ray
        ray.shutdown()


@pytest.fixture
def choice(gguf_file: Path) -> LoadChoice:
    settings = RunnerSettings(slots=4, context=128, threads=1)
    return LoadChoice(read_model(gguf_file), settings, SchedulerSettings(), planned=False)


class KillOne(Progress):
    """Kills an actor's process as soon as there are some answers."""

    killed: int | None = None

    def update(self, snapshot: JobFigures) -> None:
        if self.killed is not None or snapshot.done < ROWS // 4:
            return
        for process in psutil.Process().children(recursive=True):
            if " ".join(process.cmdline()).startswith("ray::EngineActor"):
                self.killed = process.pid
                os.kill(process.pid, signal.SIGKILL)
                return


def run(choice: LoadChoice, rows: Path, out: Path, view: Progress, **asked: Any) -> JobFigures:
    settings = JobSettings(
        model="pebble",
        runtime="llamacpp",
        fingerprint=asked.pop("fingerprint", None) or fingerprint(choice.file),
        sampling=PARAMS,
        raw=True,
    )
    engines = asked.pop("engines", 1)
    spec = BatchSpec(str(rows), str(out), slots=4, running=RunningOptions(**asked))
    with open_source(str(rows), digest=settings.digest()) as source:
        return run_to_file(JobPlan(spec, source, choice, settings, engines), out, view)


def records(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_killed_worker_costs_no_row(cluster: Any, choice: LoadChoice, tmp_path: Path) -> None:
    rows, out, local = (tmp_path / name for name in ("in.jsonl", "out.jsonl", "local.jsonl"))
    rows.write_text(
        "".join(json.dumps({"id": i, "prompt": f"Row {i} says"}) + "\n" for i in range(ROWS))
    )
    view = KillOne()
    summary = run(choice, rows, out, view, ray="auto", engines=2)
    assert view.killed is not None
    assert (summary.answered, summary.failed) == (ROWS, 0)
    assert summary.crashes == 1
    assert sum(engine.rows for engine in summary.engines) == ROWS
    assert all(engine.rows for engine in summary.engines)
    journal = records(journal_path(out))
    assert Counter(line["index"] for line in journal if "index" in line) == Counter(range(ROWS))

    run(choice, rows, local, Progress())
    answered = [(record["id"], record["response"]) for record in records(out)]
    assert answered == [(record["id"], record["response"]) for record in records(local)]

    # The same job again, there or here, finds every row answered.
    again = run(choice, rows, out, Progress(), ray="auto", engines=2)
    assert (again.reused, again.stats) == (ROWS, None)
    assert run(choice, rows, out, Progress()).reused == ROWS


def test_a_node_without_the_model_is_named(
    cluster: Any, choice: LoadChoice, tmp_path: Path
) -> None:
    rows = tmp_path / "in.txt"
    rows.write_text("one\n")
    with pytest.raises(ModelError, match=r"node [0-9.]+: .* is another model than the job's"):
        run(
            choice,
            rows,
            tmp_path / "a",
            Progress(),
            ray="auto",
            engines=1,
            fingerprint="0" * 64,
        )
    gone = replace(choice, file=replace(choice.file, path=tmp_path / "gone.gguf"))
    same = fingerprint(choice.file)
    with pytest.raises(ModelError, match=r"node [0-9.]+: there is no .*gone.gguf"):
        run(gone, rows, tmp_path / "b", Progress(), ray="auto", engines=1, fingerprint=same)
