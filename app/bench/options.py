"""What a benchmark is told, and what every benchmark gives back."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from runtimes.machine.cpu import available_cores
from runtimes.settings import RunnerSettings

# llama.cpp rounds a sequence's cells up to this many (llama_context's constructor); asking for a
# multiple makes every tool hold the same.
_CELLS = 256
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


class Result(Protocol):
    """The figures of one benchmark on one file."""

    def to_json(self) -> dict[str, Any]:
        """For programs: every sample that was taken, and what follows from them."""

    def lines(self) -> list[str]:
        """For people."""


def median(samples: Sequence[float]) -> float:
    """The middle sample."""
    return statistics.median(samples)


def rounded(samples: Sequence[float]) -> list[float]:
    """Samples for JSON: more digits than five say nothing."""
    return [float(f"{sample:.5g}") for sample in samples]
