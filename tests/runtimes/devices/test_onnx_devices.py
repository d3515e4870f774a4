"""ONNX Runtime on a device beside the processor, where the package has a provider for one.

A device of software will do: onnxruntime-webgpu on SwiftShader (docs/devices.md). And everywhere on
the processor as if it were a device: one that has addresses, as CUDA's are, so that rows decode
together there.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runtimes.onnx.device
from runtimes.engine.engine import Engine
from runtimes.errors import IngotError, ModelError, OutOfMemoryError, RuntimeMissingError
from runtimes.models.registry import read_model
from runtimes.onnx import device_steps
from runtimes.onnx.device import target_of
from runtimes.onnx.device_steps import DeviceCache, rows_are_right
from runtimes.onnx.runner import OnnxRunner
from runtimes.request import SamplingParams
from runtimes.runner import Logits, StepRow, TopKLogits, require_full_logits
from runtimes.settings import RunnerSettings
from tests.runtimes.devices.crossings import Crossings
from tests.runtimes.devices.opened import PROCESSOR, halved, opened, step
from tests.runtimes.machine import tiny_onnx

# The processor as a device is named twice to ONNX Runtime, which says so.
pytestmark = pytest.mark.filterwarnings("ignore:Duplicate provider")

PROMPTS = [[1 + (7 * n + i * i) % 60 for i in range(4 + 5 * n)] for n in range(5)]
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
CLOSE = 1e-4  # of logits up to 4, all in floats


def history(runner: OnnxRunner) -> list[Logits]:
    """Prompts in pieces, steps of some rows and of all, and what is done to slots between them."""
    found, lengths = [], [0, 0, 0]
    for slot, prompt in enumerate(PROMPTS[1:4]):
        step(runner, StepRow(slot, 0, prompt[:3], 0))
        found.append(step(runner, StepRow(slot, 3, prompt[3:], 2)))
        lengths[slot] = len(prompt)
    for slots in ((0,), (1, 2), (0, 1, 2), (0, 2)):
        found.append(step(runner, *(StepRow(s, lengths[s], [9 + s], 1) for s in slots)))
        for slot in slots:
            lengths[slot] += 1
    runner.kv.copy(2, 0, 7)
    runner.kv.swap(0, 1)
    runner.kv.trim(2, 5)
    lengths = [lengths[1], 7, 5]
    found.append(step(runner, *(StepRow(s, lengths[s], [30 + s], s != 1) for s in range(3))))
    return [*found, runner.score(PROMPTS[4])]


def test_logits_are_the_processors(folder: Path, device: str) -> None:
    with opened(folder, "cpu") as runner:
        expected = history(runner)
    with opened(folder, device) as runner:
        found = history(runner)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs[-len(ours) :], atol=CLOSE)


def test_what_a_slot_holds_goes_to_another_and_to_the_processor(folder: Path, device: str) -> None:
    prompt = PROMPTS[3]
    with opened(folder, device) as there, opened(folder, "cpu") as here:
        for runner in (there, here):
            step(runner, StepRow(1, 0, prompt, 1))
        saved = there.kv.save(1)
        assert len(saved) == len(prompt) * there.capabilities.kv_bytes_per_token
        next_token = step(here, StepRow(1, len(prompt), [5], 1))
        for runner, slot in ((there, 0), (here, 2)):
            runner.kv.load(slot, saved, len(prompt))
            assert runner.kv.save(slot) == saved
            found = step(runner, StepRow(slot, len(prompt), [5], 1))
            np.testing.assert_allclose(found, next_token, atol=CLOSE)
        with pytest.raises(ModelError, match="bytes are not"):
            there.kv.load(0, saved[:-1], len(prompt))
        assert there.kv.save(0) == b""


def test_a_step_carries_tokens_there_and_the_logits_that_were_asked_for_back(
    folder: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = 4 * tiny_onnx.VOCABULARY
    with opened(folder, device) as runner:
        counted = Crossings(monkeypatch)
        assert isinstance(runner.kv, DeviceCache)
        for tensor in itertools.chain(*runner.kv._there):
            if device == PROCESSOR.name:
                at = tensor.data_ptr()
                counted.there.append(range(at, at + tensor.tensor_size_in_bytes()))
        for slot, wanted in ((0, 0), (1, 1), (2, 3)):
            step(runner, StepRow(slot, 0, PROMPTS[2], wanted))
        assert sum(counted.taken.values()) == (1 + 3) * row
        for length, wanted in ((14, (1, 0, 1)), (15, (0, 0, 0)), (16, (1, 1, 1))):
            counted.clear()
            step(runner, *(StepRow(s, length, [3], n) for s, n in enumerate(wanted)))
            # Of 64 bits each: an id a row, and as much of its mask as it has tokens.
            given = {"input_ids": 8 * 3, "attention_mask": 8 * 3 * (length + 1)}
            if any(wanted):  # which rows of logits
                given["rows"] = 8 * sum(wanted)
            assert counted.given == given
            assert sum(counted.taken.values()) == sum(wanted) * row
        counted.clear()
        runner.kv.copy(0, 1, 9)
        runner.kv.swap(0, 2)
        runner.kv.trim(1, 4)
        assert counted.taken == {}
        copies = 4 if runner.kv.together else 1
        assert sum(counted.given.values()) == 8 * copies  # how many tokens to copy


def test_no_node_of_a_step_carries_the_cache_or_the_weights(
    folder: Path, device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By ONNX Runtime's own profile: the nodes that it puts between devices."""
    if device == PROCESSOR.name:
        pytest.skip("there is nothing between the processor and itself")
    import onnxruntime as ort

    sessions: list[Any] = []
    opening = ort.InferenceSession

    def kept(graph: Any, options: Any, **others: Any) -> Any:
        options.enable_profiling = True
        # A number each: what it adds to the name is only the second.
        options.profile_file_prefix = str(tmp_path / f"profile-{len(sessions)}")
        sessions.append(opening(graph, options, **others))
        return sessions[-1]

    monkeypatch.setattr(ort, "InferenceSession", kept)
    with opened(folder, device) as runner:
        history(runner)
    nodes = [
        event["args"]
        for session in sessions
        for event in json.loads(Path(session.end_profiling()).read_text())
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
    ]
    attention = [one["provider"] for one in nodes if one["op_name"] == "GroupQueryAttention"]
    assert sum(one != "CPUExecutionProvider" for one in attention) > 20
    sizes = [
        int(np.prod(shape))
        for one in nodes
        if one["op_name"].startswith("Memcpy")
        for output in one["output_type_shape"]
        for shape in output.values()
    ]
    # An id, a mask of as many tokens as a context has, and a length; a slot's keys have 1,920.
    assert all(size <= 60 for size in sizes), sizes


def test_rows_of_different_lengths_are_tried(folder: Path, device: str) -> None:
    """Right on the processor. ONNX Runtime 1.27 for WebGPU takes all for as long as the longest."""
    target, model = target_of(device), read_model(folder)
    assert target is not None
    right = rows_are_right(target, model, np.float32)
    assert right == (device == PROCESSOR.name)
    settings = RunnerSettings(slots=2, context=20, device=device)
    for given in (settings, replace(settings, slots=1), replace(settings, reproducible=True)):
        with contextlib.closing(OnnxRunner(model, given)) as runner:
            together = given == settings and target.provider.addresses and right
            assert runner.capabilities.lone_rows != together


def test_a_file_for_processors_on_a_device_of_half_precision(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves = replace(PROCESSOR, halves=True)
    monkeypatch.setattr(runtimes.onnx.device, "_PROVIDERS", (halves,))
    with pytest.raises(ModelError, match="attention on Processor in 16 bits only: build"):
        Engine.load(folder, RunnerSettings(slots=1, context=16, device="Processor"))


def test_no_room_on_the_device(folder: Path, device: str) -> None:
    with pytest.raises(OutOfMemoryError), opened(folder, device, context=2**33):
        pass
    with opened(folder, device) as runner:  # and the next one goes
        assert len(step(runner, StepRow(0, 0, PROMPTS[0], 1))) == 1


def test_a_device_without_half_precision_does_not_say_that_it_has_no_room(
    folder: Path, device: str, tmp_path: Path
) -> None:
    """SwiftShader has none; a device that has it runs the graph."""
    halved(folder, tmp_path)
    with opened(tmp_path, "cpu") as runner:
        expected = step(runner, StepRow(0, 0, PROMPTS[0], 1))
    refused = ""
    try:
        with opened(tmp_path, device) as runner:
            found = step(runner, StepRow(0, 0, PROMPTS[0], 1))
    except ModelError as error:  # which OutOfMemoryError is not
        refused = str(error)
    if refused:
        assert "requires f16" in refused
    else:
        np.testing.assert_allclose(found, expected, atol=0.05)


def test_rows_go_together_beside_one_that_is_full(folder: Path, device: str) -> None:
    found = []
    for where in ("cpu", device):
        with opened(folder, where, context=20) as runner:
            for slot, length in enumerate((9, 20, 4)):
                step(runner, StepRow(slot, 0, [1 + slot] * length, 0))
            assert runner.kv.full() == {1}
            apart = step(runner, StepRow(0, 9, [5], 1), StepRow(2, 4, [6], 1))
            runner.kv.trim(1, 19)
            rows = (StepRow(0, 10, [5], 1), StepRow(1, 19, [8], 1), StepRow(2, 5, [6], 1))
            found.append(np.concatenate([apart, step(runner, *rows)]))
    np.testing.assert_allclose(*found, atol=CLOSE)


def test_the_largest_logits_are_found_there(
    folder: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_steps, "LIKELIEST", 16)  # of 64 tokens
    settings = RunnerSettings(slots=3, context=60, device=device, device_sampling=True)
    with contextlib.closing(OnnxRunner(read_model(folder), settings)) as runner:
        assert runner.capabilities.top_k_logits
        for slot in range(3):
            runner.execute([StepRow(slot, 0, PROMPTS[1], 0)])
        counted, found = Crossings(monkeypatch), []
        for needed in ((1, 5, 15), (1, 0, 15), (1, 16, 15)):
            asked = enumerate(needed)
            rows = [StepRow(s, 9, [3 + s], 1, top_k_needed=most) for s, most in asked]
            counted.clear()
            found.append(runner.execute(rows))
            for slot in range(3):
                runner.kv.trim(slot, 9)
            if len(found) == 1:
                assert sum(counted.taken.values()) == 3 * 16 * (4 + 8)  # a float and an id
        few, *whole = found
        assert isinstance(few, TopKLogits)
        for one in map(require_full_logits, whole):
            for ids, values, logits in zip(few.ids, few.values, one, strict=True):
                np.testing.assert_allclose(values, logits[ids], atol=CLOSE)
                assert logits[ids].min() >= np.sort(logits)[-16] - CLOSE


def test_a_provider_that_the_package_has_not(folder: Path) -> None:
    import onnxruntime as ort

    offered = ort.get_available_providers()
    name, package = next(
        (name, package)
        for name, provider, package in (
            ("WebGPU", "WebGpuExecutionProvider", "onnxruntime-webgpu"),
            ("CUDA", "CUDAExecutionProvider", "onnxruntime-gpu"),
        )
        if provider not in offered
    )
    with pytest.raises(RuntimeMissingError, match=f"cannot use {name}.*{package}"):
        Engine.load(folder, RunnerSettings(slots=1, context=16, device=name))


@pytest.mark.parametrize("name", ["Nothing7", "WebGPU:1", "CUDA:x", "CUDA:1:2", ""])
def test_a_device_that_is_not_there(folder: Path, name: str) -> None:
    with pytest.raises(IngotError, match="has no device") as raised:
        Engine.load(folder, RunnerSettings(slots=1, context=16, device=name))
    assert "there is: cpu" in str(raised.value)
