"""A model file on a device: what a check runs."""

from dataclasses import dataclass

from app.doctor.verify.lines import Subject
from runtimes.api import EngineApi
from runtimes.errors import IngotError
from runtimes.machine.selftest import Health
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import backend_of
from runtimes.settings import RunnerSettings

PROCESSOR = "cpu"  # the device that others are compared with
ROWS = 8  # that run together
CONTEXT = 512  # tokens of a slot


@dataclass(frozen=True, slots=True)
class VerifyTarget:
    """A model file on a device, as ``RunnerSettings.device`` names it."""

    model: ModelFile
    device: str

    def settings(self, slots: int) -> RunnerSettings:
        """For so many rows together, all layers on the device."""
        layers = 0 if self.device == PROCESSOR else -1
        return RunnerSettings(slots=slots, context=CONTEXT, device=self.device, gpu_layers=layers)

    def require_device(self, engine: EngineApi) -> None:
        """Raise IngotError for an engine that computes nothing on the device: after crashes a
        worker leaves it, also a later one, and what it does then says nothing of the device."""
        if self.device != PROCESSOR and not engine.stats().gpu_layers:
            raise IngotError(
                f"no layer is on {self.device}: there is no room, or it crashed there before"
                " (`python -P -m runtimes.worker --forget` has it tried again)"
            )

    @property
    def subject(self) -> Subject:
        """What a line says of it."""
        return Subject(backend_of(self.model).label, self.device, self.model.path.name)


def devices(health: Health) -> tuple[str, ...]:
    """Where a runtime can run a model."""
    return (PROCESSOR, *(one.name for one in health.devices))
