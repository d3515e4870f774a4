"""The energy that GPUs took while a job's rows ran."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from app.batch.schedule.gpus import VISIBLE
from runtimes.machine.gpu_watch import GpuWatch, tokens_per_joule

PERIOD_S = 1.0  # between two readings


@dataclass(frozen=True, slots=True)
class Energy:
    """Of all GPUs that the job could use, with what else they did."""

    joules: float
    watts: float  # the mean of all of them together
    tokens_per_joule: float | None  # of answers
    gpus: tuple[str, ...]
    measured: str  # how

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What `--json` and `--report` have."""
        return cls(**{**values, "gpus": tuple(values["gpus"])})

    def line(self) -> str:
        """For people, at the end."""
        tokens = self.tokens_per_joule
        said = "" if tokens is None else f", {tokens:.3g} answer tokens per joule"
        return f"GPU energy: {self.joules:,.0f} J ({self.watts:,.0f} W){said}; {self.measured}"


def energy_of(watch: GpuWatch, tokens: int) -> Energy | None:
    """What was seen while so many answer tokens were made; None unless every GPU told its power to
    the end."""
    named = os.environ.get(VISIBLE, "").split(",")
    visible = {int(name) for name in named if name.strip().isdecimal()} or watch.uses.keys()
    uses = [use for index, use in watch.uses.items() if index in visible]
    joules = sum(use.joules for use in uses)
    if watch.reader.missing or not joules or any(use.watts is None for use in uses):
        return None
    return Energy(
        joules=joules,
        watts=sum(use.watts or 0.0 for use in uses),
        tokens_per_joule=tokens_per_joule(tokens, joules) or None,
        gpus=tuple(use.name for use in uses),
        measured=f"the power that NVIDIA's driver told of {len(uses)} GPU"
        f"{'s' if len(uses) > 1 else ''} every {PERIOD_S:g} s, with idle power and other programs'",
    )
