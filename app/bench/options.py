"""What a benchmark is told, and what every benchmark gives back."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from runtimes.machine.cpu import available_cores
from runtimes.settings import RunnerSettings

# llama.cpp rounds a sequence's cells up to this many (llama_context's constructor); asking for a
# multiple makes every tool hold the same.
_CELLS = 256
Side = TypeVar("Side")
BATCH = 512  # tokens of a step on both sides of every comparison; llama.cpp's own n_ubatch


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The size of the work. Every number is at least 1."""

    rows: int = 16
    prompt_tokens: int = 128
    decode_tokens: int = 64
    requests: int = 64
    repeats: int = 5
    steps: int = 2000
    seconds: float = 60.0
    threads: int | None = None
    batched_bench: Path | None = None
    llama_server: Path | None = None
    prompts: Path | None = None

    @property
    def cores(self) -> int:
        """Threads that every side uses."""
        return self.threads or available_cores()

    def settings(
        self, tokens: int, *, rows: int | None = None, unified: bool = False
    ) -> RunnerSettings:
        """A runner for ``rows`` slots that hold ``tokens`` each, rounded up as llama.cpp does."""
        return RunnerSettings(
            slots=rows or self.rows,
            context=-(-tokens // _CELLS) * _CELLS,
            batch=BATCH,
            threads=self.cores,
            unified_kv=unified,
        )


@dataclass(frozen=True, slots=True)
class Result:
    """What a benchmark found out about one file."""

    figures: dict[str, Any]  # for programs: every sample that was taken, and what follows from them
    lines: list[str]  # for people


def in_turn(sides: Sequence[Side], rounds: int) -> Iterator[tuple[int, Side]]:
    """Every side in each round, by its number; back and forth, so that a machine that slows down
    favours none of them.
    """
    for number in range(rounds):
        yield from ((number, side) for side in sides[:: -1 if number % 2 else 1])


def median(samples: Iterable[float]) -> float:
    """The middle sample."""
    return statistics.median(samples)


def paired(ours: Iterable[float], theirs: Iterable[float]) -> float:
    """``ours`` over ``theirs``, the median of the rounds: the samples of one round were taken close
    together, so that a machine that is faster later changes both.
    """
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def rounded(samples: Iterable[float]) -> list[float]:
    """Samples for JSON: more digits than five say nothing."""
    return [float(f"{sample:.5g}") for sample in samples]
