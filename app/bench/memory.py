"""The memory estimate against what a process really takes, setting by setting."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.bench.options import BenchOptions, Result
from app.bench.table import aligned
from runtimes.errors import RequestError
from runtimes.machine.linechild import LineChild
from runtimes.models.memory import MemoryEstimate, estimate
from runtimes.models.modelfile import ModelFile
from runtimes.settings import RunnerSettings

_MIB = 2**20

# What is compared unless asked otherwise: one short slot, few long ones, many of a usual length.
SETTINGS = (
    RunnerSettings(slots=1, context=512, gpu_layers=0),
    RunnerSettings(slots=4, context=4096, gpu_layers=0),
    RunnerSettings(slots=16, context=1024, gpu_layers=0),
    RunnerSettings(slots=4, context=512, gpu_layers=0, unified_kv=True),
    RunnerSettings(slots=16, context=1024, gpu_layers=0, kv_type="q8_0"),
    RunnerSettings(slots=16, context=1024, gpu_layers=0, kv_type="q4_0"),
)


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One file at one setting, bytes. ``resident`` also has pages that steps no longer read."""

    file: str
    settings: RunnerSettings
    estimate: MemoryEstimate
    measured: int
    resident: int

    @property
    def error(self) -> float:
        """How far the estimate is off, as a part of what was measured; above 0 when too high."""
        return self.estimate.total / self.measured - 1

    def to_json(self) -> dict[str, Any]:
        """Figures for programs."""
        asked = self.settings
        return {
            "file": self.file,
            "slots": asked.slots,
            "context": asked.context,
            "batch": asked.batch,
            "kv_type": asked.kv_type,
            "unified_kv": asked.unified_kv,
            "estimate": self.estimate.to_json(),
            "measured": self.measured,
            "resident": self.resident,
            "error": round(self.error, 4),
        }


def memory(path: Path, _options: BenchOptions) -> Result:
    """One file at several settings, as ``memory_check``."""
    rows = memory_check(path)
    return Result({"settings": [row.to_json() for row in rows]}, aligned(table(rows), left=3))


def memory_check(
    path: Path, settings: Sequence[RunnerSettings] = SETTINGS, *, timeout_s: float = 600
) -> list[MemoryRow]:
    """Load the file at each setting, fill it, and compare; a process for each.

    Settings that do not matter to an ONNX graph (cache type and layout) are left out for one.
    Raises RequestError on systems without /proc, IngotError when a process fails.
    """
    if not Path("/proc/self/smaps").exists():
        raise RequestError("memory is measured through /proc, which this system lacks")
    model = ModelFile.read(path)
    rows = []
    for asked in settings:
        if "kv_type" not in model.backend.knows and (asked.kv_type != "f16" or asked.unified_kv):
            continue
        found = _measure(path, asked, timeout_s)
        rows.append(
            MemoryRow(
                file=path.name,
                settings=asked,
                estimate=estimate(model, asked),
                measured=found["used"],
                resident=found["resident"],
            )
        )
    return rows


def table(rows: Sequence[MemoryRow]) -> list[list[str]]:
    """Header and lines for people, MiB."""
    head = ["file", "slots x context", "kv", "weights", "kv", "compute", "other", "total"]
    lines = [[*head, "measured", "off by", "resident"]]
    for row in rows:
        asked, parts = row.settings, row.estimate
        layout = " unified" if asked.unified_kv else ""
        sizes = (parts.weights, parts.kv, parts.compute, parts.overhead, parts.total, row.measured)
        lines.append(
            [
                row.file,
                f"{asked.slots} x {asked.context}",
                asked.kv_type + layout,
                *(f"{size / _MIB:,.1f}" for size in sizes),
                f"{row.error:+.1%}",
                f"{row.resident / _MIB:,.1f}",
            ]
        )
    return lines


def _measure(path: Path, settings: RunnerSettings, timeout_s: float) -> dict[str, int]:
    words = (path, json.dumps(asdict(settings)))
    with LineChild("runtimes.planner.memory_child", *words, name=f"measuring {path}") as child:
        found: dict[str, int] = child.answer(timeout_s)
    return found
