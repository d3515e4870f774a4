"""The monitor screen over a real engine that is crashed, and its lines for any figures."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, RichLog, Static

from app.monitor.machine import MachineUse, ProcessUse
from app.monitor.monitor import Event, Sample
from app.tui.app import IngotApp
from app.tui.screens import monitor
from app.tui.screens.monitor import MonitorScreen
from app.tui.widgets.event_log import EventLogView
from app.tui.widgets.gauge import gauge, history
from app.tui.widgets.monitor_text import engine_lines, machine_lines
from runtimes.engine.metrics import EngineStats, Percentiles
from runtimes.machine.gpus import Gpu
from runtimes.request import Request, SamplingParams
from tests.app.tui.conftest import SIZES
from tests.support import wait_until

MACHINE = MachineUse(
    cores=(97.0, 52.0, 12.5, 0.0),
    ram_used=11_200_000_000,
    ram_total=32_000_000_000,
    swap_used=500_000_000,
    swap_total=8_000_000_000,
    processes=(
        ProcessUse(4100, "this program", 6.0, 71_000_000),
        ProcessUse(4107, "runtimes.worker.child", 148.0, 5_230_000_000),
        ProcessUse(4119, "quantize", 0.0, 48_000_000),
    ),
    gpus=(),
    no_gpu="nvidia-ml-py is not installed",
)
ENGINE = EngineStats(
    *(4, 4096, 2, 3, 1, 2, 1234, 5000, 1200, 2100, 2050, 4.2, 52.0),
    *(118.4, 41.6, 96.2, 39.8, 42.0, 5120, 16384, 12_300_000, 0.4, 0, 17, None),
    Percentiles(0.12, 0.31, 0.45),
    Percentiles(0.024, 0.026, 0.031),
)
GPU = Gpu(0, "NVIDIA H200", 150_000_000_000, 129_000_000_000, "9.0", "999.1", 63.0, 412.0)
SAMPLE = Sample(1000.0, MACHINE, ENGINE, 4107, "river-7b · q4_k_m", "llamacpp · 4 threads")
SAMPLES = [
    dataclasses.replace(
        SAMPLE,
        machine=dataclasses.replace(MACHINE, cores=(5.0 * i,)),
        engine=dataclasses.replace(ENGINE, decode_tps_now=float(i % 7)),
    )
    for i in range(20)
]
EVENTS = (
    Event(1, 0.0, logging.INFO, "app.models.planning", "planned: river-7b-q4_k_m.gguf on llamacpp"),
    Event(2, 0.0, logging.WARNING, "runtimes.worker", "the worker process died of SIGSEGV"),
    Event(3, 0.0, logging.INFO, "runtimes.worker", "a new worker process has loaded river-7b"),
    Event(4, 0.0, logging.ERROR, "quantize", "the disk is full"),
)


# Lines


def test_gauges_and_histories_have_their_width() -> None:
    assert gauge(0, 6) == "[    ]"
    assert gauge(0.5, 6) == "[██  ]"
    assert gauge(0.53, 6) == "[██▏ ]"
    assert gauge(7, 6) == "[████]"
    assert gauge(None, 6) == "[    ]"
    assert history([0, 50, 100], 5, 100) == "  ▁▅█"
    assert history([1, 2, 4], 2) == "▅█"
    assert history([], 3) == "   "
    assert history([0, 0], 2) == "▁▁"


@pytest.mark.parametrize("width", [38, 58, 98])
def test_all_lines_fit_and_nothing_that_counts_is_cut_off(width: int) -> None:
    gpus = dataclasses.replace(SAMPLE, machine=dataclasses.replace(MACHINE, gpus=(GPU,)))
    many = dataclasses.replace(MACHINE, cores=tuple(float(i % 100) for i in range(192)))
    for sample in (SAMPLE, gpus, dataclasses.replace(SAMPLE, machine=many)):
        lines = machine_lines(sample, SAMPLES, width) + engine_lines(sample, SAMPLES, width)
        assert all(len(line) <= width for line in lines)
    text = "\n".join(machine_lines(gpus, SAMPLES, width))
    assert "40%, ours 38%" in text
    assert "11 GB of 32 GB" in text
    assert "ours 5.3 GB, swap 500 MB used" in text
    assert "63%, 412 W" in text
    assert "21 GB of 150 GB, NVIDIA H200" in text
    assert text.index("engine") < text.index("this program") < text.index("quantize")
    engine = "\n".join(engine_lines(SAMPLE, SAMPLES, width))
    assert "queued 2 prefill 1 decode 2 slots 4" in engine
    assert "5,120 of 16,384" in engine
    assert "decode  41.6 tok/s, 10 s: 39.8" in engine
    assert "prefill 118.4 tok/s, 10 s: 96.2" in engine
    assert "40% of prompts, 12 MB kept" in engine
    assert "120 ms   310 ms   450 ms" in engine
    assert "24 ms    26 ms    31 ms" in engine
    assert "42 us a step, 1,234 steps" in engine


def test_what_is_missing_is_said() -> None:
    none = dataclasses.replace(SAMPLE, engine=None, engine_pid=None, label="", details="")
    assert engine_lines(none, [], 38)[0] == "No model is loaded."
    dead = engine_lines(dataclasses.replace(SAMPLE, engine_pid=None), [], 58)
    assert "no process: it has died" in dead[1]
    text = " ".join("\n".join(machine_lines(SAMPLE, [], 38)).split())
    assert "none: nvidia-ml-py is not installed" in text


# The screen


@pytest.fixture
def app(home: Path, gguf_file: Path) -> Iterator[IngotApp]:
    from app.tui.services import Start, open_services

    with open_services(Start(str(gguf_file))) as opened:
        yield IngotApp(opened)


def lines_of(screen: MonitorScreen, selector: str) -> str:
    return str(screen.query_one(selector, Static).render())


def shown(screen: MonitorScreen) -> list[str]:
    return [event.text for event in screen.query_one(EventLogView).shown]


async def open_screen(pilot: Pilot[Any]) -> MonitorScreen:
    await pilot.press("f6")
    await wait_until(lambda: isinstance(pilot.app.screen, MonitorScreen))
    screen = pilot.app.screen
    assert isinstance(screen, MonitorScreen)
    return screen


async def test_figures_crash_trim_pause_and_filter(
    app: IngotApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "_PERIOD_S", 0.2)
    host = app.services.host
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_until(lambda: host.engine is not None, 60)
        screen = await open_screen(pilot)
        await wait_until(lambda: "q8_0" in lines_of(screen, "#engine"))
        assert "CPU" in lines_of(screen, "#machine")
        assert "this program" in lines_of(screen, "#machine")
        await wait_until(lambda: any("not planned" in text for text in shown(screen)))

        # A crash, and the engine that follows it.
        assert host.engine is not None
        pid = host.engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGSEGV)
        await wait_until(lambda: any("died of SIGSEGV" in text for text in shown(screen)))
        await wait_until(lambda: "no process" in lines_of(screen, "#engine"))
        params = SamplingParams(max_tokens=8, ignore_eos=True)
        stream = host.engine.submit(Request(list(range(100, 150)), params))
        await wait_until(lambda: any("a new worker process" in text for text in shown(screen)))
        await wait_until(lambda: f"process {host.engine.pid}" in lines_of(screen, "#engine"))
        stream.result()

        # Caches.
        await wait_until(lambda: " 0 of 1,024" not in lines_of(screen, "#engine"))
        await pilot.press("t")
        await wait_until(lambda: any("free again" in n.message for n in app._notifications))
        await wait_until(lambda: " 0 of 1,024" in lines_of(screen, "#engine"))

        # Levels and words.
        everything = len(shown(screen))
        await pilot.press("l")
        assert all("died" in text for text in shown(screen))
        await pilot.press("l", "l")
        assert len(shown(screen)) >= everything  # others may have come
        await pilot.press("slash", *"new worker")
        await wait_until(lambda: len(shown(screen)) == 1)
        await pilot.press("enter")
        assert isinstance(screen.focused, RichLog)
        await pilot.press("escape")
        assert len(shown(screen)) >= everything  # others may have come
        assert screen.query_one("#events-words", Input).value == ""

        # Standing still: nothing new is looked at.
        await pilot.press("p")
        assert "Paused" in lines_of(screen, "#events-level")
        await wait_until(lambda: not screen._looking)
        count = len(app.services.monitor.samples())
        limit = time.monotonic() + 0.5
        await wait_until(lambda: time.monotonic() > limit)
        assert len(app.services.monitor.samples()) == count
        await pilot.press("p")
        await wait_until(lambda: len(app.services.monitor.samples()) > count)

        # Nor is it while another screen is shown.
        await pilot.press("f5")
        await wait_until(lambda: app.current_mode == "quantize" and not screen._looking)
        count = len(app.services.monitor.samples())
        limit = time.monotonic() + 0.5
        await wait_until(lambda: time.monotonic() > limit)
        assert len(app.services.monitor.samples()) == count


async def test_trimming_without_a_model_says_so(services: Any) -> None:
    app = IngotApp(services)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_screen(pilot)
        await wait_until(lambda: "No model is loaded" in lines_of(screen, "#engine"))
        await pilot.press("t")
        await wait_until(lambda: any("no model is loaded" in n.message for n in app._notifications))


@pytest.mark.parametrize("size", SIZES)
def test_picture(
    services: Any, snap: Any, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()

    async def show(pilot: Pilot[Any]) -> None:
        screen = await open_screen(pilot)
        screen.paused = True
        await wait_until(lambda: not screen._looking)
        log = screen.query_one(EventLogView)
        log._events.clear()
        log.next_level()
        log.action_clear()
        screen.show(SAMPLE, SAMPLES, EVENTS)
        await pilot.pause()

    assert snap(IngotApp(services), terminal_size=size, run_before=show)
