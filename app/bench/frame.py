"""Frame of every comparison: sides that take turns, a sample of each round, tables and figures; the
work that an engine is given, and what it did between two moments; tools of llama.cpp."""

import json
import os
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, Self, TypeVar

from app.bench.loops import Prompts
from app.bench.options import BenchOptions
from app.figures import aligned
from runtimes.api import EngineApi
from runtimes.engine.engine import Engine
from runtimes.engine.metrics import EngineStats
from runtimes.errors import IngotError, RequestError
from runtimes.request import Completion, FinishReason, Request, SamplingParams
from runtimes.settings import RunnerSettings, SchedulerSettings
from runtimes.stream import Stream
from runtimes.worker.engine import WorkerEngine

LAYOUTS = {"split": False, "unified": True}  # of keys and values; RunnerSettings.unified_kv
_LIMIT_S = 1800.0  # of a run of a tool
HOW_TO_BUILD = "docs/benchmarks.md says how to build it"

Figures = dict[str, Any]  # for programs

Side = TypeVar("Side", bound=Hashable)
Taken = TypeVar("Taken")
# Its log thread is not waited for when it ends, so that now and then a run prints nothing
# (common/log.cpp: "logs to be lost if not flushed before the program exits").
_TRIES = 20
# Reading the figures takes the interpreter from the engine: seldom enough to cost nothing.
_POLL_S = 0.002
_SILENCE_S = 600.0

UNBOUNDED = SchedulerSettings(max_stall_s=None)  # a batch: nobody watches a row
# Rows in lockstep: every prompt is prefilled before the first row decodes.
TOGETHER = replace(UNBOUNDED, prefix_cache=False)


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Findings about one file."""

    figures: Figures  # for programs: every sample that was taken, and what follows from them
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


def compared(title: str, sides: Mapping[Side, Samples], form: str = ".1f") -> list[str]:
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


def batched_bench(command: Sequence[object]) -> Figures:
    """Figures of a run of `llama-batched-bench`, as ``parse``."""
    for _ in range(_TRIES):
        if (output := run_tool([*command, "--output-format", "jsonl"])).strip():
            break
    return parse(output)


def parse(output: str) -> Figures:
    """The figures in what `--output-format jsonl` prints: one line of JSON, with ``t_tg`` seconds
    of decode and ``speed_tg`` tokens a second. Raises IngotError if there are none."""
    found = [line for line in output.splitlines() if line.startswith('{"n_kv_max"')]
    if len(found) != 1:
        raise IngotError(
            f"llama-batched-bench gave {len(found)} results instead of one:\n{tail(output)}"
        )
    line: Figures = json.loads(found[0])
    return line


# Work of an engine.


@dataclass(frozen=True, slots=True)
class Window:
    """Decoding between two moments of an engine, prefill of new rows among it if there was any.

    ``wall_s`` is all the time that passed, ``step_s`` that of decode steps alone, ``host_s`` what
    the engine spent outside the native library in steps of either kind.
    """

    tokens: int
    steps: int
    wall_s: float
    step_s: float
    host_s: float

    @classmethod
    def timed(cls, tokens: int, seconds: float, *, rows: int = 1) -> Self:
        """A side that tells only how long its rows took to decode so many tokens each."""
        return cls(rows * tokens, tokens, seconds, seconds, 0.0)


def wall_tps(window: Window) -> float:
    """Decoded tokens a second of all the time."""
    return window.tokens / window.wall_s


def step_tps(window: Window) -> float:
    """Decoded tokens a second of decode steps."""
    return window.tokens / window.step_s


def host_share(window: Window) -> float:
    """The engine's own part of the steps' time; of a window without prefill."""
    return window.host_s / window.step_s


def greedy(tokens: int, *, top_logprobs: int = 0) -> SamplingParams:
    """Exactly ``tokens`` likeliest tokens."""
    return SamplingParams(max_tokens=tokens, ignore_eos=True, top_logprobs=top_logprobs)


def random_prompts(engine: EngineApi, lengths: Iterable[int], seed: int) -> list[list[int]]:
    """Prompts of these lengths; the same seed gives the same tokens."""
    dice = random.Random(seed)
    return [[dice.randrange(engine.vocab_size) for _ in range(length)] for length in lengths]


def about(mean: int, dice: random.Random) -> int:
    """Half to one and a half times ``mean``, at least 1."""
    return dice.randint(max(1, mean // 2), max(1, 3 * mean // 2))


@contextmanager
def loaded(
    path: Path,
    settings: RunnerSettings,
    scheduling: SchedulerSettings | None = None,
    *,
    worker: bool = False,
) -> Iterator[EngineApi]:
    """An engine that has touched its weights and grown its buffers to what all rows need; with
    ``worker`` in a process of its own. Raises IngotError when it took fewer slots than asked for.

    Have one at a time here: GNU OpenMP counts the threads of every engine in the process, idle or
    not, and once they are more than the cores its threads hardly spin (libgomp's throttled spin
    count); with two engines, decoding of a small model fell to half its speed.
    """
    kind = WorkerEngine if worker else Engine
    with kind.load(path, settings, scheduling) as engine:
        if engine.slots != settings.slots:
            # After deaths, a worker comes back with safer settings and remembers them.
            raise IngotError(
                f"{path.name} runs with {engine.slots} slots instead of {settings.slots}"
            )
        run(engine, random_prompts(engine, [8] * engine.slots, seed=-1), [greedy(3)] * engine.slots)
        yield engine


def run(
    engine: EngineApi,
    prompts: Prompts,
    params: Sequence[SamplingParams],
    adapters: Sequence[str] = (),
) -> list[Completion]:
    """Submit everything at once and wait for the end; ``adapters`` are dealt out to the prompts,
    one after the other. Raises IngotError if a request fails."""
    return finished(_submit(engine, prompts, params, adapters))


def _submit(
    engine: EngineApi,
    prompts: Prompts,
    params: Sequence[SamplingParams],
    adapters: Sequence[str],
) -> list[Stream]:
    return [
        engine.submit(Request(prompt, asked, adapter=adapter))
        for prompt, asked, adapter in zip(prompts, params, cycle(adapters or [None]), strict=False)
    ]


def finished(streams: Iterable[Stream]) -> list[Completion]:
    """Wait for completions. Raises IngotError for one that did not run to its full length."""
    done = [stream.result() for stream in streams]
    for completion in done:
        if completion.finish_reason is not FinishReason.LENGTH:
            reason = completion.error or f"it ended with {completion.finish_reason}"
            raise IngotError(f"a request of the benchmark did not run to its end: {reason}")
    return done


def timed_run(
    engine: EngineApi,
    prompts: Prompts,
    params: Sequence[SamplingParams],
    adapters: Sequence[str] = (),
) -> tuple[float, list[Completion]]:
    """``run``, and the seconds that it took."""
    begin = time.perf_counter()
    done = run(engine, prompts, params, adapters)
    return time.perf_counter() - begin, done


def lockstep(
    engine: EngineApi,
    prompts: Prompts,
    tokens: int,
    sampling: SamplingParams | None = None,
    adapters: Sequence[str] = (),
) -> Window:
    """Decode ``tokens`` on every prompt together, greedily or with ``sampling``, whose constraint,
    if any, must let answers be that long; prefill is before the window. ``adapters`` as in ``run``.

    The engine must prefill every prompt before the first decodes: ``max_stall_s`` None, and where
    steps are mixed, room for all in one. Raises IngotError when rows were not together after all.
    """
    rows = len(prompts)
    start = engine.stats()
    begun = first_tokens(start) + rows
    params = replace(sampling or SamplingParams(), max_tokens=tokens + 1, ignore_eos=True)
    streams = _submit(engine, prompts, [params] * rows, adapters)
    first, _ = wait_for(engine, lambda stats: first_tokens(stats) >= begun)
    done = finished(streams)
    last = engine.stats()
    seen = between(first, 0.0, last, 0.0)  # decode steps only, but for the first few of them
    if seen.tokens != rows * seen.steps:
        raise IngotError(
            f"the rows were not in lockstep: {seen.steps} steps made {seen.tokens} tokens of {rows}"
        )
    whole = between(start, 0.0, last, 0.0)
    part = seen if seen.steps else whole  # the whole was shorter than a look at it
    # The row that had its first token last decoded from the first common step to the last.
    wall_s = min(completion.timings.decode_s for completion in done)
    host_s = whole.step_s * host_share(part)
    return Window(rows * tokens, tokens, wall_s, whole.step_s, host_s)


def lockstep_rows(
    engine: EngineApi,
    options: BenchOptions,
    seed: int,
    params: SamplingParams | None = None,
    adapters: Sequence[str] = (),
) -> Window:
    """``lockstep`` on a random prompt for every slot, in the sizes that were asked for."""
    prompts = random_prompts(engine, [options.prompt_tokens] * engine.slots, seed)
    return lockstep(engine, prompts, options.decode_tokens, params, adapters)


def first_tokens(stats: EngineStats) -> int:
    """Requests that have had a token since the engine started."""
    return stats.completion_tokens - stats.decode_tokens


def wait_for(
    engine: EngineApi, reached: Callable[[EngineStats], bool]
) -> tuple[EngineStats, float]:
    """The first figures that satisfy ``reached``, and when that was."""
    limit = time.perf_counter() + _SILENCE_S
    while True:
        stats, now = engine.stats(), time.perf_counter()
        if reached(stats):
            return stats, now
        if now > limit:
            raise IngotError(f"the engine did not get through the work in {_SILENCE_S:.0f} s")
        time.sleep(_POLL_S)


def between(before: EngineStats, begin: float, after: EngineStats, end: float) -> Window:
    """Work from one snapshot to the next."""
    host_us = after.host_us_per_step * after.steps - before.host_us_per_step * before.steps
    return Window(
        after.decode_tokens - before.decode_tokens,
        after.steps - before.steps,
        end - begin,
        after.decode_s - before.decode_s,
        1e-6 * host_us,
    )


# Prompts: from a file of texts, or of random tokens.


def bench_prompts(path: Path, options: BenchOptions) -> list[list[int]]:
    """Token ids for the model at ``path``: what ``options.prompts`` holds, through the chat
    template if there is one, or ``options.requests`` random prompts of half to one and a half
    ``options.prompt_tokens``.
    """
    with Engine.load(path, RunnerSettings(slots=1, context=8, threads=1)) as engine:
        if options.prompts is None:
            dice = random.Random(options.requests)
            lengths = [about(options.prompt_tokens, dice) for _ in range(options.requests)]
            return random_prompts(engine, lengths, options.requests)
        return [encoded(engine, text) for text in read_texts(options.prompts)]


def encoded(engine: EngineApi, text: str) -> list[int]:
    """Tokens of a question, through the model's chat template where it has one."""
    if engine.model.chat_template is None:
        return engine.encode(text)
    return engine.encode_chat([{"role": "user", "content": text}])


def read_texts(path: Path) -> list[str]:
    """A prompt a line; in a .jsonl file an object with "prompt" or "text", or the first of "turns"
    (the form of MT-bench's and Vicuna's questions). Raises RequestError.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        texts = [
            _text(line, number) if path.suffix == ".jsonl" else line
            for number, line in enumerate(lines, start=1)
            if line.strip()
        ]
    except (OSError, ValueError) as error:
        raise RequestError(f"--prompts: {path} cannot be read: {error}") from error
    if not texts:
        raise RequestError(f"--prompts: {path} holds no prompt")
    return texts


def _text(line: str, number: int) -> str:
    """The prompt in a line of JSON. Raises ValueError."""
    value: Any = json.loads(line)
    found = value if isinstance(value, dict) else {}
    turns = found.get("turns")
    first = turns[0] if isinstance(turns, list) and turns else None
    for text in (found.get("prompt"), found.get("text"), first):
        if isinstance(text, str) and text.strip():
            return text
    raise ValueError(f'line {number} has no "prompt", "text" or "turns"')
