"""The chat screen: a recorded stream with keys pressed meanwhile, a long chat, and decode speed in
the app against `ingot run`.

Each run is the app in a process and a terminal of its own (``app.tui.measure``), as a user
has it; the keys are written to that terminal.
"""

import bisect
import json
import re
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from app.bench.harness import BenchOptions, Result, Samples, in_turn
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
    streams = [_streamed(kind, options.seconds) for kind in ("code", "prose")]
    long_chat = _long_chat(_MESSAGES)
    sides: dict[str, Callable[[int], tuple[float, float]]] = {
        "run": partial(_by_command, path, options.decode_tokens),
        "app": partial(_by_app, path, options.decode_tokens),
    }
    taken = in_turn(sides, options.repeats)
    command, app = (Samples(tps for tps, _ in samples) for samples in taken.values())
    shares = Samples(share for _, share in taken["app"])
    ratio = (app / command).median
    figures = {
        "streams": [stream.figures for stream in streams],
        "long_chat": long_chat.figures,
        "decode_tps": [{"run": a, "app": b} for a, b in zip(command, app, strict=True)],
        "decode_ratio": ratio,
        "core_share": shares,
    }
    lines = [line for result in (*streams, long_chat) for line in result.lines]
    lines.append(
        f"decode in the app against `ingot run`: {ratio - 1:+.1%} "
        f"({len(app)} pairs; the screen took {shares:.1%} of a core)"
    )
    return Result(figures, lines)


def _streamed(kind: str, seconds: float) -> Result:
    """A recorded stream of a kind (see ``app.tui.measure``): words that were not shown or
    shown twice, the time from writing each key to its effect, processor time of the app's thread.
    """
    given, ran = _child("stream", kind, str(seconds), str(RATE), keys=KEYS)
    key_ms = _latencies_ms(ran.keys, given.pop("keys"))
    half, most, words = _within(key_ms)
    figures = {
        "kind": kind,
        **given,
        "keys_sent": len(ran.keys),
        "key_p50_ms": half,
        "key_p95_ms": most,
        "key_ms": key_ms,
    }
    complete = given["stored"] and not given["words_lost"]
    lost = "nothing lost" if complete else f"{given['words_lost']} words lost"
    line = (
        f"{kind}: {given['tokens']:,} tokens in {given['seconds']:.1f} s, {lost}; "
        f"{len(key_ms)} of {len(ran.keys)} keys, {words}; {given['core_share']:.1%} of a core, "
        f"{given['pictures_per_s']:.1f} pictures a second"
    )
    return Result(figures, [line])


def _long_chat(messages: int) -> Result:
    """A chat of so many messages opened, then scrolled up; times from scrolling to the picture."""
    given, _ = _child("long", str(messages))
    frames_ms = [1e3 * s for s in given["frames_s"]]
    told = {name: given[name] for name in ("open_s", "open_cpu_s", "mounted")}
    line = (
        f"{messages:,} messages: open in {given['open_s']:.2f} s ({given['open_cpu_s']:.2f} s of "
        f"processor), {len(frames_ms)} pictures of scrolling: {_within(frames_ms)[2]}; "
        f"{given['mounted']} messages mounted"
    )
    return Result({"messages": messages, **told, "frames_ms": frames_ms}, [line])


def _within(samples_ms: list[float]) -> tuple[float, float, str]:
    """What half of the samples and 95% of them keep to, and that in words."""
    ordered = sorted(samples_ms)
    half, most = ordered[len(ordered) // 2], ordered[int(0.95 * (len(ordered) - 1))]
    words = f"half within {half:.0f} ms, 95% within {most:.0f} ms, the slowest {ordered[-1]:.0f} ms"
    return half, most, words


def _latencies_ms(sent: list[float], seen: list[list[float]]) -> list[float]:
    """From each key to the prompt being so long; ``seen`` are lengths and when each was there. None
    may be missing but those that were pressed while the app was leaving."""
    lengths = [length for length, _ in seen]
    found = []
    for number, pressed in enumerate(sent, 1):
        first = bisect.bisect_left(lengths, number)
        if first == len(seen):
            break
        found.append(1e3 * (seen[first][1] - pressed))
    if len(sent) - len(found) > _WHILE_LEAVING or not found:
        raise IngotError(f"{len(sent)} keys were pressed, {len(found)} had an effect")
    return found


def _child(job: str, *arguments: str, keys: float = 0.0) -> tuple[dict[str, Any], Ran]:
    """What the child wrote down, and how it ran."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        words = ("app.tui.measure", job, out, *arguments)
        ran = run_in_terminal(*words, keys_per_s=keys, ready=Path(f"{out}.ready"))
        if ran.code != 0 or not out.is_file():
            raise IngotError(f"the app ended with exit code {ran.code}: {ran.last}")
        return json.loads(out.read_text(encoding="utf-8")), ran


def _by_app(path: Path, tokens: int, _: int) -> tuple[float, float]:
    """Decode speed, and the share of a core that the app's thread took."""
    given, _ran = _child("ask", str(path), str(tokens), _PROMPT)
    return float(given["decode_tps"]), float(given["core_share"])


def _by_command(path: Path, tokens: int, _: int) -> tuple[float, float]:
    """Decode speed that `ingot run` tells for the same prompt, its answer drawn on a terminal."""
    ran = run_in_terminal("app", "run", path, _PROMPT, "--max-tokens", tokens, "--temperature", "0")
    found = _DECODE.search(ran.last.replace("\r", "").replace("\n", " "))
    if ran.code != 0 or found is None:
        raise IngotError(f"`ingot run` ended with exit code {ran.code}: {ran.last}")
    return float(found[1].replace(",", "")), 0.0
