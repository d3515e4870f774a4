"""Frame of every comparison: sides that take turns, a sample of each round, ratios, the result, and
tools of llama.cpp."""

import os
import statistics
import subprocess
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from app.figures import aligned
from runtimes.errors import IngotError, RequestError
from runtimes.settings import RunnerSettings

LAYOUTS = {"split": False, "unified": True}  # of keys and values; RunnerSettings.unified_kv
_LIMIT_S = 1800.0  # of a run of a tool
HOW_TO_BUILD = "docs/benchmarks.md says how to build it"

Side = TypeVar("Side", bound=Hashable)
Taken = TypeVar("Taken")


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Findings about one file."""

    figures: dict[str, Any]  # for programs: every sample that was taken, and what follows from them
    lines: list[str]  # for people


class Samples(list[float]):
    """One figure in each round. As text it is the median: ``f"{samples:.1f}"``."""

    @property
    def median(self) -> float:
        """The middle sample."""
        return statistics.median(self)

    def __truediv__(self, other: Iterable[float]) -> Self:
        """The ratio of each round: its samples were taken close together, so that a machine that is
        faster later changes both."""
        return type(self)(a / b for a, b in zip(self, other, strict=True))

    def __format__(self, spec: str) -> str:
        return format(self.median, spec)

    def spread(self, spec: str) -> str:
        """Range from the least to the most."""
        return f"{min(self):{spec}}-{max(self):{spec}}"

    def told(self, spec: str) -> str:
        """The median, and the spread in brackets."""
        return f"{self:{spec}} ({self.spread(spec)})"


def in_turn(
    sides: Mapping[Side, Callable[[int], Taken]], rounds: int, *, warm_up: bool = False
) -> dict[Side, list[Taken]]:
    """Results of every side in each round, called with the round's number: back and forth, so that
    a machine that slows down favours none. A ``warm_up`` is round -1, and does not count."""
    taken: dict[Side, list[Taken]] = {name: [] for name in sides}
    for number in range(-warm_up, rounds):
        for name in list(sides)[:: -1 if number % 2 else 1]:
            sample = sides[name](number)
            if number >= 0:
                taken[name].append(sample)
    return taken


def samples(
    taken: Mapping[Side, Iterable[Taken]], figure: Callable[[Taken], float]
) -> dict[Side, Samples]:
    """One ``figure`` of every side."""
    return {side: Samples(map(figure, rounds)) for side, rounds in taken.items()}


def compared(title: str, sides: Mapping[str, Samples], form: str = ".1f") -> list[str]:
    """A table for people: the figure of each side, its range, and its ratio to the first side's,
    round by round."""
    first = next(iter(sides.values()))
    table = [[title, "median", "of the rounds", "to the first"]]
    for name, one in sides.items():
        table.append([f"  {name}", f"{one:{form}}", one.spread(form), f"{one / first:.3f}"])
    return aligned(table, left=1)


def best_against(ours: Iterable[Samples], theirs: Iterable[Samples]) -> Samples:
    """The best of ours over the best of theirs, in each round."""
    fastest, their_fastest = (
        Samples(map(max, zip(*sides, strict=True))) for sides in (ours, theirs)
    )
    return fastest / their_fastest


def rounded(value: Any) -> Any:
    """Figures for JSON: more digits than five say nothing."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


def require_tool(path: Path | None, name: str) -> Path:
    """``path`` if it is a program. Raises RequestError that says where to get it."""
    option = f"--{name.replace('llama-batched', 'batched')}"
    if path is None:
        raise RequestError(f"name the program {name} with {option}; {HOW_TO_BUILD}")
    if not path.is_file() or not os.access(path, os.X_OK):
        raise RequestError(f"{option}: {path} is not a program; {HOW_TO_BUILD}")
    return path


def tool_arguments(program: Path, model: Path, settings: RunnerSettings) -> list[str]:
    """The command line of a tool of llama.cpp with these settings; more options may follow."""
    cells, kind = settings.slots * (settings.context or 0), settings.kv_type
    batch, threads = settings.batch, settings.threads
    sizes = ("-c", cells, "-b", batch, "-ub", batch, "-t", threads, "-tb", threads)
    kinds = ("-ctk", kind, "-ctv", kind) if kind != "f16" else ()
    return [str(program), "-m", str(model), *map(str, (*sizes, *kinds))]


def run_tool(command: Sequence[object]) -> str:
    """Output of a tool. Raises IngotError with its last lines when it fails."""
    name = Path(str(command[0])).name
    try:
        done = subprocess.run(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise IngotError(
            f"{name} did not end within {_LIMIT_S:.0f} s; is the machine busy?"
        ) from error
    except OSError as error:
        raise IngotError(f"{command[0]} cannot be started: {error}") from error
    if done.returncode != 0:
        said = tail(done.stderr + done.stdout)
        raise IngotError(f"{name} failed with exit code {done.returncode}:\n{said}")
    return done.stdout


def tail(text: str, lines: int = 8) -> str:
    """The last lines of a tool's output, for an error."""
    return "\n".join(text.strip().splitlines()[-lines:]) or "it said nothing"
