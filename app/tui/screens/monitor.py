"""What is going on: the machine, the engine, and what they report."""

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Horizontal, VerticalScroll

from app.monitor.monitor import Event, MonitorSample, TokenRates
from app.tui.app import services_of
from app.tui.widgets.event_log import EventLogView
from app.tui.widgets.frame import ModeScreen
from app.tui.widgets.monitor_panes import (
    CpuPane,
    EnginePane,
    LatencyPane,
    MemoryPane,
    Pane,
    SamplePane,
    SpeedPane,
)
from quantize.disk import human
from runtimes.errors import IngotError

_PERIOD_S = 1.0


class MonitorScreen(ModeScreen):
    """Looks once a second while it is shown."""

    MODE = "monitor"
    CSS_PATH = "monitor.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-two"), (112, "-four")]  # noqa: RUF012  (as Textual has it)
    HELP = """
    **CPU** and **Memory**: the machine, and what Ingot's processes take of it. With a ≈ stands
    what the loaded file was expected to need.

    **Engine**: requests that wait (queued), in prefill, or in decode; the tokens in the slots' KV
    cache; how much of the prompts was found cached, and what is kept beside the slots; and what a
    step costs outside the native library.

    **Latency**: the time to the first token (TTFT) and to each next one (TPOT) of the last answers,
    at the median and the 90th and 99th percentile, and as a histogram from the least to the most.

    **decode** and **prefill tok/s**: the last five minutes of the engine, also of the time in which
    another screen was shown. A batch job or a quantization has its own process, whose processor
    and memory are in the first two panels; its speeds are on its own screen.

    **Events**: which file was chosen and why, when the engine's process died and was started
    again, safer settings that follow, builds, warnings. **[monitor.filter /]** filters by words,
    **[monitor.level l]** by level.
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "Pause", id="monitor.pause"),
        Binding("t", "trim", "Trim caches", id="monitor.trim"),
        Binding("l", "level", "Level", id="monitor.level"),
        Binding("slash", "filter", "Filter", id="monitor.filter"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._looking = False
        self.paused = False

    def contents(self) -> ComposeResult:
        with VerticalScroll(id="monitor"):
            with Grid(id="panes-now"):
                yield CpuPane("cpu")
                yield MemoryPane("memory")
                yield EnginePane("engine")
                yield LatencyPane("latency")
            with Horizontal(id="speeds"):
                yield SpeedPane("decode")
                yield SpeedPane("prefill")
            yield EventLogView(id="events")

    def on_mount(self) -> None:
        self.set_interval(_PERIOD_S, self._tick)
        self.query_one("#monitor").focus()

    def on_screen_resume(self) -> None:
        self._tick()

    def _tick(self) -> None:
        if self.is_current and not self.paused and not self._looking:
            self._looking = True
            self._look()

    @work(exit_on_error=False, group="sample")
    async def _look(self) -> None:
        """In a thread: the engine may take a moment to answer."""
        monitor = services_of(self).monitor
        try:
            sample = await asyncio.to_thread(monitor.sample)
        finally:
            self._looking = False
        log = self.query_one(EventLogView)
        if not self.paused:
            self.show(sample, monitor.samples(), monitor.speeds(), monitor.events(log.last))

    def show(
        self,
        sample: MonitorSample,
        samples: Sequence[MonitorSample],
        speeds: Sequence[TokenRates],
        more: Sequence[Event],
    ) -> None:
        """Draw ``sample``, the histories, and events that are not shown yet."""
        for pane in self.query(Pane):
            if isinstance(pane, SamplePane):
                pane.show(sample, samples)
            elif isinstance(pane, SpeedPane):
                pane.draw(speeds, sample.time)
        self.query_one(EventLogView).add(more)

    def action_pause(self) -> None:
        self.paused = not self.paused
        self.query_one(EventLogView).title = "Paused" if self.paused else ""
        self._tick()

    def action_level(self) -> None:
        self.query_one(EventLogView).next_level()

    def action_filter(self) -> None:
        self.query_one(EventLogView).focus_filter()

    @work(exit_on_error=False, exclusive=True, group="trim")
    async def action_trim(self) -> None:
        try:
            freed = await asyncio.to_thread(services_of(self).monitor.trim)
        except IngotError as error:
            self.notify(str(error), severity="warning", markup=False)
            return
        self.notify(f"{human(freed)} of keys and values are free again.", title="Caches trimmed")
        self._tick()
