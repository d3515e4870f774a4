"""The chat screen: a recorded stream with keys pressed meanwhile, a long chat, and decode speed in
the app against `ingot run`.

Each run is the app in a process and a terminal of its own (``app.tui.measure.child``), as a user
has it; the keys are written to that terminal.
"""

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.bench.options import BenchOptions, Result, in_turn, median, paired
from app.bench.terminal import Ran, run_in_terminal
from runtimes.errors import IngotError

RATE = 200.0  # tokens per second of the recorded stream
KEYS = 5.0  # a second
_WHILE_LEAVING = 1
_PROMPT = "Tell me a long story about a river, and leave nothing out."
_MESSAGES = 1000
_DECODE = re.compile(r"decode ([\d,.]+) tok/s \((\d+) tokens\)")


def tui(path: Path, options: BenchOptions) -> Result:
    """Measure; ``options.seconds`` for each recorded stream, ``options.decode_tokens`` for each
    answer of the model in ``path``. Raises IngotError when the app does not start here."""
    results = [_streamed(kind, options.seconds) for kind in ("code", "prose")]
    results.append(_long_chat(_MESSAGES))
    command: list[float] = []
    app: list[float] = []
    shares: list[float] = []
    for _, side in in_turn(("command", "app"), options.repeats):
        if side == "command":
            command.append(_by_command(path, options.decode_tokens))
            continue
        given, _ = _child("ask", str(path), str(options.decode_tokens), _PROMPT)
        app.append(float(given["decode_tps"]))
        shares.append(float(given["thread_share"]))
    ratio = paired(app, command)
    figures = {
        "streams": [result.figures for result in results[:-1]],
        "long_chat": results[-1].figures,
        "decode_tps": [{"run": a, "app": b} for a, b in zip(command, app, strict=True)],
        "decode_ratio": round(ratio, 4),
        "core_share": [round(share, 4) for share in shares],
    }
    lines = [line for result in results for line in result.lines]
    lines.append(
        f"decode in the app against `ingot run`: {100 * (ratio - 1):+.1f}% "
        f"({len(app)} pairs; the screen took {100 * median(shares):.1f}% of a core)"
    )
    return Result(figures, lines)


def _streamed(kind: str, seconds: float) -> Result:
    """A recorded stream of a kind (see ``app.tui.measure.recorded``): words that were not shown or
    shown twice, the time from writing each key to its effect, processor time of the app's thread.
    """
    given, ran = _child("stream", kind, str(seconds), str(RATE), keys=KEYS)
    key_ms = [1e3 * s for s in _latencies(ran.keys, given["keys"])]
    half, most, slowest = _within(key_ms)
    figures = {
        "kind": kind,
        "seconds": round(given["wall_s"], 2),
        "tokens": given["tokens"],
        "words_lost": given["lost"],
        "stored": given["stored"],
        "core_share": round(given["thread_share"], 4),
        "pictures_per_s": round(given["layouts_per_s"], 2),
        "keys_sent": len(ran.keys),
        "key_p50_ms": round(half, 1),
        "key_p95_ms": round(most, 1),
        "key_ms": [round(ms, 1) for ms in key_ms],
    }
    complete = given["stored"] and not given["lost"]
    lost = "nothing lost" if complete else f"{given['lost']} words lost"
    line = (
        f"{kind}: {given['tokens']:,} tokens in {given['wall_s']:.1f} s, {lost}; "
        f"{len(key_ms)} of {len(ran.keys)} keys, half within {half:.0f} ms, "
        f"95% within {most:.0f} ms, the slowest {slowest:.0f} ms; "
        f"{100 * given['thread_share']:.1f}% of a core, "
        f"{given['layouts_per_s']:.1f} pictures a second"
    )
    return Result(figures, [line])


def _long_chat(messages: int) -> Result:
    """A chat of so many messages opened, then scrolled up; times from scrolling to the picture."""
    given, _ = _child("long", str(messages))
    frames_ms = [1e3 * s for s in given["frames_s"]]
    half, most, slowest = _within(frames_ms)
    figures = {
        "messages": messages,
        "open_s": round(given["open_s"], 3),
        "open_cpu_s": round(given["open_cpu_s"], 3),
        "frames_ms": [round(ms, 1) for ms in frames_ms],
        "mounted": given["mounted"],
    }
    line = (
        f"{messages:,} messages: open in {given['open_s']:.2f} s ({given['open_cpu_s']:.2f} s of "
        f"processor), {len(frames_ms)} pictures of scrolling: half within {half:.0f} ms, "
        f"95% within {most:.0f} ms, the slowest {slowest:.0f} ms; "
        f"{given['mounted']} messages mounted"
    )
    return Result(figures, [line])


def _within(samples: Sequence[float]) -> tuple[float, float, float]:
    """What half of the samples, 95% and all of them keep to."""
    ordered = sorted(samples)
    last = len(ordered) - 1
    return ordered[min(last, len(ordered) // 2)], ordered[int(0.95 * len(ordered))], ordered[last]


def _latencies(sent: list[float], seen: list[list[float]]) -> tuple[float, ...]:
    """Seconds from each key to the prompt being so long. None may be missing but those that were
    pressed while the app was leaving."""
    found, effects = [], iter(seen)
    length, at = 0.0, 0.0
    for number, pressed in enumerate(sent, 1):
        while length < number:
            length, at = next(effects, (float("inf"), 0.0))
        if length == float("inf"):
            break
        found.append(at - pressed)
    if len(sent) - len(found) > _WHILE_LEAVING or not found:
        raise IngotError(f"{len(sent)} keys were pressed, {len(found)} had an effect")
    return tuple(found)


def _child(job: str, *arguments: str, keys: float = 0.0) -> tuple[dict[str, Any], Ran]:
    """What the child wrote down, and how it ran."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        words = ("app.tui.measure.child", job, out, *arguments)
        ran = run_in_terminal(*words, keys_per_s=keys, ready=Path(f"{out}.ready"))
        if ran.code != 0 or not out.is_file():
            raise IngotError(f"the app ended with exit code {ran.code}: {ran.last}")
        return json.loads(out.read_text(encoding="utf-8")), ran


def _by_command(path: Path, tokens: int) -> float:
    """Decode speed that `ingot run` tells for the same prompt, its answer drawn on a terminal."""
    ran = run_in_terminal("app", "run", path, _PROMPT, "--max-tokens", tokens, "--temperature", "0")
    found = _DECODE.search(ran.last.replace("\r", "").replace("\n", " "))
    if ran.code != 0 or found is None:
        raise IngotError(f"`ingot run` ended with exit code {ran.code}: {ran.last}")
    return float(found[1].replace(",", ""))
