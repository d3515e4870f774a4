"""A model file on a device: what a check runs."""

from dataclasses import dataclass

from app.doctor.verify.lines import Subject
from runtimes.backend import Backend
from runtimes.models.modelfile import ModelFile
from runtimes.settings import RunnerSettings

PROCESSOR = "cpu"  # the device that others are compared with
ROWS = 8  # that run together
CONTEXT = 512  # tokens of a slot


@dataclass(frozen=True, slots=True)
class Target:
    """A model file on a device."""

    model: ModelFile
    device: str

    def settings(self, slots: int) -> RunnerSettings:
        """For so many rows together."""
        return RunnerSettings(slots=slots, context=CONTEXT, gpu_layers=0)

    @property
    def subject(self) -> Subject:
        """What a line says of it."""
        return Subject(self.model.backend.label, self.device, self.model.path.name)


def devices(_runtime: Backend) -> tuple[str, ...]:
    """Where a runtime can run a model."""
    return (PROCESSOR,)
