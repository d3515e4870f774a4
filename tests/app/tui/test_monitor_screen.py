"""The monitor screen over a real engine that is crashed, and its lines for any figures."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, RichLog, Sparkline, Static
from textual.widgets._footer import FooterKey

from app.monitor.machine import MachineUse, ProcessUse
from app.monitor.monitor import Event, MonitorSample, TokenRates
from app.tui.app import IngotApp
from app.tui.screens import monitor
from app.tui.screens.monitor import EventLogView, Gauge, MonitorPane, MonitorScreen
from app.tui.widgets.chart import Chart
from runtimes.backend import MemoryEstimate
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
    Percentiles(0.12, 0.31, 0.45, ((0.09, 1), (0.128, 9), (0.181, 4), (0.256, 0), (0.512, 3))),
    Percentiles(0.024, 0.026, 0.031, ((0.0226, 3), (0.032, 14))),
)
GPU = Gpu(0, "NVIDIA H200", 150_000_000_000, 129_000_000_000, "9.0", "999.1", 63.0, 412.0)
NEEDS = MemoryEstimate(4_100_000_000, 900_000_000, 150_000_000, 50_000_000)
SAMPLE = MonitorSample(
    1000.0, MACHINE, ENGINE, 4107, "river-7b · q4_k_m", "llamacpp · 4 threads", NEEDS
)
SAMPLES = [
    dataclasses.replace(
        SAMPLE,
        time=SAMPLE.time - 20 + i,
        machine=dataclasses.replace(MACHINE, cores=(5.0 * i,)),
        engine=dataclasses.replace(ENGINE, steps=ENGINE.steps - 20 + i),
    )
    for i in range(20)
]
SPEEDS = [
    TokenRates(SAMPLE.time - 120 + i, 900.0 if i == 40 else 0.0, 60.0 + i % 5 if i > 40 else 0.0)
    for i in range(120)
]
EVENTS = (
    Event(1, 0.0, logging.INFO, "app.models.planning", "planned: river-7b-q4_k_m.gguf on llamacpp"),
    Event(2, 0.0, logging.WARNING, "runtimes.worker", "the worker process died of SIGSEGV"),
    Event(3, 0.0, logging.INFO, "runtimes.worker", "a new worker process has loaded river-7b"),
    Event(4, 0.0, logging.ERROR, "quantize", "the disk is full"),
)


# The screen


@pytest.fixture
def app(home: Path, gguf_file: Path) -> Iterator[IngotApp]:
    from app.tui.services import Start, open_services

    with open_services(Start(str(gguf_file))) as opened:
        yield IngotApp(opened)


def pane(screen: MonitorScreen, name: str) -> str:
    """The titles and the text of a panel."""
    found = screen.query_one(f"#{name}", MonitorPane)
    texts = [str(one.visual) for one in found.query(Static)]
    return "\n".join([str(found.border_title), str(found.border_subtitle), *texts])


def shown(screen: MonitorScreen) -> list[str]:
    log = screen.query_one(EventLogView)
    return [event.text for event in log._events if log._passes(event)]


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
        await wait_until(lambda: "q8_0" in pane(screen, "engine"))
        assert "cores" in pane(screen, "cpu")
        assert "this app" in pane(screen, "memory")
        await wait_until(lambda: any("not planned" in text for text in shown(screen)))

        # A crash, and the engine that follows it.
        assert host.engine is not None
        pid = host.engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGSEGV)
        await wait_until(lambda: any("died of SIGSEGV" in text for text in shown(screen)))
        await wait_until(lambda: "has died" in pane(screen, "engine"))
        params = SamplingParams(max_tokens=8, ignore_eos=True)
        stream = host.engine.submit(Request(list(range(100, 150)), params))
        await wait_until(lambda: any("a new worker process" in text for text in shown(screen)))
        await wait_until(lambda: str(host.engine.pid) in pane(screen, "engine"))
        stream.result()

        # Caches.
        await wait_until(lambda: " 0 of 1,024" not in pane(screen, "engine"))
        await pilot.press("t")
        await wait_until(lambda: any("free again" in n.message for n in app._notifications))
        await wait_until(lambda: " 0 of 1,024" in pane(screen, "engine"))

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
        assert "Paused" in str(screen.query_one(EventLogView).border_title)
        await wait_until(lambda: not screen._looking)
        last = app.services.monitor.samples()[-1]  # of those that are kept
        limit = time.monotonic() + 0.5
        await wait_until(lambda: time.monotonic() > limit)
        assert app.services.monitor.samples()[-1] is last
        await pilot.press("p")
        await wait_until(lambda: app.services.monitor.samples()[-1] is not last)

        # Nor is it while another screen is shown.
        await pilot.press("f5")
        await wait_until(lambda: app.current_mode == "quantize" and not screen._looking)
        last = app.services.monitor.samples()[-1]
        limit = time.monotonic() + 0.5
        await wait_until(lambda: time.monotonic() > limit)
        assert app.services.monitor.samples()[-1] is last


async def test_trimming_without_a_model_says_so(services: Any) -> None:
    app = IngotApp(services)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_screen(pilot)
        await wait_until(lambda: "No model is loaded" in pane(screen, "engine"))
        await pilot.press("t")
        await wait_until(lambda: any("no model is loaded" in n.message for n in app._notifications))


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_figures_are_whole_at_any_size(services: Any, size: tuple[int, int]) -> None:
    many = tuple(float(i % 100) for i in range(192))
    gpus = dataclasses.replace(MACHINE, gpus=(GPU,))
    app = IngotApp(services)
    async with app.run_test(size=size) as pilot:
        screen = await open_screen(pilot)
        screen.paused = True
        await wait_until(lambda: not screen._looking)
        for machine in (dataclasses.replace(MACHINE, cores=many), gpus, MACHINE):
            sample = dataclasses.replace(SAMPLE, machine=machine)
            screen.show(sample, SAMPLES, SPEEDS, [])
            await pilot.pause()
            for one in screen.query(MonitorPane):
                for text in one.query(Static):
                    lines = str(text.visual).splitlines()
                    assert all(len(line) <= one.content_size.width for line in lines), lines
                    assert text.region.bottom <= one.region.bottom - 1
            if machine is gpus:
                assert "63%, 412 W" in pane(screen, "cpu")
                assert "21 GB of 150 GB" in pane(screen, "cpu")
        assert "4 cores" in pane(screen, "cpu")
        assert "40% · ours 38%" in pane(screen, "cpu")
        assert "none" in pane(screen, "cpu")
        memory = pane(screen, "memory")
        assert "11 GB of 32 GB" in memory
        assert "5.3 GB" in memory
        assert "weights ≈ 4.1 GB KV cache ≈ 900 MB compute, runtime ≈ 200 MB" in " ".join(
            memory.split()
        )
        assert "500 MB of 8.0 GB" in memory
        assert memory.index("engine") < memory.index("this app") < memory.index("quantize")
        engine = " ".join(pane(screen, "engine").split())
        assert "4107" in engine
        assert "queued 2" in engine
        assert "prefill, decode 1, 2 of 4" in engine
        assert "5,120 of 16,384" in engine
        assert "prefix hits 40%, 12 MB" in engine
        assert "decode, 10 s 39.8 tok/s" in engine
        assert "host a step 42 us" in engine
        assert "1,234 steps 1/s" in engine
        latency = pane(screen, "latency")
        assert "120 ms · 310 ms · 450 ms" in latency
        assert "24 ms · 26 ms · 31 ms" in latency
        assert screen.query_one("#ttft-bins", Sparkline).data == [1, 9, 4, 0, 3]
        [memory_gauge, kv_gauge] = screen.query(Gauge)
        assert not memory_gauge.has_class("-near")
        assert kv_gauge.progress == pytest.approx(5120 / 16384)
        full = dataclasses.replace(MACHINE, ram_used=int(0.95 * MACHINE.ram_total))
        several = dataclasses.replace(
            ENGINE, forced_tokens=312, proposed_tokens=26, accepted_tokens=25
        )
        screen.show(dataclasses.replace(SAMPLE, machine=full, engine=several), [], [], [])
        assert memory_gauge.has_class("-full")
        assert "guesses right 25 of 26" in " ".join(pane(screen, "engine").split())
        drafts = dataclasses.replace(several, drafted_tokens=9, accepted_drafts=8)
        screen.show(dataclasses.replace(SAMPLE, machine=full, engine=drafts), [], [], [])
        assert "25 of 26, draft 8 of 9" in " ".join(pane(screen, "engine").split())
        await pilot.pause()
        text = screen.query_one("#engine-text")
        assert text.region.bottom <= screen.query_one("#engine").region.bottom - 1


async def test_keys_of_the_footer_work_by_click(services: Any) -> None:
    app = IngotApp(services)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await open_screen(pilot)

        async def click(does: str) -> None:
            """On a key of the footer, which is made anew when other keys work."""
            await wait_until(lambda: any(k.description == does for k in screen.query(FooterKey)))
            await pilot.pause()
            [key] = [key for key in screen.query(FooterKey) if key.description == does]
            await pilot.click(key)

        await click("Pause")
        await wait_until(lambda: screen.paused)
        await click("Level")
        await wait_until(lambda: screen.query_one(EventLogView).level == 1)
        await click("Trim caches")
        await wait_until(lambda: any("no model is loaded" in n.message for n in app._notifications))
        await click("Filter")
        await wait_until(lambda: isinstance(screen.focused, Input))


async def test_speeds_are_kept_while_another_screen_is_shown(app: IngotApp) -> None:
    monitor_ = app.services.monitor
    async with app.run_test(size=(100, 30)) as pilot:
        await wait_until(lambda: app.services.host.engine is not None, 60)
        engine = app.services.host.engine
        assert engine is not None
        params = SamplingParams(max_tokens=400, ignore_eos=True)
        stream = engine.submit(Request(list(range(100, 150)), params))
        await wait_until(lambda: any(one.decode > 0 for one in monitor_.speeds()))
        stream.cancel()
        screen = await open_screen(pilot)
        chart = screen.query_one("#decode-speed Chart", Chart)
        await wait_until(lambda: chart.series)
        [decode] = chart.series
        assert any(y > 0 for _, y in decode.points)


async def test_an_empty_log_says_what_will_stand_there(services: Any) -> None:
    app = IngotApp(services)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await open_screen(pilot)
        screen.paused = True
        await wait_until(lambda: not screen._looking)
        log, none = screen.query_one(EventLogView), screen.query_one("#events-none")
        log._events.clear()
        screen.show(SAMPLE, SAMPLES, SPEEDS, [])
        await pilot.pause()
        assert none.display
        assert "will stand here" in str(none.render())
        screen.show(SAMPLE, SAMPLES, SPEEDS, EVENTS)
        await pilot.pause()
        assert not none.display


async def test_a_gap_is_drawn_where_nobody_looked_and_jobs_have_their_names(services: Any) -> None:
    app = IngotApp(services)
    job = dataclasses.replace(MACHINE.processes[2], name="app")
    machine = dataclasses.replace(MACHINE, processes=(*MACHINE.processes[:2], job))
    sample = dataclasses.replace(SAMPLE, machine=machine)
    earlier = dataclasses.replace(sample, time=sample.time - 20)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await open_screen(pilot)
        screen.paused = True
        await wait_until(lambda: not screen._looking)
        screen.show(sample, [earlier, sample], [], [])
        everything, _ = screen.query_one("#cpu-chart", Chart).series
        assert [math.isnan(y) for _, y in everything.points] == [False, True, False]
        assert "batch job" in pane(screen, "memory")
        assert "nothing was generated yet" in screen.query_one("#decode-speed Chart", Chart).empty


def test_a_histogram_has_every_value_in_one_bin() -> None:
    values = [0.0004, 0.001, 0.0011, 0.004, 0.0041, 0.3]
    found = Percentiles.of(values)
    assert sum(count for _, count in found.bins) == len(values)
    ends = [end for end, _ in found.bins]
    assert ends[0] == pytest.approx(0.001)
    assert ends[-1] >= 0.3 > ends[-2]
    for end, count in found.bins[1:]:
        assert count == sum(end / 2**0.5 < value <= end * (1 + 1e-9) for value in values)


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize("size", SIZES)
def test_picture(services: Any, snap: Any, size: tuple[int, int]) -> None:
    async def show(pilot: Pilot[Any]) -> None:
        screen = await open_screen(pilot)
        # How a gauge rounds depends on its size before.
        await wait_until(lambda: "No model is loaded" in pane(screen, "engine"))
        screen.paused = True
        await wait_until(lambda: not screen._looking)
        log = screen.query_one(EventLogView)
        log._events.clear()
        log.level = 1
        log.action_clear()
        screen.show(SAMPLE, SAMPLES, SPEEDS, EVENTS)
        await pilot.pause()

    assert snap(IngotApp(services), terminal_size=size, run_before=show)
