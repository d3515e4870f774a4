"""`ingot batch` against rows in lockstep, a loop over `llama_cpp.Llama`, and `llama-server`.

Every side gets the same token ids on the same threads, and makes as many tokens of each row.
Loading is not counted. The command's time is that of its own report, from the first row to the
last.
"""

import json
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.bench.harness import BenchOptions, BenchResult, Samples, in_turn, tail
from app.bench.llama_server import LlamaServer
from app.bench.prompts import read_texts
from app.bench.work import TOGETHER, loaded, lockstep, native_loop
from runtimes.errors import IngotError
from runtimes.machine import processes
from runtimes.settings import RunnerSettings

_WORDS = (
    "river stone window paper garden music winter letter engine number silver forest bridge "
    "morning answer question market island colour summer kitchen doctor shadow village machine"
).split()
_BY_SECONDS = {
    "llama_loop": "one row after another through llama_cpp.Llama",
    "llama_server": "llama-server",
}


@dataclass(frozen=True, slots=True)
class _Work:
    """What every side does. Each gives the seconds for all rows, and decoded tokens a second."""

    path: Path
    settings: RunnerSettings
    texts: list[str]
    prompts: list[list[int]]  # the texts' tokens
    tokens: int  # made for each
    program: Path | None  # llama-server

    def batch(self, _: int) -> tuple[float, float]:
        """The command as a user types it, on OpenAI completion requests: they can ignore the end.
        The speed is that of decode steps."""
        with tempfile.TemporaryDirectory(prefix="ingot-bench-") as folder:
            rows, report = Path(folder) / "rows.jsonl", Path(folder) / "report.json"
            with rows.open("w", encoding="utf-8") as file:
                for number, text in enumerate(self.texts):
                    body = {"prompt": text, "max_tokens": self.tokens, "ignore_eos": True}
                    row = {"custom_id": f"{number}", "method": "POST", "url": "/v1/completions"}
                    file.write(json.dumps({**row, "body": body}) + "\n")
            command: list[object] = ["-m", "app", "batch", rows, Path(folder) / "out.jsonl"]
            command += ["--model", self.path, "--report", report, "--quiet", "--split-kv"]
            command += ["--slots", self.settings.slots, "--context", self.settings.context]
            command += ["--threads", self.settings.threads, "--profile", "throughput"]
            done = processes.run(*command, capture_output=True)
            if done.returncode != 0:
                raise IngotError(f"ingot batch failed:\n{tail(done.stderr)}")
            summary = json.loads(report.read_text())["summary"]
        made, wanted = summary["completion_tokens"], len(self.texts) * self.tokens
        if made != wanted:
            raise IngotError(f"the batch made {made} tokens instead of {wanted}")
        return summary["run_s"], summary["decode_tps"]

    def lockstep(self, _: int) -> tuple[float, float]:
        """Only as many rows as there are slots, with prompts of the mean length."""
        mean = round(sum(map(len, self.prompts)) / len(self.prompts))
        together = [(prompt * mean)[:mean] for prompt in self.prompts[: self.settings.slots]]
        with loaded(self.path, self.settings, TOGETHER) as engine:
            window = lockstep(engine, together, self.tokens)
        return window.wall_s, window.wall_tps

    def llama_loop(self, _: int) -> tuple[float, float]:
        """One row after another."""
        settings = self.settings
        numbers = (settings.threads or 1, settings.context or 0, settings.batch)
        with native_loop("llama_cpp.Llama", self.path, *numbers) as loop:
            loop([[7] * 8], 3)
            return self._all(loop(self.prompts, self.tokens))

    def llama_server(self, _: int) -> tuple[float, float]:
        """Two requests a slot at a time."""
        assert self.program is not None
        with LlamaServer(self.program, self.path, self.settings) as server:
            return self._all(server.seconds(self.prompts, self.tokens))

    def _all(self, seconds: float) -> tuple[float, float]:
        return seconds, len(self.prompts) * self.tokens / seconds


def batch_job(path: Path, options: BenchOptions) -> BenchResult:
    """Every side in turn. Ratios are those of the rounds; above 1, the command is faster: tokens a
    second of decode steps against lockstep, else seconds for all rows."""
    texts = _texts(options)
    with loaded(path, options.settings(8, rows=1)) as engine:
        prompts = [engine.encode(text) for text in texts]
    settings = options.settings(max(map(len, prompts)) + options.decode_tokens + 1)
    work = _Work(path, settings, texts, prompts, options.decode_tokens, options.llama_server)
    sides: dict[str, Callable[[int], tuple[float, float]]] = {
        "batch": work.batch,
        "lockstep": work.lockstep,
    }
    if path.suffix == ".gguf":
        sides["llama_loop"] = work.llama_loop
        if options.llama_server is not None:
            sides["llama_server"] = work.llama_server
    taken = in_turn(sides, options.repeats)
    seconds = {side: Samples(took for took, _ in samples) for side, samples in taken.items()}
    tps = {side: Samples(speed for _, speed in samples) for side, samples in taken.items()}
    ratios = {"of_lockstep": tps["batch"] / tps["lockstep"]}
    titles = [f"rows in lockstep {tps['lockstep']:.1f} tok/s"]
    for side, title in _BY_SECONDS.items():
        if side in sides:
            ratios[f"of_{side}"] = seconds[side] / seconds["batch"]
            titles.append(f"{title} {seconds[side]:.1f} s")
    prompt_tokens = sum(map(len, prompts))
    lines = [
        f"{len(prompts)} rows, {prompt_tokens} prompt tokens in all, {work.tokens} "
        f"generated for each, {settings.slots} slots, {settings.threads} threads: "
        f"ingot batch {seconds['batch']:.1f} s, decode {tps['batch']:.1f} tok/s"
    ]
    for title, values in zip(titles, ratios.values(), strict=True):
        rounds = ", ".join(f"{value:.3f}" for value in values)
        lines.append(f"  {title}: {values:.3f} times that (rounds: {rounds})")
    figures = {
        "rows": len(prompts),
        "slots": settings.slots,
        "context": settings.context,
        "threads": settings.threads,
        "prompt_tokens": prompt_tokens,
        "decode_tokens": work.tokens,
        "batch_seconds": seconds["batch"],
        "batch_decode_tps": tps["batch"],
        "lockstep_decode_tps": tps["lockstep"],
        "llama_loop_seconds": seconds.get("llama_loop", Samples()),
        "llama_server_seconds": seconds.get("llama_server", Samples()),
        "ratios": ratios,
    }
    return BenchResult(figures, lines)


def _texts(options: BenchOptions) -> list[str]:
    if options.prompts is not None:
        return read_texts(options.prompts)
    dice = random.Random(options.requests)
    words = max(1, options.prompt_tokens // 2)
    return [" ".join(dice.choices(_WORDS, k=words)) for _ in range(options.requests)]
