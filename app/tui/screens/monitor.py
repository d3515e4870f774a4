"""The monitor: panels of the machine and the engine, drawn from samples, and the log of events; and
the panel of the last sweep, speed by the number of rows, for each file."""

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Grid, Horizontal, VerticalScroll
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Input, ProgressBar, RichLog, Sparkline, Static

from app.figures import duration
from app.monitor.monitor import OURSELVES, Event, MachineUse, MonitorSample, TokenRates
from app.sweeps import OURS, Sweep, about, by_side, groups, last, named, verdicts
from app.tui.app import services_of
from app.tui.keys import bind, told
from app.tui.screens.dialogs import Panel
from app.tui.textual_patches import Pane, Plain, background, latest
from app.tui.widgets.chart import Axis, Chart, Series
from app.tui.widgets.frame import ModeScreen
from app.tui.widgets.prompt import SearchLine
from quantize.disk import human
from runtimes.engine.metrics import EngineStats, Percentiles
from runtimes.errors import IngotError

# Of files, in their order; further ones begin again.
_LOOKS = tuple(
    zip(
        ("$primary", "$secondary", "$success", "$warning", "$accent", "$error"),
        "●■▲◆▼★",
        strict=True,
    )
)
_SIDE_BY_SIDE = 3  # charts; more would be too narrow
NONE = "Nothing has been measured yet: `ingot bench MODEL --sweep` does it, in a shell."


class SweepScreen(Panel[None]):
    """A chart for each length of prompt and answer."""

    HEADING = "Many rows at once"

    def __init__(self, found: tuple[Sweep, float] | None) -> None:
        """``found`` is None without a sweep; else it and when it was finished, in seconds."""
        super().__init__()
        self._found = found

    def contents(self) -> ComposeResult:
        if self._found is None:
            yield Plain(NONE)
            return
        sweep, finished = self._found
        with Horizontal(id="sweep-charts"):
            for prompt, answer in list(groups(sweep))[:_SIDE_BY_SIDE]:
                chart = Chart(x=Axis("rows", log=True), y=Axis("tok/s", low=0.0))
                chart.border_title = f"{prompt:,} + {answer:,} tokens"
                yield chart
        said = verdicts(sweep)
        if (more := len(groups(sweep)) - _SIDE_BY_SIDE) > 0:
            said.append(f"charts of {more} more lengths are on the page that --output writes")
        with VerticalScroll(id="sweep-verdicts"):
            yield Plain("\n".join(said))
        when = datetime.fromtimestamp(finished).strftime("%d %B %Y, %H:%M")
        yield Plain(f"{about(sweep)} Measured on {when}.", id="sweep-about")

    def on_mount(self) -> None:
        if self._found is not None:
            for chart, files in zip(
                self.query(Chart), groups(self._found[0]).values(), strict=False
            ):
                series: list[Series] = []
                for key, measured in files.items():
                    rows = sorted(by_side(measured)[OURS].items())
                    points = [(float(count), one.tps) for count, one in rows]
                    color, marker = _LOOKS[len(series) % len(_LOOKS)]
                    series.append(Series(named(*key), points, "marked", color, marker))
                chart.show(series)


LEVELS = (
    (logging.DEBUG, "everything"),
    (logging.WARNING, "warnings and errors"),
    (logging.ERROR, "errors"),
)


_NONE = (
    "Nothing was reported yet. Which file was chosen and why, fallbacks, an engine that died and"
    " was started again, warnings and errors will stand here."
)


class EventLogView(Pane):
    """A filter line and the events. ``add`` takes events that are newer than all before."""

    BINDINGS = [
        bind("escape", "events.clear", "Clear the filter", show=False),
    ]
    level: reactive[int] = reactive(0, init=False)
    title: reactive[str] = reactive("", init=False)  # what stands before everything else

    def __init__(self) -> None:
        super().__init__(id="events")
        self._events: list[Event] = []
        self._words = SearchLine(placeholder="words to filter by", id="events-words")
        # The log keeps less than the monitor does; nobody scrolls through more.
        self._log = RichLog(
            id="events-lines", wrap=True, markup=False, max_lines=2000, min_width=20
        )

    def compose(self) -> ComposeResult:
        yield Horizontal(self._words, id="events-filter")
        yield Static(_NONE, id="events-none")
        yield self._log

    @property
    def last(self) -> int:
        """The number of the newest event; 0 without any."""
        return self._events[-1].number if self._events else 0

    def add(self, more: Sequence[Event]) -> None:
        """Show these too."""
        self.set_class(not self._events and not more, "-none")
        self._events.extend(more)
        self._write(more)

    def action_clear(self) -> None:
        self.level = 0
        self._words.value = ""
        self._log.focus()

    @on(Input.Submitted)
    def _done(self) -> None:
        self._log.focus()

    def watch_title(self) -> None:
        parts = (self.title, "Events", LEVELS[self.level][1])
        self.border_title = " · ".join(filter(None, parts))

    @on(events.Mount)
    @on(events.Resize)
    @on(Input.Changed)
    def watch_level(self) -> None:
        """Write all lines anew: others pass, or they are broken elsewhere."""
        self.watch_title()
        self._log.clear()
        self._write(self._events)

    def _write(self, events: Sequence[Event]) -> None:
        for event in filter(self._passes, events):
            end = self._log.scroll_offset.y >= self._log.max_scroll_y
            text = line(event, self.app.theme_variables)
            self._log.write(text, expand=True, scroll_end=end)

    def _passes(self, event: Event) -> bool:
        text = f"{event.level_name} {event.source} {event.text}".lower()
        words = self._words.value.lower().split()
        return event.level >= LEVELS[self.level][0] and all(word in text for word in words)


def line(event: Event, colors: Mapping[str, str]) -> Text:
    """Time, level, text and where it comes from; warnings and errors are bold and have a color."""
    when = time.strftime("%H:%M:%S", time.localtime(event.time))
    text = f"{when} {event.level_name:<7} {event.text} ({event.source.partition('.')[0]})"
    if event.level < logging.WARNING:
        return Text(text)
    color = colors["text-error" if event.level >= logging.ERROR else "text-warning"]
    # Rich cannot write the colours of a theme that has the terminal's own.
    return Text(text, f"bold {color}" if color.startswith("#") else "bold")


_NAMES = {
    OURSELVES: "this app",
    "runtimes.worker.child": "engine",
    "runtimes.planner.trial_child": "planner",
    "quantize.children": "quantize step",
    "app": "batch job",
    "quantize": "quantize run",
}
_LAST_S = 60.0  # of the processor's graph
_SPEEDS_S = 300.0
_GAP_S = 3.0  # samples are a second apart
_NEAR, _FULL = 0.75, 0.9  # of what has a limit
_CORES = "▁▂▃▄▅▆▇█"

Row = tuple[str, str]  # what it is, and its figure


class MonitorPane(Pane):
    """A panel of what holds now."""

    @abstractmethod
    def show(self, sample: MonitorSample, samples: Sequence[MonitorSample]) -> None:
        """Draw ``sample``, after ``samples``."""

    def write(self, selector: str, *lines: str | Row) -> None:
        """Lines into a Static; of a pair the figure stands at the right end."""
        width = self.content_size.width
        made = (Content(one) if isinstance(one, str) else _pair(one, width) for one in lines)
        self.query_one(selector, Static).update(Content("\n").join(made))


class CpuPane(MonitorPane):
    """The last minute of the processor: all of it, and what Ingot takes."""

    def compose(self) -> ComposeResult:
        x = Axis(low=-_LAST_S, high=0.0, time=True)
        yield Chart(x=x, y=Axis("%", low=0.0, high=100.0), id="cpu-chart")
        yield Plain(id="cpu-text")

    def show(self, sample: MonitorSample, samples: Sequence[MonitorSample]) -> None:
        use = sample.machine
        self.border_title = f"CPU · {len(use.cores)} cores"
        self.border_subtitle = f"{use.cpu:.0f}% · ours {use.ours:.0f}%"
        recent = [(one.time - sample.time, one.machine) for one in samples]
        recent = [(at, machine) for at, machine in recent if at >= -_LAST_S]
        everything = [(at, machine.cpu) for at, machine in recent]
        ours = [(at, min(machine.ours, machine.cpu)) for at, machine in recent]
        self.query_one(Chart).show(
            [_area("others", everything, "$secondary"), _area("ours", ours, "$primary")]
        )
        loads = "".join(_CORES[min(int(load / 100 * 8), 7)] for load in use.cores)
        lines: list[Row] = [("each core", loads[: max(self.content_size.width - 12, 8)])]
        for gpu in use.gpus:
            percent = "use unknown" if gpu.percent is None else f"{gpu.percent:.0f}%"
            watts = "" if gpu.watts is None else f", {gpu.watts:.0f} W"
            lines.append((f"GPU {gpu.index} {gpu.name}", percent + watts))
            held = gpu.memory_total - gpu.memory_free
            lines.append(("memory", f"{human(held)} of {human(gpu.memory_total)}"))
        if not use.gpus:
            lines.append(("GPU", "none"))
            self.tooltip = Content(f"No GPU is used: {use.no_gpu}")
        self.write("#cpu-text", *lines)


class MemoryPane(MonitorPane):
    """Memory and who holds it."""

    def compose(self) -> ComposeResult:
        yield Gauge(id="memory-gauge")
        yield Plain(id="memory-text")

    def show(self, sample: MonitorSample, samples: Sequence[MonitorSample]) -> None:
        use = sample.machine
        self.border_subtitle = f"{human(use.ram_used)} of {human(use.ram_total)}"
        self.query_one(Gauge).show(use.ram_used / use.ram_total)
        swap = f"{human(use.swap_used)} of {human(use.swap_total)}" if use.swap_total else "none"
        lines: list[Row] = [("ours", human(use.rss)), ("swap", swap)]
        if needs := sample.needs:
            lines.append(("weights", f"≈ {human(needs.weights)}"))
            lines.append(("KV cache", f"≈ {human(needs.kv)}"))
            lines.append(("compute, runtime", f"≈ {human(needs.compute + needs.overhead)}"))
        self.write("#memory-text", *lines, "", *_processes(use))


class EnginePane(MonitorPane):
    """The engine's load, its KV cache, and the cost of its steps."""

    def compose(self) -> ComposeResult:
        yield Plain(id="engine-load")
        yield Gauge(id="kv-gauge")
        yield Plain(id="engine-text")

    def show(self, sample: MonitorSample, samples: Sequence[MonitorSample]) -> None:
        stats = sample.engine
        self.query_one(Gauge).display = stats is not None
        if stats is None:
            self.border_title, self.border_subtitle = "Engine", ""
            how = told(self, "No model is loaded. [chat.models ctrl+t] in the chat loads one.")
            self.write("#engine-load", how)
            self.write("#engine-text")
            return
        self.border_title = Content(f"Engine · {sample.label}")
        self.border_subtitle = Content(sample.details)
        self.write(
            "#engine-load",
            ("process", str(sample.engine_pid) if sample.engine_pid else "has died"),
            ("queued", str(stats.queued)),
            ("prefill, decode", f"{stats.prefilling}, {stats.decoding} of {stats.slots}"),
            ("KV cache", f"{stats.kv_tokens:,} of {stats.kv_capacity:,}"),
        )
        self.query_one(Gauge).show(stats.kv_tokens / max(stats.kv_capacity, 1))
        self.write(
            "#engine-text",
            ("prefix hits", f"{stats.prefix_hit_rate:.0%}, {human(stats.prefix_bytes)}"),
            ("decode, 10 s", f"{stats.decode_tps_10s:,.1f} tok/s"),
            ("prefill, 10 s", f"{stats.prefill_tps_10s:,.1f} tok/s"),
            _several_a_step(stats) or ("host a step", f"{stats.host_us_per_step:,.0f} us"),
            (f"{stats.steps:,} steps", _steps_a_second(samples, stats)),
        )


class LatencyPane(MonitorPane):
    """How long the last requests waited for their tokens."""

    def compose(self) -> ComposeResult:
        for name in ("ttft", "tpot"):
            yield Plain(id=f"{name}-text")
            yield Sparkline([], summary_function=sum, id=f"{name}-bins")
            yield Plain(id=f"{name}-ends")

    def show(self, sample: MonitorSample, samples: Sequence[MonitorSample]) -> None:
        stats = sample.engine
        completions = stats.completions if stats else 0
        self.border_subtitle = f"last {min(completions, 1000):,} answers" if completions else ""
        self._show("ttft", stats.ttft_s if stats else Percentiles())
        self._show("tpot", stats.tpot_s if stats else Percentiles())

    def _show(self, name: str, found: Percentiles) -> None:
        spark, ends = self.query_one(f"#{name}-bins", Sparkline), self.query_one(f"#{name}-ends")
        spark.display = ends.display = bool(found.bins)
        if not found.bins:
            self.write(f"#{name}-text", (name.upper(), "nothing yet"), "")
            return
        values = (found.p50, found.p90, found.p99)
        figures = " · ".join(duration(value) for value in values if value is not None)
        self.write(f"#{name}-text", (name.upper(), "p50 · p90 · p99"), ("", figures))
        spark.data = [float(count) for _, count in found.bins]
        first, last = found.bins[0][0] / 2**0.5, found.bins[-1][0]
        self.write(f"#{name}-ends", (duration(first), duration(last)))


class SpeedPane(Pane):
    """Decode or prefill over five minutes, whether the monitor was shown or not. Each has a scale
    of its own: prefill is many times faster."""

    def __init__(self, kind: Literal["decode", "prefill"]) -> None:
        super().__init__(f"{kind} tok/s", id=f"{kind}-speed")
        self.kind = kind

    def compose(self) -> ComposeResult:
        x, y = Axis(low=-_SPEEDS_S, high=0.0, time=True), Axis(low=0.0)
        yield Chart(x=x, y=y, empty="nothing was generated yet")

    def draw(self, speeds: Sequence[TokenRates], now: float) -> None:
        """``speeds`` until ``now``."""
        recent = [one for one in speeds if one.time >= now - _SPEEDS_S]
        points = [(one.time - now, getattr(one, self.kind)) for one in recent]
        self.border_subtitle = f"{points[-1][1]:,.0f} now" if points else ""
        color = "$primary" if self.kind == "decode" else "$secondary"
        self.query_one(Chart).show([_area(self.kind, points, color)])


class Gauge(ProgressBar):
    """How full something is: yellow when it is nearly, red when it is."""

    def __init__(self, id: str) -> None:
        super().__init__(total=1.0, show_eta=False, show_percentage=False, id=id)

    def show(self, share: float) -> None:
        """``share`` is 0 to 1."""
        self.update(progress=min(max(share, 0.0), 1.0))
        self.set_class(_NEAR <= share < _FULL, "-near")
        self.set_class(share >= _FULL, "-full")


def _pair(row: Row, width: int) -> Content:
    """A name at the left, its figure at the right; a name that is too long is cut."""
    name, figure = row
    room = max(width - len(figure) - 1, 0)
    shown = name if len(name) <= room else f"{name[: max(room - 1, 0)]}…"
    return Content.assemble((f"{shown:<{room}} ", "$text-muted"), figure[:width])


def _area(name: str, points: Sequence[tuple[float, float]], color: str) -> Series:
    """With a gap wherever nobody looked for a while."""
    found: list[tuple[float, float]] = []
    for at, value in points:
        if found and at - found[-1][0] > _GAP_S:
            found.append((at - _GAP_S / 2, float("nan")))
        found.append((at, value))
    return Series(name, found, "area", color)


def _processes(use: MachineUse) -> list[Row]:
    """The busiest first."""
    ordered = sorted(use.processes, key=lambda p: (-p.cpu, p.pid))
    return [(_NAMES.get(p.name, p.name), f"{p.cpu:>4.0f}% {human(p.rss):>7}") for p in ordered]


def _several_a_step(stats: EngineStats) -> Row | None:
    """Results of guesses, or of tokens that constraints forced; None where there were none."""
    if stats.proposed_tokens:
        right = f"{stats.accepted_tokens:,} of {stats.proposed_tokens:,}"
        if stats.drafted_tokens:
            right += f", draft {stats.accepted_drafts:,} of {stats.drafted_tokens:,}"
        return "guesses right", right
    return ("forced tokens", f"{stats.forced_tokens:,}") if stats.forced_tokens else None


def _steps_a_second(samples: Sequence[MonitorSample], stats: EngineStats) -> str:
    """Over the last ten samples of this engine."""
    known = [one for one in samples[-10:] if one.engine and one.engine.steps <= stats.steps]
    if len(known) < 2 or known[0].engine is None:
        return ""
    seconds = max(known[-1].time - known[0].time, 1e-3)
    return f"{(stats.steps - known[0].engine.steps) / seconds:,.0f}/s"


_PERIOD_S = 1.0


class MonitorScreen(ModeScreen):
    """Looks once a second while it is shown."""

    MODE = "monitor"
    CSS_PATH = "monitor.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-two"), (112, "-four")]
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

    **[monitor.sweep b]** shows how much faster many rows at once are than one after another, as
    `ingot bench --sweep` has measured it last.
    """
    BINDINGS = [
        bind("p", "monitor.pause", "Pause"),
        bind("t", "monitor.trim", "Trim caches"),
        bind("l", "monitor.level", "Level"),
        bind("slash", "monitor.filter", "Filter"),
        bind("b", "monitor.sweep", "Many rows"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._log = EventLogView()
        self._panes = (
            CpuPane("CPU", id="cpu"),
            MemoryPane("Memory", id="memory"),
            EnginePane("Engine", id="engine"),
            LatencyPane("Latency", id="latency"),
        )
        self._speeds = (SpeedPane("decode"), SpeedPane("prefill"))
        self._looking = False
        self.paused = False

    def contents(self) -> ComposeResult:
        with VerticalScroll(id="monitor"):
            yield Grid(*self._panes, id="panes-now")
            yield Horizontal(*self._speeds, id="speeds")
            yield self._log

    def on_mount(self) -> None:
        self.set_interval(_PERIOD_S, self._tick)
        self.query_one("#monitor").focus()

    def on_screen_resume(self) -> None:
        self._tick()

    def _tick(self) -> None:
        if self.is_current and not self.paused and not self._looking:
            self._looking = True
            self._look()

    @background
    async def _look(self) -> None:
        """In a thread: the engine may take a moment to answer."""
        monitor = services_of(self).monitor
        try:
            sample = await asyncio.to_thread(monitor.sample)
        finally:
            self._looking = False
        if not self.paused:
            more = monitor.events(self._log.last)
            self.show(sample, monitor.samples(), monitor.speeds(), more)

    def show(
        self,
        sample: MonitorSample,
        samples: Sequence[MonitorSample],
        speeds: Sequence[TokenRates],
        more: Sequence[Event],
    ) -> None:
        """Draw ``sample``, the histories, and events that are not shown yet."""
        for pane in self._panes:
            pane.show(sample, samples)
        for speed in self._speeds:
            speed.draw(speeds, sample.time)
        self._log.add(more)

    def action_pause(self) -> None:
        self.paused = not self.paused
        self._log.title = "Paused" if self.paused else ""
        self._tick()

    def action_level(self) -> None:
        self._log.level = (self._log.level + 1) % len(LEVELS)

    def action_filter(self) -> None:
        self.query_one("#events-words").focus()

    @background
    async def action_sweep(self) -> None:
        self.app.push_screen(SweepScreen(await asyncio.to_thread(last)))

    @latest
    async def action_trim(self) -> None:
        try:
            freed = await asyncio.to_thread(services_of(self).monitor.trim)
        except IngotError as error:
            self.notify(str(error), severity="warning")
            return
        self.notify(f"{human(freed)} of keys and values are free again.", title="Caches trimmed")
        self._tick()
