"""Targets: what a file must keep instead of how it is made. A target's name is a recipe's."""

import re
from dataclasses import dataclass, replace
from typing import Literal

from quantize.errors import UsageError

Bound = Literal["kl", "bytes", "bits", "memory"]

_UNITS = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SIZE = r"[\d.]+ ?[kmg]i?b"
_NAME = re.compile(
    rf"(?:kl(?P<kl>[\d.]+(?:e-\d+)?)|(?P<bits>[\d.]+)bpw|fits-(?P<memory>{_SIZE})-(?P<context>\d+)"
    rf"|(?P<bytes>{_SIZE}))(?:-fast(?P<rows>\d+))?"
)


@dataclass(frozen=True, slots=True)
class QualityTarget:
    """The bound that a file keeps: mean KL divergence in nats, bytes of the file, bits a weight, or
    bytes of memory with a chat of ``context`` tokens. ``name`` says it in a file's name.

    Of the files that keep it the one of the fewest bytes, or of the least divergence, is wanted;
    with ``rows`` the one whose step of so many rows is fastest.
    """

    bound: Bound
    value: float
    name: str
    context: int = 0
    rows: int = 0

    def fastest(self, rows: int) -> "QualityTarget":
        """The same bound, for speed."""
        return replace(self, rows=rows, name=f"{self.name}-fast{rows}")


def kl_target(text: str) -> QualityTarget:
    """Of --max-kl. Raises UsageError."""
    return QualityTarget("kl", _number(text, "--max-kl", "nats, such as 0.02"), f"kl{text.strip()}")


def bits_target(text: str) -> QualityTarget:
    """Of --bits-per-weight. Raises UsageError."""
    value = _number(text, "--bits-per-weight", "a number, such as 4.5")
    return QualityTarget("bits", value, f"{text.strip()}bpw")


def size_target(text: str) -> QualityTarget:
    """Of --max-size. Raises UsageError."""
    return QualityTarget("bytes", _size(text, "--max-size"), _written(text))


def memory_target(text: str, context: int) -> QualityTarget:
    """Of --fits and --context. Raises UsageError."""
    name = f"fits-{_written(text)}-{context}"
    return QualityTarget("memory", _size(text, "--fits"), name, context)


def named_target(name: str) -> QualityTarget | None:
    """The target of that name; None if it is none. Raises UsageError for a bad number in it."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    if found["kl"]:
        target = kl_target(found["kl"])
    elif found["bits"]:
        target = bits_target(found["bits"])
    elif found["memory"]:
        target = memory_target(found["memory"], int(found["context"]))
    else:
        target = size_target(found["bytes"])
    return target.fastest(int(found["rows"])) if found["rows"] else target


def _size(text: str, flag: str) -> float:
    """Bytes, of a text such as "1.2GB" (a thousand millions) or "900MiB" (powers of 2)."""
    if not re.fullmatch(_SIZE, text.strip(), re.IGNORECASE):
        raise UsageError(
            f"{flag} takes a size with its unit, such as 1.2GB or 900MiB, not {text!r}"
        )
    number, unit = re.split(r" ?(?=[kmg])", text.strip().lower(), maxsplit=1)
    return _number(number, flag, "a size such as 1.2GB") * _UNITS[unit]


def _number(text: str, flag: str, example: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"{flag} takes {example}, not {text!r}")
    return value


def _written(text: str) -> str:
    return text.strip().replace(" ", "").lower()
