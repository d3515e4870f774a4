"""A worker process runs where it is told to, with all of its threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runtimes.request import SamplingParams
from runtimes.settings import RunnerSettings
from runtimes.worker.engine import WorkerEngine
from runtimes.worker.process import Placement

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system has no processor affinity"
)


def test_processors_and_environment_reach_every_thread(gguf: Path) -> None:
    before = os.sched_getaffinity(0)
    cpu = max(before)
    place = Placement((cpu,), {"CUDA_VISIBLE_DEVICES": "7"})
    with WorkerEngine.load(gguf, RunnerSettings(slots=1, context=64), place=place) as engine:
        engine.generate([[5, 6, 7]], SamplingParams(max_tokens=2, ignore_eos=True))
        process = Path(f"/proc/{engine.pid}")
        threads = [int(task.name) for task in process.joinpath("task").iterdir()]
        assert len(threads) > 1
        assert {frozenset(os.sched_getaffinity(thread)) for thread in threads} == {frozenset({cpu})}
        assert b"CUDA_VISIBLE_DEVICES=7" in process.joinpath("environ").read_bytes().split(b"\0")
    assert os.sched_getaffinity(0) == before
