"""Collect what decides how fast, and whether, models run on this machine."""

import platform
from dataclasses import asdict, dataclass
from typing import Any

from runtimes.load import MODULES
from runtimes.machine.bandwidth import memory_bandwidth
from runtimes.machine.hardware import Hardware, detect
from runtimes.machine.installed import find_installed, versions
from runtimes.machine.selftest import Health, ensure
from runtimes.worker.fallback import limit_lines

# What a model file goes through: the runtimes, and what quantize makes files with.
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
        """Whether any runtime works."""
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
    found = (find_installed(runtime) for runtime in MODULES)
    return [
        f"{' and '.join(sorted(one.distributions)).replace('_', '-')} are both installed and have "
        "overwritten each other's files; uninstall both, then install the one that you want"
        for one in found
        if one is not None and len(one.distributions) > 1
    ]
