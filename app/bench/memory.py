"""The memory estimate against what a process really takes, setting by setting."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from app.bench.harness import BenchOptions, BenchResult
from app.figures import aligned
from runtimes.backend import MemoryEstimate
from runtimes.errors import RequestError
from runtimes.machine.linechild import LineChild
from runtimes.models.memory import estimate
from runtimes.models.registry import backend_of, read_model
from runtimes.settings import RunnerSettings

_MIB = 2**20

# What is compared unless asked otherwise: one short slot, few long ones, many of a usual length.
SETTINGS = (
    RunnerSettings(slots=1, context=512, gpu_layers=0),
    RunnerSettings(slots=4, context=4096, gpu_layers=0),
    RunnerSettings(slots=16, context=1024, gpu_layers=0),
    RunnerSettings(slots=4, context=512, gpu_layers=0, unified_kv=True),
    RunnerSettings(slots=4, context=4096, gpu_layers=0, flash_attention="off"),
    RunnerSettings(slots=16, context=1024, gpu_layers=0, kv_type="q8_0"),
    RunnerSettings(slots=16, context=1024, gpu_layers=0, kv_type="q4_0"),
)
# Of the settings, for programs.
_TOLD = ("slots", "context", "batch", "kv_type", "unified_kv", "flash_attention")
_HEAD = ("file", "slots x context", "kv", "weights", "kv", "compute", "other", "total")


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One file at one setting, bytes. ``resident`` also has pages that steps no longer read."""

    settings: RunnerSettings
    estimate: MemoryEstimate
    measured: int
    resident: int

    @property
    def error(self) -> float:
        """How far the estimate is off, as a part of what was measured; above 0 when too high."""
        return self.estimate.total / self.measured - 1


def memory(path: Path, _options: BenchOptions) -> BenchResult:
    """One file at several settings, as ``memory_check``; the table is in MiB."""
    figures = []
    lines = [[*_HEAD, "measured", "off by", "resident"]]
    for row in memory_check(path):
        asked, parts = row.settings, row.estimate
        figures.append(
            {
                "file": path.name,
                **{name: getattr(asked, name) for name in _TOLD},
                "estimate": parts.to_json(),
                "measured": row.measured,
                "resident": row.resident,
                "error": row.error,
            }
        )
        sizes = (parts.weights, parts.kv, parts.compute, parts.overhead, parts.total, row.measured)
        words = [path.name, f"{asked.slots} x {asked.context}"]
        unified = " unified" if asked.unified_kv else ""
        scores = " with scores" if asked.flash_attention == "off" else ""
        words.append(asked.kv_type + unified + scores)
        numbers = [f"{size / _MIB:,.1f}" for size in (*sizes, row.resident)]
        lines.append([*words, *numbers[:-1], f"{row.error:+.1%}", numbers[-1]])
    return BenchResult({"settings": figures}, aligned(lines, left=3))


def memory_check(
    path: Path, settings: Sequence[RunnerSettings] = SETTINGS, *, timeout_s: float = 600
) -> list[MemoryRow]:
    """Load the file at each setting, fill it, and compare; a process for each.

    Settings that do not matter to an ONNX graph (type and layout of the cache, kernel of attention)
    are left out for one.
    Raises RequestError on systems without /proc, IngotError when a process fails.
    """
    if not Path("/proc/self/smaps").exists():
        raise RequestError("memory is measured through /proc, which this system lacks")
    model = read_model(path)
    rows = []
    for asked in settings:
        usual = replace(asked, kv_type="f16", unified_kv=False, flash_attention="auto")
        if "kv_type" not in backend_of(model).knows and asked != usual:
            continue
        words = (path, json.dumps(asdict(asked)))
        with LineChild("runtimes.planner.memory_child", *words, name=f"measuring {path}") as child:
            found = child.answer(timeout_s)
        rows.append(MemoryRow(asked, estimate(model, asked), found["used"], found["resident"]))
    return rows
