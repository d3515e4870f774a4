"""What a check found, and what all of them did."""

from dataclasses import dataclass, field
from typing import Any, Literal

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
