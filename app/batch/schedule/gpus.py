"""The GPUs that engines of a job are dealt out to, and how an engine is kept on one of them."""

import os
from dataclasses import dataclass

from runtimes.machine.gpus import find_gpus
from runtimes.machine.selftest import ensure
from runtimes.models.modelfile import RuntimeName
from runtimes.models.registry import backend
from runtimes.settings import RunnerSettings

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class EngineGpu:
    """One GPU."""

    name: str  # for people
    free: int | None  # bytes of its memory; None where it does not tell
    visible: str | None = None  # what names it in CUDA_VISIBLE_DEVICES, where that chooses it
    device: str = "auto"  # ``RunnerSettings.device`` of its engines

    @property
    def environment(self) -> dict[str, str]:
        """What the process of an engine has besides."""
        return {} if self.visible is None else {VISIBLE: self.visible}


def gpus_for(runtime: RuntimeName, settings: RunnerSettings) -> tuple[EngineGpu, ...]:
    """Those that engines with these settings are dealt out to, and that a single one takes all of.
    Where the runtime has devices, this takes the second of its self-test."""
    if not backend(runtime).allows_gpu(settings):
        return ()
    found = ensure(runtime).devices
    if found:  # what is free of their memory is wanted as it is now
        found = ensure(runtime, again=True).devices
    if settings.device != "auto":
        names = [name.strip() for name in settings.device.split(",")]
        found = tuple(one for one in found if one.name in names)
    else:
        found = tuple(one for one in found if one.auto)
        # NVIDIA's are chosen for the whole process: CUDA takes memory on each that it sees.
        if any(one.name.startswith("CUDA") for one in found):
            return _nvidia_gpus()
    return tuple(EngineGpu(one.name, one.memory_free, device=one.name) for one in found)


def _nvidia_gpus() -> tuple[EngineGpu, ...]:
    """The GPUs that a process started here sees."""
    gpus = find_gpus()
    by_name = {str(gpu.index): gpu for gpu in gpus}
    named = os.environ.get(VISIBLE)
    names = [*by_name] if named is None else [name.strip() for name in named.split(",")]
    # A name that is no number (a UUID) cannot be looked up: it is left to CUDA.
    return tuple(
        EngineGpu(f"GPU {name}", by_name.get(name, gpus[0]).memory_free, name)
        for name in names
        if name and gpus
    )
