"""The monitor's panels: processor, memory, engine and latency, each drawn from a sample."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import ProgressBar, Sparkline, Static

from app.figures import duration
from app.monitor.machine import OURSELVES, MachineUse
from app.monitor.monitor import MonitorSample, TokenRates
from app.tui.keys import told
from app.tui.widgets.chart import Axis, Chart, Series
from quantize.disk import human
from runtimes.engine.metrics import EngineStats, Percentiles

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
Point = tuple[float, float]


class Pane(Vertical):
    """A bordered panel of the monitor."""

    TITLE: ClassVar[str] = ""

    def __init__(self, id: str) -> None:
        super().__init__(id=id, classes="pane")
        self.border_title = self.TITLE

    def write(self, selector: str, *lines: str | Content | Row) -> None:
        """Lines into a Static; of a pair the figure stands at the right end."""
        width = self.content_size.width
        made = [_pair(line, width) if isinstance(line, tuple) else line for line in lines]
        whole = Content("\n").join(Content(one) if isinstance(one, str) else one for one in made)
        self.query_one(selector, Static).update(whole)


class SamplePane(Pane):
    """A panel of what holds now."""

    @abstractmethod
    def show(self, sample: MonitorSample, samples: Sequence[MonitorSample]) -> None:
        """Draw ``sample``, after ``samples``."""


class CpuPane(SamplePane):
    """The last minute of the processor: all of it, and what Ingot takes."""

    TITLE = "CPU"

    def compose(self) -> ComposeResult:
        x = Axis(low=-_LAST_S, high=0.0, time=True)
        yield Chart(x=x, y=Axis("%", low=0.0, high=100.0), id="cpu-chart")
        yield Static(id="cpu-text", markup=False)

    def show(self, sample: MonitorSample, samples: Sequence[MonitorSample]) -> None:
        use, now = sample.machine, sample.time
        self.border_title = f"CPU · {len(use.cores)} cores"
        self.border_subtitle = f"{use.cpu:.0f}% · ours {use.ours:.0f}%"
        recent = [one for one in samples if one.time >= now - _LAST_S]
        everything = _gapped([(one.time - now, one.machine.cpu) for one in recent])
        loads_of = [(o.time - now, min(o.machine.ours, o.machine.cpu)) for o in recent]
        ours = _gapped(loads_of)
        self.query_one(Chart).show(
            [
                Series("others", everything, kind="area", color="$secondary"),
                Series("ours", ours, kind="area", color="$primary"),
            ]
        )
        loads = "".join(_CORES[min(int(load / 100 * 8), 7)] for load in use.cores)
        lines: list[str | Row] = [("each core", loads[: max(self.content_size.width - 12, 8)])]
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


class MemoryPane(SamplePane):
    """Memory and who holds it."""

    TITLE = "Memory"

    def compose(self) -> ComposeResult:
        yield Gauge(id="memory-gauge")
        yield Static(id="memory-text", markup=False)

    def show(self, sample: MonitorSample, samples: Sequence[MonitorSample]) -> None:
        use = sample.machine
        self.border_subtitle = f"{human(use.ram_used)} of {human(use.ram_total)}"
        self.query_one(Gauge).show(use.ram_used / use.ram_total)
        swap = f"{human(use.swap_used)} of {human(use.swap_total)}" if use.swap_total else "none"
        lines: list[str | Row] = [("ours", human(use.rss)), ("swap", swap)]
        if needs := sample.needs:
            lines.append(("weights", f"≈ {human(needs.weights)}"))
            lines.append(("KV cache", f"≈ {human(needs.kv)}"))
            lines.append(("compute, runtime", f"≈ {human(needs.compute + needs.overhead)}"))
        self.write("#memory-text", *lines, "", *_processes(use))


class EnginePane(SamplePane):
    """What the engine has to do, its KV cache, and what its steps cost."""

    TITLE = "Engine"

    def compose(self) -> ComposeResult:
        yield Static(id="engine-load", markup=False)
        yield Gauge(id="kv-gauge")
        yield Static(id="engine-text", markup=False)

    def show(self, sample: MonitorSample, samples: Sequence[MonitorSample]) -> None:
        stats = sample.engine
        self.query_one(Gauge).display = stats is not None
        if stats is None:
            self.border_title, self.border_subtitle = self.TITLE, ""
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


class LatencyPane(SamplePane):
    """How long the last requests waited for their tokens."""

    TITLE = "Latency"

    def compose(self) -> ComposeResult:
        for name in ("ttft", "tpot"):
            yield Static(id=f"{name}-text", markup=False)
            yield Sparkline([], summary_function=sum, id=f"{name}-bins")
            yield Static(id=f"{name}-ends", markup=False)

    def show(self, sample: MonitorSample, samples: Sequence[MonitorSample]) -> None:
        stats = sample.engine
        completions = stats.completions if stats else 0
        self.border_subtitle = f"last {min(completions, 1000):,} answers" if completions else ""
        self._show("ttft", "TTFT", stats.ttft_s if stats else Percentiles())
        self._show("tpot", "TPOT", stats.tpot_s if stats else Percentiles())

    def _show(self, name: str, title: str, found: Percentiles) -> None:
        spark, ends = self.query_one(f"#{name}-bins", Sparkline), self.query_one(f"#{name}-ends")
        spark.display = ends.display = bool(found.bins)
        values = [value for value in (found.p50, found.p90, found.p99) if value is not None]
        if not found.bins:
            self.write(f"#{name}-text", (title, "nothing yet"), "")
            return
        self.write(
            f"#{name}-text",
            (title, "p50 · p90 · p99"),
            ("", " · ".join(duration(value) for value in values)),
        )
        spark.data = [float(count) for _, count in found.bins]
        first, last = found.bins[0][0] / 2**0.5, found.bins[-1][0]
        self.write(f"#{name}-ends", (duration(first), duration(last)))


class SpeedPane(Pane):
    """Decode or prefill over five minutes, whether the monitor was shown or not. Each has a scale
    of its own: prefill is many times faster."""

    def __init__(self, kind: Literal["decode", "prefill"]) -> None:
        super().__init__(f"{kind}-speed")
        self.kind = kind
        self.border_title = f"{kind} tok/s"

    def compose(self) -> ComposeResult:
        x, y = Axis(low=-_SPEEDS_S, high=0.0, time=True), Axis(low=0.0)
        yield Chart(x=x, y=y, empty="nothing was generated yet")

    def draw(self, speeds: Sequence[TokenRates], now: float) -> None:
        """``speeds`` until ``now``."""
        recent = [one for one in speeds if one.time >= now - _SPEEDS_S]
        points = [(one.time - now, getattr(one, self.kind)) for one in recent]
        self.border_subtitle = f"{points[-1][1]:,.0f} now" if points else ""
        color = "$primary" if self.kind == "decode" else "$secondary"
        self.query_one(Chart).show([Series(self.kind, _gapped(points), "area", color)])


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
    """What it is at the left, its figure at the right; of what is too long the name is cut."""
    name, figure = row
    room = max(width - len(figure) - 1, 0)
    shown = name if len(name) <= room else f"{name[: max(room - 1, 0)]}…"
    return Content.assemble((f"{shown:<{room}} ", "$text-muted"), figure[:width])


def _gapped(points: Sequence[Point]) -> list[Point]:
    """With a gap wherever nobody looked for a while."""
    found: list[Point] = []
    for at, value in points:
        if found and at - found[-1][0] > _GAP_S:
            found.append((at - _GAP_S / 2, float("nan")))
        found.append((at, value))
    return found


def _processes(use: MachineUse) -> list[Row]:
    """The busiest first."""
    ordered = sorted(use.processes, key=lambda p: (-p.cpu, p.pid))
    return [(_NAMES.get(p.name, p.name), f"{p.cpu:>4.0f}% {human(p.rss):>7}") for p in ordered]


def _several_a_step(stats: EngineStats) -> Row | None:
    """What came of guesses, or of tokens that constraints forced; None where there were none."""
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
