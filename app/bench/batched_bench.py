"""One run of llama.cpp's `llama-batched-bench`: rows that decode in lockstep, without sampling."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from app.bench.tools import tail
from runtimes.errors import IngotError
from runtimes.settings import RunnerSettings

_LIMIT_S = 900.0
# Its log thread is not waited for when it ends, so that now and then a run prints nothing
# (common/log.cpp: "logs to be lost if not flushed before the program exits").
_TRIES = 5


@dataclass(frozen=True, slots=True)
class BatchedBench:
    """One line of its report: what it ran with, and tokens a second of all rows together."""

    threads: int
    cells: int  # of the whole cache
    batch: int
    ubatch: int
    flash_attention: int  # -1 auto, 0 off, 1 on
    prompt_tokens: int
    decode_tokens: int
    rows: int
    prefill_tps: float
    decode_tps: float


def run_batched_bench(
    program: Path,
    model: Path,
    settings: RunnerSettings,
    *,
    prompt_tokens: int,
    decode_tokens: int,
) -> BatchedBench:
    """Decode ``settings.slots`` rows. Raises IngotError with its last lines when it fails."""
    slots, context = settings.slots, settings.context or 0
    # Flash attention: "auto" is both sides' default, written out so that it stays equal.
    arguments: dict[str, object] = {
        "-m": model,
        "-c": slots * context,
        "-b": settings.batch,
        "-ub": settings.batch,
        "-t": settings.threads,
        "-tb": settings.threads,
        "-fa": "auto",
        "-npp": prompt_tokens,
        "-ntg": decode_tokens,
        "-npl": slots,
        "--output-format": "jsonl",
    }
    command = [str(program), *(str(word) for pair in arguments.items() for word in pair)]
    if settings.unified_kv:
        command.append("-kvu")
    for _ in range(_TRIES):
        output = _run(command)
        if output.strip():
            break
    return parse(output)


def _run(command: list[str]) -> str:
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
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


def parse(output: str) -> BatchedBench:
    """The figures in what `--output-format jsonl` prints. Raises IngotError if there are none."""
    found = [line for line in output.splitlines() if line.startswith('{"n_kv_max"')]
    if len(found) != 1:
        raise IngotError(
            f"llama-batched-bench gave {len(found)} results instead of one:\n{tail(output)}"
        )
    line = json.loads(found[0])
    return BatchedBench(
        threads=line["n_threads"],
        cells=line["n_kv_max"],
        batch=line["n_batch"],
        ubatch=line["n_ubatch"],
        flash_attention=line["flash_attn"],
        prompt_tokens=line["pp"],
        decode_tokens=line["tg"],
        rows=line["pl"],
        prefill_tps=line["speed_pp"],
        decode_tps=line["speed_tg"],
    )
