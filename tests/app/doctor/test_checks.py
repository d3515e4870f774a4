"""Each check on Pebble's files, and what they refuse."""

from __future__ import annotations

import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.bench.frame import Samples
from app.doctor import checks
from app.doctor.checks import (
    PROCESSOR,
    ROWS,
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
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import read_model
from runtimes.worker.engine import WorkerEngine


@pytest.fixture
def target(gguf_file: Path) -> VerifyTarget:
    return VerifyTarget(read_model(gguf_file), PROCESSOR)


def test_rows_together_answer_as_one_by_one(onnx_folder: Path) -> None:
    found = answers(VerifyTarget(read_model(onnx_folder), PROCESSOR))
    assert found.verdict == "passed", found
    assert found.figures["answers"] == 6
    assert found.figures["logprobs_moved"] < 0.35


def test_answers_that_part(target: VerifyTarget) -> None:
    alone = greedy_answers(target, 1)
    first = alone[0]
    for gap, verdict, kind in ((0.01, "passed", " at a near-tie"), (2.0, "failed", "")):
        tops = [{1: -0.5, 2: -0.5 - gap}] * len(first.token_ids)
        reference = [replace(first, top_logprobs=tuple(tops)), *alone[1:]]
        ids = (*first.token_ids[:3], first.token_ids[3] + 1, *first.token_ids[4:])
        found = judge(reference, [replace(first, token_ids=ids), *alone[1:]])
        assert (found.verdict, found.figures["equal"]) == (verdict, 5)
        assert f"answer 1 parts{kind} at token 4" in found.said
    logprobs = alone[2].logprobs
    assert logprobs
    for by in (0.5, math.nan):  # equal tokens of another probability
        other = replace(alone[2], logprobs=(*logprobs[:-1], logprobs[-1] - by))
        assert judge(alone, [*alone[:2], other, *alone[3:]]).verdict == "failed"
    with pytest.raises(IngotError, match="nothing to compare"):
        judge(alone, [replace(one, logprobs=None) for one in alone])


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_killed_worker_comes_back_and_a_cancelled_request_makes_room(
    target: VerifyTarget,
) -> None:
    killed, cancelled = restart(target), cancel(target)
    assert killed.verdict == cancelled.verdict == "passed", (killed, cancelled)
    assert killed.figures["deaths"] == 1
    assert cancelled.figures["tokens_after"] == 16


def test_every_device_of_a_runtime_and_no_other_in_its_place(target: VerifyTarget) -> None:
    health = Health("llamacpp", True, True, "1", (), None, devices=(Device("GPU0", "some GPU"),))
    assert devices(health) == (PROCESSOR, "GPU0")
    other = replace(target, device="GPU0")
    with pytest.raises(ModelError, match="no device 'GPU0'"):
        answers(other)
    assert "machine's memory" in memory(other).said
    with WorkerEngine.load(target.model.path, target.settings(1)) as engine:
        target.require_device(engine)
        with pytest.raises(IngotError, match="no layer is on GPU0"):
            other.require_device(engine)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_and_speed(target: VerifyTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_SAMPLES_S", 0.0)
    found = memory(target)
    assert found.verdict == "passed", found
    ratio = found.figures["estimate"]["total"] / found.figures["measured_bytes"]
    assert found.figures["ratio"] == pytest.approx(ratio)
    figures = speed(target).figures
    for name in ("prefill_tps", "decode_tps_1", f"decode_tps_{ROWS}"):
        assert min(figures[name]) > 0


def test_the_planner_against_what_was_timed(gguf_file: Path) -> None:
    found = planner(str(gguf_file), "chat", 0.0)
    assert found.figures["timed"] >= 1
    assert found.figures["pick"]["candidate"]["file"] == gguf_file.name


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
    watch, silent = GpuWatch(), GpuWatch()
    watch.add([gpu], 1.0)
    watch.add([replace(gpu, percent=100.0, watts=None)], 1.0)
    (found,) = gpu_figures(watch, 1000.0)
    assert (found["percent"], found["tokens_per_joule"], found["memory_used_bytes"]) == (75, 5, 60)
    assert "75% busy, 200 W, 5.0 tokens/J" in gpu_words(watch, 1000.0)
    silent.add([replace(gpu, percent=None)], 1.0)
    assert gpu_words(silent, 1.0) == ""


def test_files_that_are_damaged(gguf_file: Path, pebble_built: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf_file.read_bytes()[:-1000])
    with pytest.raises(ModelError, match="truncated"):
        read(str(cut), [])
    assert (whole(str(cut)).verdict, whole(str(pebble_built)).verdict) == ("skipped", "passed")
    folder = Path(shutil.copytree(pebble_built, tmp_path / "built"))
    for path in folder.glob("*.gguf"):
        path.write_bytes(path.read_bytes()[:-1000])
    found = whole(str(folder))
    assert found.verdict == "failed"
    assert gguf_file.name in found.said
    files: list[ModelFile] = []
    assert read(str(folder), files).verdict == "failed"
    assert {file.path.name for file in files} == {"onnx-int4", "onnx-int8"}
