"""Which settings follow which death; no process is started here."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from runtimes.backend import Device
from runtimes.engine.metrics import EngineStats, Metrics
from runtimes.machine.installed import find_installed
from runtimes.machine.selftest import _key, ensure
from runtimes.machine.state_file import save_entry
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import read_model
from runtimes.request import Chunk, FinishReason, Request, SamplingParams
from runtimes.settings import RunnerSettings
from runtimes.stream import Stream
from runtimes.worker import recovery as recovery_module
from runtimes.worker.recovery import (
    Cause,
    Death,
    DeathLimit,
    Recovery,
    SettingsLimits,
    forget,
    limit_lines,
)
from runtimes.worker.supervisor import InFlightRequest
from runtimes.worker.wire import Ready
from tests.support import set_clock

ASKED = RunnerSettings(slots=16, context=1024)


@pytest.fixture
def model(gguf: Path) -> ModelFile:
    return read_model(gguf)


def ready(model: ModelFile, recovery: Recovery, *, gpu: bool = False) -> Ready:
    settings = recovery.settings()
    assert settings.context is not None
    counted = Metrics().figures()
    others = dict.fromkeys(EngineStats.__dataclass_fields__.keys() - counted.keys(), 0)
    others |= {"context": settings.context, "slots": settings.slots}
    return Ready(model, model.vocab_size, gpu, EngineStats(**others, **counted))


def recovery(model: ModelFile, asked: RunnerSettings = ASKED) -> Recovery:
    return Recovery(model.path, asked, DeathLimit())


KILLED, CRASHED = Death(Cause.KILLED, "was killed"), Death(Cause.CRASH, "died of SIGSEGV")
SHORT_OF_MEMORY = Death(Cause.MEMORY, "was killed")


def test_memory_costs_the_draft_then_slots_then_context(model):
    asked = replace(ASKED, draft=model.path)
    one = recovery(model, asked)
    seen = []
    while one.died(SHORT_OF_MEMORY, ready(model, one)):
        settings = one.settings()
        assert settings.draft is None
        assert "without a draft" in limit_lines()[0]
        seen.append((settings.slots, settings.context))
    assert seen == [(16, 1024), (8, 1024), (4, 1024), (2, 1024), (1, 1024), (1, 512), (1, 256)]
    # Remembered as a number of tokens: what needs less is not touched.
    small = RunnerSettings(slots=1, context=200)
    assert recovery(model, small).settings() == small
    assert recovery(model).settings().slots == 1
    forget()
    assert recovery(model, asked).settings() == asked
    assert limit_lines() == []


def test_a_crash_on_a_gpu_first_tries_without_it(model):
    one = recovery(model)
    for gpu, layers, buffers in ((True, -1, True), (True, 0, True), (False, 0, False)):
        assert one.died(CRASHED, ready(model, one, gpu=gpu))
        assert (one.settings().gpu_layers, one.settings().extra_buffers) == (layers, buffers)
    assert recovery(model).settings() == one.settings()
    # It was none of that.
    assert not one.died(CRASHED, ready(model, one))
    assert one.settings() == recovery(model).settings() == ASKED


def test_a_crash_while_it_loads_may_be_the_gpus(model, home):
    """Which devices there are is known from the self-test."""
    health, key = ensure(model.runtime), _key(find_installed(model.runtime))
    for devices, layers in (((), -1), ((Device("Vulkan0", "a GPU"),), 0)):
        save_entry("selftest", key, asdict(replace(health, devices=devices)), 1)
        forget()
        one = recovery(model)
        assert all(one.died(CRASHED, None) for _ in range(2))
        assert one.settings().gpu_layers == layers


def test_a_crash_counts_as_repeated_in_the_next_process_too(model):
    crash = Death(Cause.HANG, "was ended")
    for safe in (False, True):
        one = recovery(model)
        one.died(crash, ready(model, one))
        assert one.settings().extra_buffers is not safe


def test_kills_from_outside_change_no_settings(model):
    one = recovery(model)
    assert all(one.died(KILLED, ready(model, one)) for _ in range(20))
    assert one.settings() == ASKED
    # Nobody waits for ever for a model that somebody does not let load.
    assert [one.died(KILLED, None) for _ in range(4)] == [True, True, True, False]
    one.died(CRASHED, ready(model, one))  # it did load once
    assert one.died(KILLED, None)


def test_kills_while_memory_is_scarce_cost_slots_for_a_while(model, monkeypatch):
    one = recovery(model)
    kill = Death(Cause.SCARCE, "was killed")
    one.died(kill, ready(model, one))
    assert one.settings().slots == 8
    assert recovery(model).settings() == ASKED
    crash = Death(Cause.ILLEGAL, "died of SIGILL")
    one.died(crash, ready(model, one))
    assert (one.settings().slots, one.settings().extra_buffers) == (8, False)
    assert recovery(model).settings().slots == 16
    for _ in range(9):
        one.died(kill, ready(model, one))
    assert (one.settings().slots, one.settings().context) == (1, 1024)  # no request is cut short
    # What is remembered stays; the slots that were asked for come back.
    later = time.monotonic() + 1801
    set_clock(monkeypatch, recovery_module, lambda: later)
    one.died(KILLED, ready(model, one))
    assert (one.settings().slots, one.settings().extra_buffers) == (16, False)


def test_a_device_that_was_named_and_is_not_used_is_told(model, caplog):
    one = recovery(model, replace(ASKED, device="Vulkan0"))
    for _ in range(2):
        one.died(CRASHED, ready(model, one, gpu=True))
    caplog.clear()
    assert recovery(model).settings().gpu_layers == 0
    assert caplog.text == ""
    assert recovery(model, replace(ASKED, device="Vulkan0")).settings().device == "cpu"
    assert "without the GPU, because the worker process once died of SIGSEGV" in caplog.text


def test_what_ran_out_of_memory_is_tried_in_full_a_week_later(model, monkeypatch):
    one = recovery(model)
    one.died(Death(Cause.ILLEGAL, "died of SIGILL"), ready(model, one))
    one.died(SHORT_OF_MEMORY, ready(model, one))
    bound = recovery(model).settings()
    assert (bound.slots, bound.extra_buffers) == (8, False)
    later = time.time() + 8 * 24 * 3600
    monkeypatch.setattr("runtimes.worker.recovery.time.time", lambda: later)
    bound = recovery(model).settings()
    assert (bound.slots, bound.extra_buffers) == (16, False)


def test_bounds_leave_other_settings_alone():
    asked = RunnerSettings(slots=3, context=None, threads=2, gpu_layers=7)
    assert SettingsLimits().apply(asked, 2048) == asked
    device = replace(asked, device_sampling=True)
    assert SettingsLimits().apply(device, 2048) == device
    for bounds in (SettingsLimits(gpu=False), SettingsLimits(extra_buffers=False)):
        assert not bounds.apply(device, 2048).device_sampling
    bound = SettingsLimits(kv_tokens=5000).apply(asked, 2048)
    assert (bound.slots, bound.context, bound.threads, bound.gpu_layers) == (2, 2048, 2, 7)
    shared = RunnerSettings(slots=8, context=512, unified_kv=True, kv_tokens=6000)
    assert SettingsLimits(kv_tokens=3000).apply(shared, 2048).kv_tokens == 3000
    assert SettingsLimits(kv_tokens=9000).apply(shared, 2048) == shared


def test_deaths_are_counted_and_forgotten_with_time(model, monkeypatch):
    one = Recovery(model.path, ASKED, DeathLimit(deaths=2, seconds=60))
    one.died(KILLED, ready(model, one))
    assert one.refusal() is None
    one.died(KILLED, ready(model, one))
    assert "died 2 times" in (one.refusal() or "")
    later = time.monotonic() + 61
    set_clock(monkeypatch, recovery_module, lambda: later)
    assert one.refusal() is None


def test_what_has_come_of_a_lost_request_is_kept():
    in_flight = InFlightRequest(Request([1, 2], SamplingParams(n=2)), Stream("x", lambda _: None))
    for chunk in (Chunk("a", (3,)), Chunk("b", (4,), 1), Chunk("c", (5,))):
        in_flight.take(chunk)
    in_flight.give_up(FinishReason.ERROR, "gone", retryable=True)
    done = in_flight.stream.result(0)
    assert (done.text, done.token_ids, done.usage.completion_tokens) == ("ac", (3, 5), 2)
    assert [chunk.text for chunk in in_flight.stream] == ["a", "b", "c"]


def test_a_lost_request_that_was_cancelled_is_not_asked_again():
    in_flight = InFlightRequest(Request([1, 2]), Stream("x", lambda _: None))
    in_flight.cancelled = True
    in_flight.give_up(FinishReason.ERROR, "gone", retryable=True)
    done = in_flight.stream.result(0)
    assert (done.finish_reason, done.error, done.retryable) == (FinishReason.CANCELLED, None, False)
