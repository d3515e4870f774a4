"""llama.cpp on a device beside the processor, where its build has one, and choosing among them.

A device of software will do: a build for Vulkan on Mesa's lavapipe, with GGML_VK_VISIBLE_DEVICES=0
and GGML_VK_DISABLE_FUSION=1 (version 22.3 dies of a fused kernel).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runtimes.engine.engine import Engine
from runtimes.errors import ModelError
from runtimes.llamacpp import context
from runtimes.llamacpp.context import device_bytes, layers_that_fit
from runtimes.machine.selftest_child import exercise_settings
from runtimes.models.memory import with_defaults
from runtimes.models.registry import backend, read_model
from runtimes.request import Completion, Request, SamplingParams
from runtimes.settings import RunnerSettings
from runtimes.worker.engine import WorkerEngine
from tests.runtimes.ties import REGROUPED_TIE, near_ties

QUESTIONS = (
    "What is the capital of France?",
    "What is 12 plus 13?",
    "Tell me a story about a fox.",
    "Name a fruit.",
    "What color is the sky?",
    "Count from one to ten.",
)
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, logprobs=True, top_logprobs=2)
SETTINGS = RunnerSettings(slots=4, context=512)


@pytest.fixture(scope="module")
def device() -> str:
    found = backend("llamacpp").devices()
    if not found:
        pytest.skip("this build of llama.cpp has no device but the processor")
    return found[0].name


def answers(engine: Engine | WorkerEngine) -> list[Completion]:
    """To all questions, in as many slots as there are."""
    asked = [[{"role": "user", "content": text}] for text in QUESTIONS]
    streams = [engine.submit(Request(engine.encode_chat(one), GREEDY)) for one in asked]
    return [stream.result(300) for stream in streams]


@pytest.fixture(scope="module")
def expected(gguf: Path) -> list[Completion]:
    with Engine.load(gguf, RunnerSettings(slots=4, context=512, device="cpu")) as engine:
        return answers(engine)


@pytest.mark.timeout(600)  # a device of software compiles its kernels first
@pytest.mark.parametrize(("layers", "unified"), [(0, False), (2, False), (-1, False), (-1, True)])
def test_texts_are_the_processors(
    gguf: Path,
    device: str,
    expected: list[Completion],
    tie_count: Callable[[str, int, int], None],
    layers: int,
    unified: bool,
) -> None:
    settings = RunnerSettings(
        slots=4, context=512, gpu_layers=layers, unified_kv=unified, device=device
    )
    with Engine.load(gguf, settings) as engine:
        found = answers(engine)
        again = answers(engine)  # with what is cached of the prompts
        assert engine.stats().cached_tokens > 0
    for one in (found, again):
        tie_count(device, near_ties(expected, one, REGROUPED_TIE), len(one))


@pytest.mark.timeout(600)
def test_a_session_of_the_device_goes_on_there_and_on_the_processor(
    gguf: Path, device: str, tmp_path: Path
) -> None:
    kept = tmp_path / "chat.session"
    with Engine.load(gguf, RunnerSettings(slots=1, context=512, device=device)) as engine:
        ids = engine.encode_chat([{"role": "user", "content": "Tell me a story about a fox."}])
        first = engine.generate([ids], GREEDY)[0]
        told = [*ids, *first.token_ids]
        assert engine.save_session(told, kept) > len(ids)
        on = engine.submit(Request(told, GREEDY)).result(300)
    for where in (device, "cpu"):
        with Engine.load(gguf, RunnerSettings(slots=1, context=512, device=where)) as engine:
            assert len(engine.load_session(kept)) > len(ids)
            found = engine.submit(Request(told, GREEDY)).result(300)
            assert found.usage.cached_tokens > len(ids)
            near_ties([on], [found], REGROUPED_TIE)


def test_the_self_test_is_the_processors(device: str, caplog: pytest.LogCaptureFixture) -> None:
    tested = backend("llamacpp")
    with caplog.at_level(logging.DEBUG, logger="runtimes.llamacpp.native"):
        tested.open(read_model(tested.selftest), exercise_settings(tested, True)).close()
    assert "buffer size" in caplog.text
    assert device not in caplog.text


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("share", "unified"), [(0.5, False), (0.8, True), (2.0, False)])
def test_as_many_layers_as_fit(
    gguf: Path, device: str, unified: bool, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    file = read_model(gguf)
    asked = RunnerSettings(slots=16, context=1024, unified_kv=unified, device=device)
    asked = with_defaults(file, asked)
    room = int(share * device_bytes(file, asked, file.layers + 1))
    layers = layers_that_fit(file, asked, room)
    assert (layers > file.layers) == (share > 1)
    with (
        caplog.at_level(logging.DEBUG, logger="runtimes.llamacpp.native"),
        Engine.load(gguf, replace(asked, gpu_layers=layers)) as engine,
    ):
        assert engine.stats().gpu_layers == min(max(layers - 1, 0), file.layers)
        assert engine.generate([engine.encode("Once")], GREEDY)[0].text
    line = rf"{device} +(?:model|KV|compute) buffer size = +([\d.]+) MiB"
    used = sum(map(float, re.findall(line, caplog.text))) * 2**20
    assert used <= room
    if layers:
        assert used == pytest.approx(device_bytes(file, asked, layers), rel=0.1)


def test_what_does_not_fit_stays_on_the_processor(
    gguf: Path, device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = read_model(gguf)
    asked = with_defaults(file, RunnerSettings(slots=4, context=512, device=device))
    whole = device_bytes(file, asked, file.layers + 1)
    found = backend("llamacpp").devices()
    nearly_full = tuple(replace(one, memory_free=whole, memory_total=whole) for one in found)
    monkeypatch.setattr(context, "devices", lambda: nearly_full)
    with Engine.load(gguf, asked) as engine:
        layers = engine.stats().gpu_layers
        assert layers < file.layers
        assert engine.generate([engine.encode("Once")], GREEDY)[0].text
    assert f"{layers} of {file.layers} layers go to {device}" in caplog.text


def test_all_devices_have_names_of_their_own() -> None:
    names = [one.name for one in backend("llamacpp").devices()]
    assert len(set(names)) == len(names)
    assert all(
        one.memory_free is None or one.memory_free > 0 for one in backend("llamacpp").devices()
    )


@pytest.mark.parametrize("name", ["Nothing7", "cpu,cpu", ""])
def test_a_device_that_is_not_there(gguf: Path, name: str) -> None:
    with pytest.raises(ModelError, match="has no device") as raised:
        Engine.load(gguf, RunnerSettings(slots=1, context=64, device=name))
    assert "there is: cpu" in str(raised.value)
