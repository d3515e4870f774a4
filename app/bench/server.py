"""The same prompts to the same end: the engine against `llama-server` of the same llama.cpp.

The engine runs in a worker process, as for every front end.
Everybody starts afresh each round, so that no round finds the prompts of the one before in a cache.
The server gets token ids and answers over the loopback interface, two requests a slot at a time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.llama_server import LlamaServer
from app.bench.options import BenchOptions, median, rounded
from app.bench.prompts import bench_prompts
from app.bench.tools import require_tool
from app.bench.work import greedy, loaded, run
from runtimes.errors import IngotError
from runtimes.settings import RunnerSettings, SchedulerSettings

_LAYOUTS = {"split": False, "unified": True}
_SERVER = "llama-server"
_WARM_UP = [[7] * 8]


@dataclass(frozen=True, slots=True)
class ServerResult:
    """Seconds for all prompts, a sample a round; ``ours`` by cache layout. ``server`` is what
    llama-server says of its slots.
    """

    settings: RunnerSettings
    requests: int
    prompt_tokens: int
    completion_tokens: int
    clients: int
    ours: dict[str, list[float]]
    theirs: list[float]
    server: dict[str, Any]

    @property
    def best_ratio(self) -> float:
        """Their time over ours of the better layout: above 1, ours is faster."""
        return median(self.theirs) / min(median(samples) for samples in self.ours.values())

    @property
    def round_ratios(self) -> list[float]:
        """The same of each round, whose runs lie close together in time."""
        return [
            theirs / min(samples[number] for samples in self.ours.values())
            for number, theirs in enumerate(self.theirs)
        ]

    @property
    def default_ratio(self) -> float:
        """Their time over ours of the layout that Ingot takes unasked."""
        return median(self.theirs) / median(self.ours["split"])

    def to_json(self) -> dict[str, Any]:
        """Every sample."""
        return {
            "slots": self.settings.slots,
            "context": self.settings.context,
            "threads": self.settings.threads,
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "clients": self.clients,
            "llama_server_slots": self.server,
            "ingot_seconds": {name: rounded(samples) for name, samples in self.ours.items()},
            "llama_server_seconds": rounded(self.theirs),
            "ratio_of_best": round(self.best_ratio, 4),
            "ratio_of_rounds": rounded(self.round_ratios),
            "ratio_of_default": round(self.default_ratio, 4),
        }

    def lines(self) -> list[str]:
        """A line for each side and setting, then the ratios."""
        text = [
            f"{self.requests} prompts of {self.prompt_tokens} tokens in all, "
            f"{self.completion_tokens} tokens generated, {self.settings.slots} slots of "
            f"{self.settings.context}: seconds end to end"
        ]
        sides = {f"ingot, {name}": samples for name, samples in self.ours.items()}
        sides[f"llama-server (it says: {self.server})"] = self.theirs
        for side, samples in sides.items():
            seconds = median(samples)
            text.append(
                f"  {side}: {seconds:.2f} s, {self.completion_tokens / seconds:.1f} "
                f"generated tok/s ({min(samples):.2f}-{max(samples):.2f} s)"
            )
        ratios = ", ".join(f"{ratio:.3f}" for ratio in self.round_ratios)
        text.append(
            f"  theirs : better of ours = {self.best_ratio:.3f}; theirs : our default (split) = "
            f"{self.default_ratio:.3f}; of each round {ratios} (above 1: ours is faster)"
        )
        return text


def server(path: Path, options: BenchOptions) -> ServerResult:
    """Every side in turn, ``options.repeats`` rounds."""
    program = require_tool(options.llama_server, "--llama-server", "llama-server")
    prompts = bench_prompts(path, options)
    tokens = options.decode_tokens
    need = max(map(len, prompts)) + tokens + 1
    settings = {name: options.settings(need, unified=kvu) for name, kvu in _LAYOUTS.items()}
    clients = 2 * options.rows
    ours: dict[str, list[float]] = {name: [] for name in _LAYOUTS}
    theirs: list[float] = []
    said: dict[str, Any] = {}
    sides = [*_LAYOUTS, _SERVER]
    for number in range(options.repeats):
        # Back and forth, so that a machine that slows down favours neither side.
        for side in sides if number % 2 == 0 else reversed(sides):
            if side != _SERVER:
                ours[side].append(_our_seconds(path, settings[side], prompts, tokens))
                continue
            with LlamaServer(program, path, settings["split"]) as native:
                native.complete(_WARM_UP * options.rows, 3, options.rows)
                begin = time.perf_counter()
                made = native.complete(prompts, tokens, clients)
                theirs.append(time.perf_counter() - begin)
                said = native.slots()
            if made != tokens * len(prompts):
                raise IngotError(
                    f"llama-server made {made} tokens instead of {tokens * len(prompts)}"
                )
    return ServerResult(
        settings=settings["split"],
        requests=len(prompts),
        prompt_tokens=sum(map(len, prompts)),
        completion_tokens=tokens * len(prompts),
        clients=clients,
        ours=ours,
        theirs=theirs,
        server=said,
    )


def _our_seconds(
    path: Path, settings: RunnerSettings, prompts: Sequence[list[int]], tokens: int
) -> float:
    # A batch: nobody watches a row, so that prompts may go in without bounds.
    with loaded(path, settings, SchedulerSettings(max_stall_s=None), worker=True) as engine:
        begin = time.perf_counter()
        run(engine, prompts, [greedy(tokens)] * len(prompts))
        return time.perf_counter() - begin
