"""What a benchmark is told, how its sides take turns, and what it gives back."""

import os
import statistics
import subprocess
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from runtimes.errors import IngotError
from runtimes.machine.cpu import available_cores
from runtimes.settings import FlashAttention, RunnerSettings

# llama.cpp rounds a sequence's cells up to this many (llama_context's constructor); asking for a
# multiple makes every tool hold the same.
_CELLS = 256
BATCH = 512  # tokens of a step on both sides of every comparison; llama.cpp's own n_ubatch
LAYOUTS = {"split": False, "unified": True}  # of keys and values; RunnerSettings.unified_kv
DEFAULT = "split"  # what Ingot takes unasked
_LIMIT_S = 1800.0  # of a run of a tool
HOW_TO_BUILD = "docs/benchmarks.md says how to build it"

Side = TypeVar("Side", bound=Hashable)
Taken = TypeVar("Taken")


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The size of the work. Every number is at least 1, but for depths."""

    rows: int = 16
    prompt_tokens: int = 128
    decode_tokens: int = 64
    requests: int = 64
    repeats: int = 5
    steps: int = 2000
    seconds: float = 60.0
    threads: int | None = None
    flash_attention: FlashAttention = "auto"
    depths: tuple[int, ...] | None = None  # tokens in rows' caches; as each benchmark has them
    sizes: tuple[int, ...] | None = None  # rows together, where there are several
    llama_bench: Path | None = None
    batched_bench: Path | None = None
    llama_server: Path | None = None
    prompts: Path | None = None
    draft: Path | None = None

    @property
    def cores(self) -> int:
        """Threads that every side uses."""
        return self.threads or available_cores()

    def settings(
        self, tokens: int | None = None, *, rows: int | None = None, unified: bool = False
    ) -> RunnerSettings:
        """A runner for ``rows`` slots that hold ``tokens`` each, rounded up as llama.cpp does;
        without, a prompt, the token that comes with its prefill, and those that are timed."""
        tokens = tokens or self.prompt_tokens + self.decode_tokens + 1
        return RunnerSettings(
            slots=rows or self.rows,
            context=-(-tokens // _CELLS) * _CELLS,
            batch=BATCH,
            threads=self.cores,
            unified_kv=unified,
            flash_attention=self.flash_attention,
        )


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What a benchmark found out about one file."""

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
        """From the least to the most."""
        return f"{min(self):{spec}}-{max(self):{spec}}"


def in_turn(
    sides: Mapping[Side, Callable[[int], Taken]], rounds: int, *, warm_up: bool = False
) -> dict[Side, list[Taken]]:
    """What every side gave in each round, called with the round's number: back and forth, so that a
    machine that slows down favours none. A ``warm_up`` is round -1, and does not count."""
    taken: dict[Side, list[Taken]] = {name: [] for name in sides}
    for number in range(-warm_up, rounds):
        for name in list(sides)[:: -1 if number % 2 else 1]:
            sample = sides[name](number)
            if number >= 0:
                taken[name].append(sample)
    return taken


def against(
    ours: Mapping[str, Samples], theirs: Mapping[str, Samples]
) -> tuple[dict[str, Any], str]:
    """Speeds of our cache layouts over the best of theirs, as figures and in words."""
    best_of_theirs = max(samples.median for samples in theirs.values())
    best = max(samples.median for samples in ours.values()) / best_of_theirs
    default = ours[DEFAULT].median / best_of_theirs
    fastest, their_fastest = (
        Samples(map(max, zip(*side.values(), strict=True))) for side in (ours, theirs)
    )
    rounds = fastest / their_fastest
    figures = {"ratio_of_best": best, "ratio_of_rounds": rounds, "ratio_of_default": default}
    return figures, (
        f"  better of ours : best of theirs = {best:.3f}; "
        f"our default ({DEFAULT}) : best of theirs = {default:.3f}; "
        f"median of the rounds' ratios {rounds:.3f} ({rounds.spread('.3f')})"
    )


def rounded(value: Any) -> Any:
    """Figures for JSON: more digits than five say nothing."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


class ToolMissingError(IngotError):
    """A benchmark needs a program that was not named or is not there."""

    exit_code = 2


def require_tool(path: Path | None, option: str, name: str) -> Path:
    """``path`` if it is a program. Raises ToolMissingError that says where to get it."""
    if path is None:
        raise ToolMissingError(f"name the program {name} with {option}; {HOW_TO_BUILD}")
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ToolMissingError(f"{option}: {path} is not a program; {HOW_TO_BUILD}")
    return path


def tool_arguments(program: Path, model: Path, settings: RunnerSettings) -> list[str]:
    """The command line of a tool of llama.cpp with these settings; more options may follow."""
    options = {
        "-m": model,
        "-c": settings.slots * (settings.context or 0),
        "-b": settings.batch,
        "-ub": settings.batch,
        "-t": settings.threads,
        "-tb": settings.threads,
    }
    return [str(program), *(str(word) for pair in options.items() for word in pair)]


def run_tool(command: Sequence[object]) -> str:
    """What a tool printed. Raises IngotError with its last lines when it fails."""
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
