"""ONNX Runtime, as the rest of Ingot sees it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runtimes.backend import Backend, Device
from runtimes.errors import IngotError, ModelError

if TYPE_CHECKING:
    from runtimes.backend import MemoryEstimate, StepCost
    from runtimes.models.modelfile import ModelFile
    from runtimes.runner import Runner, Tokenizer
    from runtimes.settings import RunnerSettings

log = logging.getLogger(__name__)


class OnnxBackend(Backend):
    """Runs folders, which have a graph as onnxruntime-genai's builder writes it."""

    def detect(self, path: Path) -> ModelFile | None:
        """Any folder, or one that is named by its graph."""
        from runtimes.onnx.modelfile import read_folder

        if path.is_dir():
            return read_folder(path)
        return read_folder(path.parent) if path.suffix == ".onnx" else None

    def estimate(self, model: ModelFile, settings: RunnerSettings) -> MemoryEstimate:
        """From the graph; raises ModelError when it cannot be read."""
        from runtimes.onnx.memory import estimate

        return estimate(model, settings)

    def step_cost(self, model: ModelFile) -> StepCost | None:
        """From the graph."""
        from runtimes.onnx.memory import step_cost

        return step_cost(model)

    def tokenizer(self, model: ModelFile) -> Tokenizer:
        """From the folder's tokenizer.json."""
        from runtimes.onnx.tokenizer import OnnxTokenizer

        return OnnxTokenizer(model.path)

    def open(self, model: ModelFile, settings: RunnerSettings) -> Runner:
        """A session over the graph, on the processor where ``auto`` finds no device that can."""
        from runtimes.onnx.runner import OnnxRunner

        try:
            return OnnxRunner(model, settings)
        except IngotError as error:
            if settings.device != "auto" or not self.on_gpu(settings):
                raise
            problem = str(error)
        # What the failed try holds must be gone before the next: so not in the block above.
        log.warning("%s runs on the processor: %s", model.name, problem)
        return OnnxRunner(model, replace(settings, device="cpu"))

    def on_gpu(self, settings: RunnerSettings) -> bool:
        """With a device that is asked for, or one that ``auto`` finds."""
        from runtimes.onnx.device import target_of

        try:
            return target_of(settings.device) is not None
        except (IngotError, ImportError):  # whoever opens the model says so
            return False

    def adapter_problem(self, model: ModelFile, path: Path) -> str | None:
        """By what its header says."""
        from runtimes.onnx.lora import read_adapter_header

        try:
            read_adapter_header(path, model)
        except ModelError as error:
            return str(error)
        return None

    def kernels(self) -> list[str]:
        """The execution providers of this build."""
        import onnxruntime

        return list(onnxruntime.get_available_providers())

    def devices(self) -> tuple[Device, ...]:
        """List the devices of the execution providers that can be used now."""
        from runtimes.onnx.device import devices

        return devices()


_INSTALL = "pip install onnxruntime (or onnxruntime-gpu, not both)"
BACKEND = OnnxBackend(
    name="onnx",
    label="ONNX Runtime",
    format="onnx",
    package="onnxruntime",
    libraries="capi",
    distributions=("onnxruntime_gpu", "onnxruntime_webgpu", "onnxruntime"),
    install=_INSTALL,
    reinstall=_INSTALL,
    selftest=Path(__file__).parent / "selftest" / "model.onnx",
    folder=("genai_config.json", "*.onnx"),
    knows=frozenset({"device_sampling"}),
    copies_weights=True,
)
