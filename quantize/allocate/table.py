"""What every tensor would take and lose in every type that fits it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quantize.disk import write_atomically
from quantize.errors import ToolError
from quantize.fromjson import from_json


@dataclass(frozen=True, slots=True)
class TypeChoice:
    """One type of one tensor: its ``bytes`` in the file, and the mean KL divergence a token, in
    nats, that it alone is predicted to cause."""

    kind: str
    bytes: int
    kl: float


@dataclass(frozen=True, slots=True)
class Unit:
    """A tensor of so many ``matrices`` [``rows``, ``width``], whose type is chosen by itself.

    ``importance`` has for each column how much errors in it matter, where the format's rounding is
    weighed by the table."""

    name: str
    matrices: int
    rows: int
    width: int
    choices: tuple[TypeChoice, ...]
    importance: tuple[float, ...] = ()

    @property
    def weights(self) -> int:
        """How many there are."""
        return self.matrices * self.rows * self.width

    def choice(self, kind: str) -> TypeChoice:
        """The one of that type. Raises KeyError."""
        found = next((choice for choice in self.choices if choice.kind == kind), None)
        if found is None:
            raise KeyError(f"{self.name} has no {kind}")
        return found


@dataclass(frozen=True, slots=True)
class TypeTable:
    """All tensors of a model whose type can be chosen; measured over ``tokens`` of ``text``."""

    units: tuple[Unit, ...]
    tokens: int
    text: str

    def total(self, kinds: Mapping[str, str]) -> TypeChoice:
        """Bytes and predicted divergence together, of the types by tensor ``kinds``."""
        picked = [unit.choice(kinds[unit.name]) for unit in self.units]
        return TypeChoice("", sum(c.bytes for c in picked), sum(c.kl for c in picked))


def write_table(path: Path, table: TypeTable) -> None:
    """With a checksum, which `read_table` looks at."""
    whole = {"table": asdict(table)}
    whole["sha256"] = _checksum(whole["table"])  # type: ignore[assignment]
    write_atomically(path, json.dumps(whole))


def read_table(path: Path) -> TypeTable:
    """Raises ToolError for a file that is not as it was written, OSError where there is none."""
    text = path.read_text(encoding="utf-8")
    try:
        whole = json.loads(text)
        if whole["sha256"] != _checksum(whole["table"]):
            raise ValueError("its checksum is another")
        return from_json(TypeTable, whole["table"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ToolError(
            f"the table of sensitivities {path} was changed or damaged ({error}): delete it, and it"
            " is measured again"
        ) from error


def _checksum(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
