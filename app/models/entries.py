"""One model file as pickers show it: what it is called, what loads it, and what is known of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from app.options import ModelOptions
from quantize.manifest import Fidelity, Quality, Speed, TokenParity
from runtimes.planner.plan import Figures


class Origin(StrEnum):
    """Where a file was found."""

    LIBRARY = "library"  # pulled from the hub
    BUILT = "built"  # in a folder that `quantize` wrote
    FILE = "file"  # by itself


@dataclass(frozen=True, slots=True)
class Measured:
    """What `ingot plan` measured here."""

    figures: Figures
    made: float  # seconds since 1970
    chosen: bool  # whether the plan took this file


@dataclass(frozen=True, slots=True)
class Entry:
    """A file to choose. Figures are None where nobody measured them."""

    model: str  # what loads it, with ``options``, as on the command line
    name: str
    recipe: str  # what the file is called: the recipe of `quantize`, or the type in its name
    origin: Origin
    path: Path
    format: str | None = None
    bits: int | None = None  # the size class
    bytes: int | None = None
    picked: str | None = None
    # From the manifest, so from the machine that built the file.
    quality: Quality | None = None
    fidelity: Fidelity | None = None
    parity: TokenParity | None = None
    speed: Speed | None = None
    notes: tuple[str, ...] = ()
    measured: Measured | None = None  # on this machine
    broken: str | None = None
    bits_per_weight: float | None = None  # what a file that `quantize` built stores

    @property
    def label(self) -> str:
        """What people read: "pebble · q4_k_m"."""
        return f"{self.name} · {self.recipe}" if self.recipe else self.name

    @property
    def key(self) -> str:
        """Tells entries apart."""
        return f"{self.model}\0{self.picked or ''}"

    @property
    def options(self) -> ModelOptions:
        """What goes with ``model``."""
        return ModelOptions(recipe=self.picked)

    @property
    def decode_tps(self) -> float | None:
        """Tokens a second of one row: measured here, or else where the file was built."""
        if self.measured is not None and 1 in self.measured.figures.decode_tps:
            return self.measured.figures.decode_tps[1]
        return self.speed.decode_tps_1 if self.speed else None

    def matches(self, words: Sequence[str]) -> bool:
        """Whether all of ``words`` are in what describes it, capitals aside."""
        bits = f"{self.bits}-bit" if self.bits else ""
        parts = (self.name, self.recipe, self.format, self.origin, self.model, bits)
        text = " ".join(part for part in parts if part).lower()
        return all(word.lower() in text for word in words)
