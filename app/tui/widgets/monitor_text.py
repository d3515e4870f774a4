"""A sample of the monitor in lines for people; the unit stands beside every figure."""

from collections.abc import Sequence
from textwrap import wrap

from app.figures import duration
from app.monitor.monitor import Sample
from app.tui.widgets.gauge import gauge, history
from quantize.disk import human
from runtimes.engine.metrics import Percentiles

_LABEL = 7  # columns of what stands before a figure
_GAUGE = 12
_NAMES = {
    "runtimes.worker.child": "engine",
    "runtimes.planner.trial_child": "planner",
    "quantize.children.child": "quantize step",
}
_SPEEDS = "{:,.1f} tok/s, 10 s: {:,.1f}"
_HISTORY = 20  # samples, which are a second apart


def machine_lines(sample: Sample, samples: Sequence[Sample], width: int) -> list[str]:
    """Processor, memory, GPUs, and our processes, the busiest first; lines of ``width`` at most."""
    use = sample.machine
    loads = [earlier.machine.cpu for earlier in samples]
    room = max(width - _LABEL - 1, 8)
    cores = [use.cores[at : at + room] for at in range(0, len(use.cores), room)]
    swap = f"swap {human(use.swap_used)} used" if use.swap_total else "no swap"
    lines = [
        _row("CPU", use.cpu / 100, f"{use.cpu:.0f}%, ours {use.ours:.0f}%"),
        _text("", f"{history(loads, _HISTORY, 100)} last {_HISTORY} s"),
        *(_text("" if at else "cores", history(p, len(p), 100)) for at, p in enumerate(cores)),
        _row("RAM", use.ram_used / use.ram_total, _of(use.ram_used, use.ram_total)),
        _text("", f"ours {human(use.rss)}, {swap}"),
    ]
    for gpu in use.gpus:
        percent = f"{gpu.percent:.0f}%" if gpu.percent is not None else "use unknown"
        watts = f", {gpu.watts:.0f} W" if gpu.watts is not None else ""
        lines.append(_row(f"GPU {gpu.index}", (gpu.percent or 0) / 100, f"{percent}{watts}"))
        lines.append(
            _text("", f"{_of(gpu.memory_total - gpu.memory_free, gpu.memory_total)}, {gpu.name}")
        )
    if not use.gpus:
        told = wrap(f"none: {use.no_gpu}", room)
        lines += [_text("" if at else "GPU", part) for at, part in enumerate(told)]
    lines += ["", "    pid   CPU  memory  process"]
    lines += [
        f"{p.pid:>7} {p.cpu:>4.0f}% {human(p.rss):>7}  {_NAMES.get(p.name, p.name)}"
        for p in sorted(use.processes, key=lambda p: (-p.cpu, p.pid))
    ]
    return [line[:width] for line in lines]


def engine_lines(sample: Sample, samples: Sequence[Sample], width: int) -> list[str]:
    """What the engine does; a sentence when there is none. Lines of ``width`` at most."""
    stats = sample.engine
    if stats is None:
        return ["No model is loaded.", "The models' list (ctrl+t in the chat) loads one."]
    known = [earlier.engine for earlier in samples if earlier.engine is not None]
    process = f"process {sample.engine_pid}" if sample.engine_pid else "no process: it has died"
    kv = stats.kv_tokens / stats.kv_capacity if stats.kv_capacity else 0.0
    lines = [
        sample.label,
        f"{sample.details} · {process}",
        f"queued {stats.queued} prefill {stats.prefilling} decode {stats.decoding}"
        f" slots {stats.slots}",
        _row("KV", kv, f"{stats.kv_tokens:,} of {stats.kv_capacity:,}"),
        _text(
            "cached", f"{stats.prefix_hit_rate:.0%} of prompts, {human(stats.prefix_bytes)} kept"
        ),
        _text("decode", _SPEEDS.format(stats.decode_tps_now, stats.decode_tps_10s)),
        _text("", history([earlier.decode_tps_now for earlier in known], _HISTORY)),
        _text("prefill", _SPEEDS.format(stats.prefill_tps_now, stats.prefill_tps_10s)),
        _text("", history([earlier.prefill_tps_now for earlier in known], _HISTORY)),
        _text("", "".join(f"{name:<9}" for name in ("p50", "p90", "p99"))),
        _text("first", _percentiles(stats.ttft_s)),
        _text("next", _percentiles(stats.tpot_s)),
        _text("host", f"{stats.host_us_per_step:,.0f} us a step, {stats.steps:,} steps"),
    ]
    return [line[:width] for line in lines]


def _percentiles(found: Percentiles) -> str:
    values = (found.p50, found.p90, found.p99)
    return "".join(f"{duration(v) if v is not None else '-':<9}" for v in values)


def _row(label: str, share: float, text: str) -> str:
    return _text(label, f"{gauge(share, _GAUGE)} {text}")


def _text(label: str, text: str) -> str:
    return f"{label:<{_LABEL}} {text}".rstrip()


def _of(part: int, whole: int) -> str:
    return f"{human(part)} of {human(whole)}"
