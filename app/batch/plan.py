"""A job whose input is open and whose model is chosen."""

from dataclasses import dataclass
from typing import Literal

from app.batch.input.source import Source
from app.batch.settings import JobSettings
from app.batch.spec import BatchSpec
from app.models.planning import LoadChoice
from app.models.prefixes import NONE_SAVED, SavedPrefixes


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What ``spec`` asks for, and what was found out about it."""

    spec: BatchSpec
    source: Source
    choice: LoadChoice
    settings: JobSettings
    engines: int | Literal["auto"] = 1
    prefixes: SavedPrefixes = NONE_SAVED
