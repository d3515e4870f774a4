"""Sides of a sweep: Ingot, and the programs and libraries that `--against` names, each opened for
so many rows and timed on the same work."""

import re
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import psutil

from app.bench.frame import HOW_TO_BUILD, UNBOUNDED, batched_bench, greedy, loaded, run
from app.bench.loops import Prompts, native_loop
from app.bench.options import BATCH, BenchOptions
from app.bench.server import IngotServer, LlamaServer, Server, ask, completions
from app.sweeps import OURS
from runtimes.errors import RequestError
from runtimes.planner.measure import random_tokens
from runtimes.settings import RunnerSettings


@dataclass(frozen=True, slots=True)
class Work:
    """Rows that begin together, one for each slot of ``settings``."""

    model: Path
    vocab_size: int
    prompt: int  # tokens
    answer: int
    settings: RunnerSettings

    def prompts(self) -> list[list[int]]:
        """Random ones, others at each call: a cache knows none of them."""
        return random_tokens(self.vocab_size, self.settings.slots, self.prompt)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one run: to the end of the last row; of a row in the middle to its first token,
    and between later ones; of all prompts and all decode steps. None where a side does not tell."""

    seconds: float
    ttft_s: float | None = None
    tpot_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None


@dataclass(frozen=True, slots=True)
class OpenedSide:
    """A side that has loaded."""

    run: Callable[[], Times]
    pid: int | None = None

    def memory(self) -> int | None:
        """Resident bytes of its processes; None where it has none that lasts."""
        try:
            process = psutil.Process(self.pid) if self.pid else None
            family = [process, *process.children(recursive=True)] if process else []
            return sum(one.memory_info().rss for one in family) or None
        except psutil.Error:
            return None


@dataclass(frozen=True, slots=True)
class SweepSide:
    """Name and doing of a side. ``runtime``: whose files it takes, None for all. ``one_by_one``: it
    has one row at a time, however many there are."""

    name: str
    open: Callable[[Work], AbstractContextManager[OpenedSide]]
    runtime: str | None = None
    one_by_one: bool = False


@contextmanager
def _ingot(work: Work) -> Iterator[OpenedSide]:
    """In a worker process, as for every front end."""
    with loaded(work.model, work.settings, UNBOUNDED, worker=True) as engine:

        def one() -> Times:
            prompts, before = work.prompts(), engine.stats()
            begin = time.perf_counter()
            done = run(engine, prompts, [greedy(work.answer)] * len(prompts))
            seconds, after = time.perf_counter() - begin, engine.stats()
            timings = [completion.timings for completion in done]
            return Times(
                seconds,
                statistics.median(one.ttft_s for one in timings),
                statistics.median(one.tpot_s or 0.0 for one in timings),
                after.prefill_s - before.prefill_s,
                after.decode_s - before.decode_s,
            )

        yield OpenedSide(one, engine.pid)


def _by_ends(work: Work, ends: Callable[[Prompts, int], Sequence[float]]) -> Callable[[], Times]:
    """Times of a side that tells only when each row had ended: first tokens are timed with answers
    of one token."""

    def one() -> Times:
        first = statistics.median(ends(work.prompts(), 1))
        rows = ends(work.prompts(), work.answer)
        rest = statistics.median(rows) - first
        return Times(max(rows), first, rest / max(work.answer - 1, 1))

    return one


@contextmanager
def _server(start: Callable[[Work], Server], work: Work) -> Iterator[OpenedSide]:
    with start(work) as server:
        yield OpenedSide(_by_ends(work, server.row_seconds), server.pid)


@contextmanager
def _remote(url: str, work: Work) -> Iterator[OpenedSide]:
    """A server elsewhere, with the model that it lists first."""
    models = ask(f"{url}/v1/models")
    model = models["data"][0]["id"] if models.get("data") else ""

    def ends(prompts: Prompts, tokens: int) -> list[float]:
        url_of = f"{url}/v1/completions"
        found = completions(url_of, "max_tokens", prompts, tokens, model=model)
        return [seconds for seconds, _ in found]

    yield OpenedSide(_by_ends(work, ends))


@contextmanager
def _loop(library: str, folder: str, work: Work) -> Iterator[OpenedSide]:
    settings, path = work.settings, Path(folder) if folder else work.model
    sizes = (settings.context or 0, BATCH) if library == _LOOPING else ()
    with native_loop(library, path, settings.threads or 0, *sizes) as loop:
        yield OpenedSide(_by_ends(work, lambda *asked: [loop(*asked)] * len(asked[0])), loop.pid)


@contextmanager
def _batched_bench(program: Path, work: Work) -> Iterator[OpenedSide]:
    settings = work.settings
    command: list[object] = [program, "-m", work.model, "-npp", work.prompt, "-ntg", work.answer]
    command += ["-npl", settings.slots, "-c", settings.slots * (settings.context or 0)]
    command += ["-t", settings.threads, "-tb", settings.threads, "-b", BATCH, "-ub", BATCH]
    command += ["-ctk", settings.kv_type, "-ctv", settings.kv_type]

    def one() -> Times:
        found = batched_bench(command)
        return Times(found["t"], found["t_pp"], found["t_tg"] / work.answer)

    yield OpenedSide(one)


# The names that `--against` takes.

_LOOPING = "llama_cpp.Llama"
# Of libraries: the module, the loop, whose files they take, and whether a folder of their own may
# be named after the equals sign; those that take nobody's files need one.
_LIBRARIES: dict[str, tuple[str, str, str | None, bool]] = {
    "llama-cpp-python": ("llama_cpp", _LOOPING, "llamacpp", False),
    "onnxruntime-genai": ("onnxruntime_genai", "batched onnxruntime-genai", "onnx", False),
    "openvino-genai": ("openvino_genai", "openvino-genai", "llamacpp", True),
    "transformers": ("transformers", "transformers", None, True),
}
NAMES = ("ingot-serve", "llama-server", "llama-batched-bench", *_LIBRARIES)


def sides(asked: Sequence[str], options: BenchOptions) -> list[SweepSide]:
    """Ingot, and those named ("NAME", "NAME=WHERE" or a URL). Raises RequestError for one that is
    not known, or not here."""
    return [SweepSide(OURS, _ingot), *(_side(text.strip(), options) for text in asked)]


def _side(text: str, options: BenchOptions) -> SweepSide:
    if re.match("https?://", text):
        url = text.rstrip("/").removesuffix("/v1")
        return SweepSide(url, partial(_remote, url))
    name, _, where = text.partition("=")
    if name == "ingot-serve":
        return SweepSide(
            name, partial(_server, lambda work: IngotServer(work.model, work.settings))
        )
    if name == "llama-server":
        program = _program(name, where, options.llama_server)
        start = lambda work: LlamaServer(program, work.model, work.settings)  # noqa: E731
        return SweepSide(name, partial(_server, start), "llamacpp")
    if name == "llama-batched-bench":
        program = _program(name, where, options.batched_bench)
        return SweepSide(name, partial(_batched_bench, program), "llamacpp")
    if name not in _LIBRARIES:
        raise RequestError(f"--against {name!r}: known are {', '.join(NAMES)}, and a server's URL")
    module, loop, runtime, own = _LIBRARIES[name]
    if find_spec(module) is None:
        raise RequestError(f"--against {name}: it is not installed here")
    if where and not own:
        raise RequestError(f"--against {name} takes no folder")
    if not where and runtime is None:
        raise RequestError(f"--against {name} needs a folder of its own: =FOLDER")
    runtime = None if where else runtime
    return SweepSide(name, partial(_loop, loop, where), runtime, one_by_one=loop == _LOOPING)


def _program(name: str, where: str, known: Path | None) -> Path:
    found = shutil.which(where or str(known or name))
    if found is None:
        raise RequestError(
            f"--against {name}: there is no such program; {name}=PROGRAM names it, and"
            f" {HOW_TO_BUILD}"
        )
    return Path(found)
