"""The monitor screen over a real engine, and its lines for any figures."""

import dataclasses
import logging
import math
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, RichLog, Static
from textual.widgets._footer import FooterKey

from app.monitor.monitor import Event, MachineUse, MonitorSample, ProcessUse, TokenRates
from app.tui.app import IngotApp
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


def pane(screen: MonitorScreen, name: str) -> str:
    """The titles and the text of a panel."""
    found = screen.query_one(f"#{name}", MonitorPane)
    texts = [str(one.visual) for one in found.query(Static)]
    return " ".join(" ".join([str(found.border_title), str(found.border_subtitle), *texts]).split())


def shown(screen: MonitorScreen) -> list[str]:
    log = screen.query_one(EventLogView)
    return [event.text for event in log._events if log._passes(event)]


def told(app: IngotApp, text: str) -> bool:
    return any(text in note.message for note in app._notifications)


async def open_screen(pilot: Pilot[Any]) -> MonitorScreen:
    await pilot.press("f6")
    await wait_until(lambda: isinstance(pilot.app.screen, MonitorScreen))
    screen = pilot.app.screen
    assert isinstance(screen, MonitorScreen)
    return screen


async def standing(pilot: Pilot[Any]) -> MonitorScreen:
    """The screen, which looks no more by itself, without events."""
    screen = await open_screen(pilot)
    # How a gauge rounds depends on its size before.
    await wait_until(lambda: "No model is loaded" in pane(screen, "engine"))
    screen.paused = True
    await wait_until(lambda: not screen._looking)
    screen.query_one(EventLogView)._events.clear()
    return screen


async def test_a_real_engine_is_watched_and_its_caches_are_trimmed(chat_app: IngotApp) -> None:
    app, monitor = chat_app, chat_app.services.monitor
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_until(lambda: app.services.host.engine is not None)
        engine = app.services.host.engine
        assert engine is not None
        params = SamplingParams(max_tokens=400, ignore_eos=True)
        stream = engine.submit(Request(list(range(100, 150)), params))
        await wait_until(lambda: any(one.decode > 0 for one in monitor.speeds()))
        stream.cancel()
        screen = await open_screen(pilot)
        chart = screen.query_one("#decode-speed Chart", Chart)
        await wait_until(lambda: chart.series)  # of the time before it was shown, too
        assert any(y > 0 for _, y in chart.series[0].points)
        await wait_until(lambda: "q8_0" in pane(screen, "engine"))
        assert "this app" in pane(screen, "memory")
        await wait_until(lambda: any("not planned" in text for text in shown(screen)))
        await wait_until(lambda: " 0 of 1,024" not in pane(screen, "engine"))
        await pilot.press("t")
        await wait_until(lambda: told(app, "free again"))
        await wait_until(lambda: " 0 of 1,024" in pane(screen, "engine"))


async def test_it_stands_still_and_filters_by_keys_and_clicks(app: IngotApp) -> None:
    monitor = app.services.monitor
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await open_screen(pilot)
        log = screen.query_one(EventLogView)

        async def click(does: str) -> None:
            """On a key of the footer, which is made anew when other keys work."""
            await wait_until(lambda: any(k.description == does for k in screen.query(FooterKey)))
            await pilot.pause()
            [key] = [key for key in screen.query(FooterKey) if key.description == does]
            await pilot.click(key)

        async def looks() -> bool:
            """Whether it takes a sample when it is time to."""
            await wait_until(lambda: not screen._looking)
            last = monitor.samples()[-1]
            screen._tick()
            await wait_until(lambda: not screen._looking)
            return monitor.samples()[-1] is not last

        assert await looks()
        await pilot.press("f5")
        await wait_until(lambda: app.current_mode == "quantize")
        assert not await looks(), "nobody sees it"
        await pilot.press("f6")
        await click("Pause")
        await wait_until(lambda: screen.paused)
        assert "Paused" in str(log.border_title)
        assert not await looks()
        await click("Trim caches")
        await wait_until(lambda: told(app, "no model is loaded"))

        log._events.clear()
        screen.show(SAMPLE, SAMPLES, SPEEDS, [])
        none = screen.query_one("#events-none")
        await wait_until(lambda: none.display)
        screen.show(SAMPLE, SAMPLES, SPEEDS, EVENTS)
        await wait_until(lambda: not none.display)
        await click("Level")
        assert shown(screen) == [EVENTS[1].text, EVENTS[3].text]
        await pilot.press("l")
        assert shown(screen) == [EVENTS[3].text]
        await pilot.press("l")
        await click("Filter")
        await wait_until(lambda: isinstance(screen.focused, Input))
        await pilot.press(*"new worker")
        await wait_until(lambda: shown(screen) == [EVENTS[2].text])
        await pilot.press("enter")
        assert isinstance(screen.focused, RichLog)
        await pilot.press("escape")
        assert len(shown(screen)) == len(EVENTS)


def laid_out(screen: MonitorScreen) -> bool:
    """Whether the panes have the width of their column."""
    columns = 4 if screen.size.width >= 112 else 2
    width = screen.query_one("#cpu").size.width
    return screen.size.width // columns - 7 <= width <= screen.size.width // columns


async def test_figures_are_whole_at_any_size(app: IngotApp) -> None:
    """The pictures have most figures."""
    many = dataclasses.replace(MACHINE, cores=tuple(float(i % 100) for i in range(192)))
    gpus = dataclasses.replace(MACHINE, gpus=(GPU,))
    full = dataclasses.replace(MACHINE, ram_used=int(0.95 * MACHINE.ram_total))
    guesses = dataclasses.replace(ENGINE, proposed_tokens=26, accepted_tokens=25)
    drafts = dataclasses.replace(guesses, drafted_tokens=9, accepted_drafts=8)
    forced = dataclasses.replace(ENGINE, forced_tokens=312)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await standing(pilot)
        for size in ((80, 24), (120, 40)):
            await pilot.resize_terminal(*size)
            await wait_until(lambda size=size: screen.size == size)
            await wait_until(lambda: laid_out(screen))
            for machine, engine, name, figures in (
                (many, ENGINE, "cpu", "192 cores"),
                (gpus, ENGINE, "cpu", "63%, 412 W memory 21 GB of 150 GB"),
                (full, guesses, "engine", "guesses right 25 of 26"),
                (MACHINE, drafts, "engine", "25 of 26, draft 8 of 9"),
                (MACHINE, forced, "engine", "forced tokens 312"),
                (MACHINE, ENGINE, "engine", "host a step 42 us 1,234 steps 1/s"),
            ):
                sample = dataclasses.replace(SAMPLE, machine=machine, engine=engine)
                screen.show(sample, SAMPLES, SPEEDS, [])
                await pilot.pause()
                assert figures in pane(screen, name)
                gauge = screen.query_one("#memory-gauge", Gauge)
                assert gauge.has_class("-full") is (machine is full)
                for one in screen.query(MonitorPane):
                    for text in one.query(Static):
                        lines = str(text.visual).splitlines()
                        assert all(len(line) <= one.content_size.width for line in lines), lines
                        assert text.region.bottom <= one.region.bottom - 1

        # Jobs have their names, and a gap is drawn where nobody looked.
        job = dataclasses.replace(MACHINE.processes[2], name="app")
        machine = dataclasses.replace(MACHINE, processes=(*MACHINE.processes[:2], job))
        sample = dataclasses.replace(SAMPLE, machine=machine)
        screen.show(sample, [dataclasses.replace(sample, time=sample.time - 20), sample], [], [])
        everything, _ = screen.query_one("#cpu-chart", Chart).series
        assert [math.isnan(y) for _, y in everything.points] == [False, True, False]
        memory = pane(screen, "memory")
        assert memory.index("engine") < memory.index("this app") < memory.index("batch job")


@pytest.mark.usefixtures("utc")
def test_picture(app: IngotApp, snap: Any) -> None:
    async def show(pilot: Pilot[Any]) -> None:
        screen = await standing(pilot)
        log = screen.query_one(EventLogView)
        log.level = 1
        log.action_clear()
        screen.show(SAMPLE, SAMPLES, SPEEDS, EVENTS)

    assert snap(app, terminal_size=SIZES[1], run_before=show)
