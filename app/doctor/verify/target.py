"""What is verified, and how a check ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from runtimes.api import EngineApi
from runtimes.errors import IngotError
from runtimes.machine.selftest import Health
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import backend_of
from runtimes.settings import RunnerSettings

# What a check found, and what all of them did.


Verdict = Literal["passed", "failed", "skipped"]


VERDICTS: tuple[Verdict, ...] = ("passed", "failed", "skipped")


@dataclass(frozen=True, slots=True)
class Subject:
    """What a check is about; a part that it is not about is empty."""

    runtime: str = ""  # for people
    device: str = ""
    file: str = ""  # the model file's or the folder's name, without where it is


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check's verdict, the reason in words, and the figures for programs."""

    verdict: Verdict
    said: str
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckLine:
    """One check, done or skipped."""

    check: str
    subject: Subject
    found: CheckResult
    seconds: float


class Skip(Exception):
    """A check that cannot be done here; the text says why."""


def counts(lines: list[CheckLine]) -> dict[Verdict, int]:
    """How many lines have each verdict."""
    return {name: sum(line.found.verdict == name for line in lines) for name in VERDICTS}


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
