"""Each check on Pebble's files, and what they refuse."""

from __future__ import annotations

import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.bench.frame import Samples
from app.doctor.checks import (
    PROCESSOR,
    ROWS,
    Skip,
    VerifyTarget,
    answers,
    cancel,
    devices,
    gpu_figures,
    gpu_words,
    greedy_answers,
    judge,
    judge_regret,
    memory,
    planner,
    restart,
    speed,
)
from app.doctor.verify import read, whole
from runtimes.backend import Device
from runtimes.errors import IngotError, ModelError
from runtimes.machine.gpus import Gpu, GpuWatch
from runtimes.machine.selftest import Health
from runtimes.models.registry import read_model
from runtimes.request import Completion
from runtimes.worker.engine import WorkerEngine


@pytest.fixture(scope="module", params=["gguf_file", "onnx_folder"])
def target(request: pytest.FixtureRequest) -> VerifyTarget:
    return VerifyTarget(read_model(request.getfixturevalue(request.param)), PROCESSOR)


@pytest.fixture(scope="module")
def alone(gguf_file: Path) -> list[Completion]:
    return greedy_answers(VerifyTarget(read_model(gguf_file), PROCESSOR), 1)


def test_rows_together_answer_as_one_by_one(target: VerifyTarget) -> None:
    found = answers(target)
    assert found.verdict == "passed", found
    assert found.figures["answers"] == 6
    assert found.figures["logprobs_moved"] < 0.35


def test_answers_that_part(alone: list[Completion]) -> None:
    first = alone[0]
    assert first.top_logprobs
    for gap, verdict in ((0.01, "passed"), (2.0, "failed")):
        tops = [{1: -0.5, 2: -0.5 - gap}] * len(first.token_ids)
        reference = [replace(first, top_logprobs=tuple(tops)), *alone[1:]]
        ids = (*first.token_ids[:3], first.token_ids[3] + 1, *first.token_ids[4:])
        found = judge(reference, [replace(first, token_ids=ids), *alone[1:]])
        assert found.verdict == verdict
        assert found.figures["equal"] == 5
        assert "answer 1 parts" in found.said
        assert "at token 4" in found.said
        assert ("near-tie" in found.said) is (verdict == "passed")


@pytest.mark.parametrize("by", [0.5, math.nan])
def test_equal_tokens_of_other_probability(alone: list[Completion], by: float) -> None:
    assert judge(alone, alone).verdict == "passed"
    logprobs = alone[2].logprobs
    assert logprobs
    other = replace(alone[2], logprobs=(*logprobs[:-1], logprobs[-1] - by))
    assert judge(alone, [*alone[:2], other, *alone[3:]]).verdict == "failed"


def test_answers_without_probabilities_prove_nothing(alone: list[Completion]) -> None:
    bare = [replace(one, logprobs=None) for one in alone]
    with pytest.raises(IngotError, match="nothing to compare"):
        judge(alone, bare)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_killed_worker_comes_back(target: VerifyTarget) -> None:
    found = restart(target)
    assert found.verdict == "passed", found
    assert found.figures["deaths"] == 1


def test_a_cancelled_request_makes_room(target: VerifyTarget) -> None:
    found = cancel(target)
    assert found.verdict == "passed", found
    assert found.figures["tokens_after"] == 16


def test_every_device_of_a_runtime_and_no_other_in_its_place(gguf_file: Path) -> None:
    health = Health("llamacpp", True, True, "1", (), None, devices=(Device("GPU0", "some GPU"),))
    assert devices(health) == (PROCESSOR, "GPU0")
    model = read_model(gguf_file)
    other = VerifyTarget(model, "GPU0")
    with pytest.raises(ModelError, match="no device 'GPU0'"):
        answers(other)
    with pytest.raises(Skip, match="machine's memory"):
        memory(other)
    here = VerifyTarget(model, PROCESSOR)
    with WorkerEngine.load(gguf_file, here.settings(1)) as engine:
        here.require_device(engine)
        with pytest.raises(IngotError, match="no layer is on GPU0"):
            other.require_device(engine)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory(target: VerifyTarget) -> None:
    found = memory(target)
    assert found.verdict == "passed", found
    assert found.figures["estimate"]["total"] / found.figures["measured_bytes"] == pytest.approx(
        found.figures["ratio"]
    )


def test_speed(target: VerifyTarget) -> None:
    figures = speed(target).figures
    for name in ("prefill_tps", "decode_tps_1", f"decode_tps_{ROWS}"):
        assert figures[name]
        assert min(figures[name]) > 0


def test_the_planner_against_what_was_timed(gguf_file: Path) -> None:
    found = planner(str(gguf_file), "chat", 0.0)
    assert found.figures["timed"] >= 1
    assert found.figures["pick"]["candidate"]["file"] == gguf_file.name
    assert str(gguf_file.parent) not in str(found)


@pytest.mark.parametrize(
    ("regret", "parts", "others", "verdict"),
    [
        (0.05, [0.9, 0.9], 0.0, "passed"),
        (0.20, [0.8, 0.81, 0.79, 0.8], 0.0, "failed"),
        (0.20, [0.8, 0.81, 0.79, 0.8], 0.5, "skipped"),  # others had the processor
        (0.20, [0.5, 1.1, 0.8, 0.7], 0.0, "skipped"),  # the samples scatter
    ],
)
def test_regret(regret: float, parts: list[float], others: float, verdict: str) -> None:
    assert judge_regret(regret, Samples(parts), others) == verdict


def test_what_gpus_did() -> None:
    gpu = Gpu(0, "H200", 100, 40, "9.0", "1", percent=50.0, watts=200.0)
    watch = GpuWatch()
    watch.add([gpu], 1.0)
    watch.add([replace(gpu, percent=100.0, watts=None)], 1.0)
    (found,) = gpu_figures(watch, 1000.0)
    assert found["percent"] == 75
    assert found["tokens_per_joule"] == 5
    assert found["memory_used_bytes"] == 60
    assert "75% busy, 200 W, 5.0 tokens/J" in gpu_words(watch, 1000.0)
    silent = GpuWatch()
    silent.add([replace(gpu, percent=None)], 1.0)
    assert gpu_words(silent, 1.0) == ""


def test_files_that_are_damaged(gguf_file: Path, pebble_built: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf_file.read_bytes()[:-1000])
    with pytest.raises(ModelError, match="truncated"):
        read(str(cut))
    with pytest.raises(Skip, match="no checksums"):
        whole(str(cut))
    folder = Path(shutil.copytree(pebble_built, tmp_path / "built"))
    for path in folder.glob("*.gguf"):
        path.write_bytes(path.read_bytes()[:-1000])
    found = whole(str(folder))
    assert found.verdict == "failed"
    assert gguf_file.name in found.said
    found, files = read(str(folder))
    assert found.verdict == "failed"
    assert {file.path.name for file in files} == {"onnx-int4", "onnx-int8"}
