"""`ingot batch` against rows in lockstep, a loop over `llama_cpp.Llama`, and `llama-server`.

Every side gets the same token ids on the same threads, and makes as many tokens of each row.
Loading is not counted. The command's time is that of its own report, from the first row to the
last.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.llama_server import LlamaServer
from app.bench.options import BenchOptions, median, rounded
from app.bench.prompts import read_texts
from app.bench.tools import tail
from app.bench.work import loaded, lockstep
from runtimes.errors import IngotError
from runtimes.machine import processes
from runtimes.machine.linechild import LineChild
from runtimes.settings import RunnerSettings, SchedulerSettings

_TOGETHER = SchedulerSettings(max_stall_s=None, prefix_cache=False)
_WARM_UP = [[7] * 8]
_WORDS = (
    "river stone window paper garden music winter letter engine number silver forest bridge "
    "morning answer question market island colour summer kitchen doctor shadow village machine"
).split()


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A sample a round. ``batch_s``, ``loop_s`` and ``server_s`` are seconds for all rows;
    ``batch_tps`` and ``lockstep_tps`` decoded tokens a second of decode steps. ``loop_s`` is empty
    for ONNX files, ``server_s`` also when no server was named.
    """

    settings: RunnerSettings
    rows: int
    prompt_tokens: int
    decode_tokens: int
    batch_s: list[float]
    batch_tps: list[float]
    lockstep_tps: list[float]
    loop_s: list[float]
    server_s: list[float]

    def ratios(self) -> dict[str, list[float]]:
        """Of each round: above 1, the command is faster."""
        found = {
            "of_lockstep": [a / b for a, b in zip(self.batch_tps, self.lockstep_tps, strict=True)]
        }
        for name, theirs in (("of_llama_loop", self.loop_s), ("of_llama_server", self.server_s)):
            if theirs:
                found[name] = [a / b for a, b in zip(theirs, self.batch_s, strict=True)]
        return found

    def to_json(self) -> dict[str, Any]:
        """Every sample."""
        return {
            "rows": self.rows,
            "slots": self.settings.slots,
            "context": self.settings.context,
            "threads": self.settings.threads,
            "prompt_tokens": self.prompt_tokens,
            "decode_tokens": self.decode_tokens,
            "batch_seconds": rounded(self.batch_s),
            "batch_decode_tps": rounded(self.batch_tps),
            "lockstep_decode_tps": rounded(self.lockstep_tps),
            "llama_loop_seconds": rounded(self.loop_s),
            "llama_server_seconds": rounded(self.server_s),
            "ratios": {name: rounded(values) for name, values in self.ratios().items()},
        }

    def lines(self) -> list[str]:
        """For people: a line for each comparison."""
        text = [
            f"{self.rows} rows, {self.prompt_tokens} prompt tokens in all, {self.decode_tokens} "
            f"generated for each, {self.settings.slots} slots, {self.settings.threads} threads: "
            f"ingot batch {median(self.batch_s):.1f} s, decode {median(self.batch_tps):.1f} tok/s"
        ]
        sides = {
            "of_lockstep": f"rows in lockstep {median(self.lockstep_tps):.1f} tok/s",
            "of_llama_loop": "one row after another through llama_cpp.Llama "
            f"{median(self.loop_s or [0]):.1f} s",
            "of_llama_server": f"llama-server {median(self.server_s or [0]):.1f} s",
        }
        for name, values in self.ratios().items():
            shown = ", ".join(f"{value:.3f}" for value in values)
            text.append(f"  {sides[name]}: {median(values):.3f} times that (rounds: {shown})")
        return text


def batch_job(path: Path, options: BenchOptions) -> BatchResult:
    """Every side in turn, ``options.repeats`` rounds."""
    texts = _texts(options)
    llamacpp = path.suffix == ".gguf"
    with loaded(path, options.settings(8, rows=1)) as engine:
        prompts = [engine.encode(text) for text in texts]
    need = max(map(len, prompts)) + options.decode_tokens + 1
    settings = options.settings(need)
    result = BatchResult(
        settings, len(prompts), sum(map(len, prompts)), options.decode_tokens, [], [], [], [], []
    )
    for number in range(options.repeats):
        sides = [_batch, _lockstep, *([_loop] if llamacpp else [])]
        if llamacpp and options.llama_server is not None:
            sides.append(_server)
        # Back and forth, so that a machine that slows down favours neither side.
        for side in sides if number % 2 == 0 else reversed(sides):
            side(path, options, texts, prompts, result)
    return result


def _texts(options: BenchOptions) -> list[str]:
    if options.prompts is not None:
        return read_texts(options.prompts)
    dice = random.Random(options.requests)
    words = max(1, options.prompt_tokens // 2)
    return [" ".join(dice.choices(_WORDS, k=words)) for _ in range(options.requests)]


def _batch(
    path: Path, options: BenchOptions, texts: list[str], _: list[list[int]], result: BatchResult
) -> None:
    """The command as a user types it, on OpenAI completion requests: they can ignore the end."""
    settings = result.settings
    with tempfile.TemporaryDirectory(prefix="ingot-bench-") as folder:
        rows = Path(folder) / "rows.jsonl"
        with rows.open("w", encoding="utf-8") as file:
            for number, text in enumerate(texts):
                body = {"prompt": text, "max_tokens": options.decode_tokens, "ignore_eos": True}
                row = {"custom_id": f"{number}", "method": "POST", "url": "/v1/completions"}
                file.write(json.dumps({**row, "body": body}) + "\n")
        report = Path(folder) / "report.json"
        command: list[object] = ["-m", "app", "batch", rows]
        command += [Path(folder) / "out.jsonl", "--model", path, "--report", report, "--quiet"]
        command += ["--slots", settings.slots, "--context", settings.context]
        command += ["--threads", settings.threads, "--split-kv", "--profile", "throughput"]
        done = processes.run(*command, capture_output=True)
        if done.returncode != 0:
            raise IngotError(f"ingot batch failed:\n{tail(done.stderr)}")
        summary = json.loads(report.read_text())["summary"]
    made = len(texts) * options.decode_tokens
    if summary["completion_tokens"] != made:
        raise IngotError(f"the batch made {summary['completion_tokens']} tokens instead of {made}")
    result.batch_s.append(summary["run_s"])
    result.batch_tps.append(summary["decode_tps"])


def _lockstep(
    path: Path, options: BenchOptions, _: list[str], prompts: list[list[int]], result: BatchResult
) -> None:
    settings = result.settings
    mean = round(sum(map(len, prompts)) / len(prompts))
    together = [(prompt * mean)[:mean] for prompt in prompts[: settings.slots]]
    with loaded(path, settings, _TOGETHER) as engine:
        window = lockstep(engine, together, options.decode_tokens)
    result.lockstep_tps.append(window.wall_tps)


def _loop(
    path: Path, options: BenchOptions, _: list[str], prompts: list[list[int]], result: BatchResult
) -> None:
    settings = result.settings
    words = (path, settings.threads, settings.context, settings.batch)
    with LineChild("app.bench.llama_loop_child", *words, name="llama_cpp.Llama") as child:
        child.answer()
        child.ask({"prompts": _WARM_UP, "tokens": 3})
        answer = child.ask({"prompts": prompts, "tokens": options.decode_tokens})
    result.loop_s.append(answer["seconds"])


def _server(
    path: Path, options: BenchOptions, _: list[str], prompts: list[list[int]], result: BatchResult
) -> None:
    assert options.llama_server is not None
    slots = result.settings.slots
    with LlamaServer(options.llama_server, path, result.settings) as server:
        server.complete(_WARM_UP * slots, 3, slots)
        begin = time.perf_counter()
        server.complete(prompts, options.decode_tokens, 2 * slots)
        result.server_s.append(time.perf_counter() - begin)
