"""What the user asked for, as one job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from app.batch.input.source import Source
from app.batch.output.formats import OutputFormat
from app.batch.settings import JobSettings
from app.models.planning import Choice


@dataclass(frozen=True, slots=True)
class Limits:
    """What a row and the whole job may take, in seconds; ``retries`` is how often a row is asked
    again after a timeout or an error of the engine."""

    row_timeout_s: float | None = None
    retries: int = 1
    max_time_s: float | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """``format`` None: as the output's name and the input say. ``fields``: whether flat records
    have the fields of the input. ``unordered``: whether the file grows as rows finish."""

    format: OutputFormat | None = None
    fields: bool = True
    unordered: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """``fixed_slots`` says that the number of slots was given, not planned; ``force`` accepts
    changed settings, ``fresh`` drops old answers, ``strict`` refuses an input with rows that are
    not valid, ``skip_failed`` leaves rows failed that failed before; ``engines`` is how many work
    on it, ``ray`` the address of the Ray cluster that they run on."""

    source: Source
    choice: Choice
    settings: JobSettings
    fixed_slots: bool = False
    force: bool = False
    fresh: bool = False
    strict: bool = False
    skip_failed: bool = False
    limits: Limits = field(default_factory=Limits)
    output: Output = field(default_factory=Output)
    engines: int | Literal["auto"] = 1
    ray: str | None = None
