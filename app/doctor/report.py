"""Findings of `ingot doctor`: what decides how fast, and whether, models run on this machine; and
whether model files still hold the bytes that were built or pulled."""

import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.models import library
from quantize.manifest import NAME, Finding, compare, findings, load_manifest
from runtimes.backend import Device
from runtimes.errors import ModelError
from runtimes.machine.hardware import Hardware, detect, memory_bandwidth
from runtimes.machine.installed import find_installed, versions
from runtimes.machine.selftest import ATTENTION_DEPTH, Health, ensure
from runtimes.models.registry import MODULES, backend
from runtimes.untrusted import visible
from runtimes.worker.recovery import FORGET, limit_lines

_GIB = 2**30
# Software that a model file goes through: the runtimes, and what quantize makes files with.
_LIBRARIES = (
    "ingot llama-cpp-python onnxruntime onnxruntime-gpu onnxruntime-genai onnxruntime-genai-cuda"
    " numpy tokenizers torch transformers onnx"
).split()


@dataclass(frozen=True, slots=True)
class Report:
    """All of the findings."""

    hardware: Hardware
    bandwidth: float  # bytes per second
    libraries: dict[str, str]
    runtimes: tuple[Health, ...]
    problems: tuple[str, ...]  # a line each
    bounds: tuple[str, ...] = ()  # a line for each model that a crash has given safer settings

    @property
    def usable(self) -> bool:
        """True when any runtime works."""
        return any(health.usable for health in self.runtimes)

    def as_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        return {
            "system": platform.platform(),
            "python": platform.python_version(),
            "hardware": asdict(self.hardware),
            "memory_bandwidth_bytes_per_s": round(self.bandwidth),
            "libraries": self.libraries,
            "runtimes": [asdict(health) for health in self.runtimes],
            "problems": list(self.problems),
            "safer_settings": list(self.bounds),
            "usable": self.usable,
        }


def examine() -> Report:
    """Look, measure and test again: whoever asks wants to know how things are now."""
    hardware = detect()
    # Measured before the self-tests, which would keep the memory busy.
    bandwidth = memory_bandwidth(hardware.usable_cores)
    healths = tuple(ensure(runtime, again=True, announce=False) for runtime in MODULES)
    return Report(
        hardware=hardware,
        bandwidth=bandwidth,
        libraries=versions(_LIBRARIES),
        runtimes=healths,
        problems=tuple([h.warning for h in healths if h.warning] + _conflicts()),
        bounds=tuple(limit_lines()),
    )


def _conflicts() -> list[str]:
    return [
        f"{' and '.join(sorted(one.distributions)).replace('_', '-')} are both installed and have "
        "overwritten each other's files; uninstall both, then install the one that you want"
        for one in map(find_installed, MODULES)
        if one is not None and len(one.distributions) > 1
    ]


def rows(report: Report) -> list[tuple[str, str]]:
    """Rows to show, as (name, finding)."""
    hardware = report.hardware
    cores = f"{hardware.physical_cores} cores, {hardware.logical_cores} threads"
    if hardware.usable_cores < hardware.logical_cores:
        cores += f", {hardware.usable_cores} usable here"
    found = [
        ("processor", hardware.cpu),
        ("cores", cores),
        ("instruction sets", " ".join(hardware.instruction_sets) or "none that matter here"),
        ("memory", _room(hardware.ram_available, hardware.ram_total)),
        ("memory bandwidth", f"{report.bandwidth / 1e9:.1f} GB/s read, measured now"),
    ]
    for gpu in hardware.gpus:
        memory = _room(gpu.memory_free, gpu.memory_total)
        driver = f"compute {gpu.compute_capability}, driver {gpu.driver}"
        found.append((f"GPU {gpu.index}", f"{gpu.name}, {memory}, {driver}"))
    if not hardware.gpus:
        found.append(("GPU", "none found"))
    for health in report.runtimes:
        label = backend(health.runtime).label
        found.append((label, _describe(health)))
        found += [(f"{label} device", _device_line(one)) for one in health.devices]
        if health.kernels:
            found.append((f"{label} kernels", " ".join(health.kernels)))
    found += [("after a crash", f"{line}; undo: {FORGET}") for line in report.bounds]
    found.append(("libraries", ", ".join(f"{n} {v}" for n, v in report.libraries.items())))
    return found


def _device_line(device: Device) -> str:
    said = f"{device.name}: {device.description}"
    if device.memory_total is None or device.memory_free is None:
        return said
    return f"{said}, {_room(device.memory_free, device.memory_total)}"


def _room(free: int, total: int) -> str:
    return f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB free"


def _describe(health: Health) -> str:
    if health.version is None:
        return "not installed"
    if not health.usable:
        return f"{health.version}, {'not tested' if health.transient else 'self-test failed'}"
    text = f"{health.version}, self-test passed"
    if "extra_buffers" in backend(health.runtime).knows:
        text += f", repacked weights {'on' if health.extra_buffers else 'off (slower)'}"
    if health.attention is not None:
        on = health.flash_attention
        ratio = health.attention if on else 1 / health.attention
        text += f", flash attention {'on' if on else 'off'}"
        text += f" ({ratio:.1f} times as fast behind {ATTENTION_DEPTH:,} tokens)"
    return text


def show(report: Report) -> None:
    """Print to stdout."""
    lines = rows(report) + [("problem", text) for text in report.problems]
    if not sys.stdout.isatty():
        width = max(len(name) for name, _ in lines)
        sys.stdout.writelines(f"{name:<{width}}  {finding}\n" for name, finding in lines)
        return
    from rich.table import Table
    from rich.text import Text

    from quantize.terminal import Console

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, finding in lines:
        table.add_row(name, Text(visible(finding)), style="yellow" if name == "problem" else None)
    Console().print(table)


def check_files(model: str | None) -> Iterator[Finding]:
    """Read every file of ``model``, a folder that `quantize` wrote or a name in the library, or of
    the whole library.

    Raises ModelError when there are no checksums to compare with, and as ``library.find``.
    """
    if model is None:
        for pulled in library.models():
            yield from _pulled(pulled)
    elif (folder := Path(model)).exists():
        if not (folder / NAME).is_file():
            raise ModelError(
                f"{folder} has no {NAME}; --checksums takes a folder that quantize wrote"
            )
        for entry in load_manifest(folder).files:
            yield from findings(folder, entry)
    elif known := library.find(model):
        yield from _pulled(*known)
    else:
        raise ModelError(f"{model}: no such folder, and not in the library (`ingot models`)")


def _pulled(model: library.Model, only: library.Kept | None = None) -> Iterator[Finding]:
    for build in model.builds if only is None else (only,):
        for name, sha256 in build.sha256.items():
            yield compare(model.folder, name, sha256)
