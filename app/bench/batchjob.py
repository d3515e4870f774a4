"""`ingot batch` against rows in lockstep, a loop over `llama_cpp.Llama`, and `llama-server`.

Every side gets the same token ids on the same threads, and makes as many tokens of each row.
Loading is not counted. The command's time is that of its own report, from the first row to the
last.
"""

import json
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.bench.llama_server import LlamaServer
from app.bench.options import BenchOptions, Result, in_turn, median, rounded
from app.bench.prompts import read_texts
from app.bench.tools import tail
from app.bench.work import TOGETHER, loaded, lockstep
from runtimes.errors import IngotError
from runtimes.machine import processes
from runtimes.machine.linechild import LineChild
from runtimes.settings import RunnerSettings

_WARM_UP = [[7] * 8]
_WORDS = (
    "river stone window paper garden music winter letter engine number silver forest bridge "
    "morning answer question market island colour summer kitchen doctor shadow village machine"
).split()


@dataclass(frozen=True, slots=True)
class _Work:
    """What every side does."""

    path: Path
    settings: RunnerSettings
    texts: list[str]
    prompts: list[list[int]]  # the texts' tokens
    tokens: int  # made for each
    server: Path | None


def batch_job(path: Path, options: BenchOptions) -> Result:
    """Every side in turn, ``options.repeats`` rounds."""
    texts = _texts(options)
    with loaded(path, options.settings(8, rows=1)) as engine:
        prompts = [engine.encode(text) for text in texts]
    settings = options.settings(max(map(len, prompts)) + options.decode_tokens + 1)
    work = _Work(path, settings, texts, prompts, options.decode_tokens, options.llama_server)
    sides: dict[str, Callable[[_Work], float]] = {"lockstep": _lockstep}
    if path.suffix == ".gguf":
        sides["llama_loop"] = _loop
        if options.llama_server is not None:
            sides["llama_server"] = _server
    batch_s: list[float] = []
    batch_tps: list[float] = []
    theirs: dict[str, list[float]] = {"lockstep": [], "llama_loop": [], "llama_server": []}
    for _, side in in_turn(["batch", *sides], options.repeats):
        if side == "batch":
            seconds, tps = _batch(work)
            batch_s.append(seconds)
            batch_tps.append(tps)
        else:
            theirs[side].append(sides[side](work))
    return _result(work, batch_s, batch_tps, theirs)


def _result(
    work: _Work, batch_s: list[float], batch_tps: list[float], theirs: dict[str, list[float]]
) -> Result:
    """Above 1, the command is faster: tokens a second of decode steps, or seconds for all rows."""
    rows, settings = len(work.prompts), work.settings
    prompt_tokens = sum(map(len, work.prompts))
    sides = {
        "lockstep": "rows in lockstep {:.1f} tok/s",
        "llama_loop": "one row after another through llama_cpp.Llama {:.1f} s",
        "llama_server": "llama-server {:.1f} s",
    }
    ratios: dict[str, list[float]] = {}
    lines = [
        f"{rows} rows, {prompt_tokens} prompt tokens in all, {work.tokens} "
        f"generated for each, {settings.slots} slots, {settings.threads} threads: "
        f"ingot batch {median(batch_s):.1f} s, decode {median(batch_tps):.1f} tok/s"
    ]
    for side, title in sides.items():
        if not (samples := theirs[side]):
            continue
        over, under = (batch_tps, samples) if side == "lockstep" else (samples, batch_s)
        values = [a / b for a, b in zip(over, under, strict=True)]
        ratios[f"of_{side}"] = rounded(values)
        lines.append(
            f"  {title.format(median(samples))}: {median(values):.3f} times that "
            f"(rounds: {', '.join(f'{value:.3f}' for value in values)})"
        )
    figures = {
        "rows": rows,
        "slots": settings.slots,
        "context": settings.context,
        "threads": settings.threads,
        "prompt_tokens": prompt_tokens,
        "decode_tokens": work.tokens,
        "batch_seconds": rounded(batch_s),
        "batch_decode_tps": rounded(batch_tps),
        "lockstep_decode_tps": rounded(theirs["lockstep"]),
        "llama_loop_seconds": rounded(theirs["llama_loop"]),
        "llama_server_seconds": rounded(theirs["llama_server"]),
        "ratios": ratios,
    }
    return Result(figures, lines)


def _texts(options: BenchOptions) -> list[str]:
    if options.prompts is not None:
        return read_texts(options.prompts)
    dice = random.Random(options.requests)
    words = max(1, options.prompt_tokens // 2)
    return [" ".join(dice.choices(_WORDS, k=words)) for _ in range(options.requests)]


def _batch(work: _Work) -> tuple[float, float]:
    """The command as a user types it, on OpenAI completion requests: they can ignore the end.

    Seconds for all rows, and decoded tokens a second of decode steps.
    """
    settings = work.settings
    with tempfile.TemporaryDirectory(prefix="ingot-bench-") as folder:
        rows = Path(folder) / "rows.jsonl"
        with rows.open("w", encoding="utf-8") as file:
            for number, text in enumerate(work.texts):
                body = {"prompt": text, "max_tokens": work.tokens, "ignore_eos": True}
                row = {"custom_id": f"{number}", "method": "POST", "url": "/v1/completions"}
                file.write(json.dumps({**row, "body": body}) + "\n")
        report = Path(folder) / "report.json"
        command: list[object] = ["-m", "app", "batch", rows]
        command += [Path(folder) / "out.jsonl", "--model", work.path, "--report", report, "--quiet"]
        command += ["--slots", settings.slots, "--context", settings.context]
        command += ["--threads", settings.threads, "--split-kv", "--profile", "throughput"]
        done = processes.run(*command, capture_output=True)
        if done.returncode != 0:
            raise IngotError(f"ingot batch failed:\n{tail(done.stderr)}")
        summary = json.loads(report.read_text())["summary"]
    made = len(work.texts) * work.tokens
    if summary["completion_tokens"] != made:
        raise IngotError(f"the batch made {summary['completion_tokens']} tokens instead of {made}")
    return summary["run_s"], summary["decode_tps"]


def _lockstep(work: _Work) -> float:
    """Decoded tokens a second."""
    mean = round(sum(map(len, work.prompts)) / len(work.prompts))
    together = [(prompt * mean)[:mean] for prompt in work.prompts[: work.settings.slots]]
    with loaded(work.path, work.settings, TOGETHER) as engine:
        return lockstep(engine, together, work.tokens).wall_tps


def _loop(work: _Work) -> float:
    """Seconds for all rows."""
    settings = work.settings
    words = (work.path, settings.threads, settings.context, settings.batch)
    with LineChild("app.bench.llama_loop_child", *words, name="llama_cpp.Llama") as child:
        child.answer()
        child.ask({"prompts": _WARM_UP, "tokens": 3})
        answer = child.ask({"prompts": work.prompts, "tokens": work.tokens})
    return float(answer["seconds"])


def _server(work: _Work) -> float:
    """Seconds for all rows."""
    assert work.server is not None
    slots = work.settings.slots
    with LlamaServer(work.server, work.path, work.settings) as server:
        server.complete(_WARM_UP * slots, 3, slots)
        begin = time.perf_counter()
        server.complete(work.prompts, work.tokens, 2 * slots)
        return time.perf_counter() - begin
