"""The chat screen: a recorded stream with keys pressed meanwhile, a long chat, and decode speed in
the app against `ingot run`.

Each run is the app in a process and a terminal of its own (``app.tui.measure.child``), as a user
has it; the keys are written to that terminal.
"""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.options import BenchOptions, median
from app.bench.terminal import Ran, run_in_terminal
from runtimes.errors import IngotError

RATE = 200.0  # tokens per second of the recorded stream
KEYS = 5.0  # a second
_WHILE_LEAVING = 1
_PROMPT = "Tell me a long story about a river, and leave nothing out."
_MESSAGES = 1000
_DECODE = re.compile(r"decode ([\d,.]+) tok/s \((\d+) tokens\)")


@dataclass(frozen=True, slots=True)
class Streamed:
    """One recorded stream. ``lost`` are words that were not shown, or twice; ``key_s`` the seconds
    from writing each key to its effect; ``share`` processor time of the app's thread over time."""

    kind: str
    seconds: float
    tokens: int
    lost: int
    stored: bool
    share: float
    layouts_per_s: float
    key_s: tuple[float, ...]
    keys_sent: int

    def key_ms(self, share: float) -> float:
        """The time within which that share of the keys took effect."""
        return 1e3 * sorted(self.key_s)[min(len(self.key_s) - 1, int(share * len(self.key_s)))]

    def line(self) -> str:
        """For people."""
        lost = f"{self.lost} words lost" if self.lost or not self.stored else "nothing lost"
        return (
            f"{self.kind}: {self.tokens:,} tokens in {self.seconds:.1f} s, {lost}; "
            f"{len(self.key_s)} of {self.keys_sent} keys, half within {self.key_ms(0.5):.0f} ms, "
            f"95% within {self.key_ms(0.95):.0f} ms, the slowest {self.key_ms(1):.0f} ms; "
            f"{100 * self.share:.1f}% of a core, {self.layouts_per_s:.1f} pictures a second"
        )


@dataclass(frozen=True, slots=True)
class LongChat:
    """A chat opened, then scrolled up; ``frames_s`` from scrolling to the painted picture."""

    messages: int
    open_s: float
    open_cpu_s: float
    frames_s: tuple[float, ...]
    mounted: int

    def line(self) -> str:
        """For people."""
        frames = sorted(self.frames_s)
        late = frames[int(0.95 * len(frames))]
        return (
            f"{self.messages:,} messages: open in {self.open_s:.2f} s ({self.open_cpu_s:.2f} s of "
            f"processor), {len(frames)} pictures of scrolling: half within "
            f"{1e3 * frames[len(frames) // 2]:.0f} ms, 95% within {1e3 * late:.0f} ms, the slowest "
            f"{1e3 * frames[-1]:.0f} ms; {self.mounted} messages mounted"
        )


@dataclass(frozen=True, slots=True)
class TuiResult:
    """``pairs`` are decode tokens a second of `ingot run` and of the app, taken in turn."""

    streams: tuple[Streamed, ...]
    long: LongChat
    pairs: tuple[tuple[float, float], ...]
    shares: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The app over `ingot run`; the median of the pairs."""
        return median([app / run for run, app in self.pairs])

    def to_json(self) -> dict[str, Any]:
        """Every sample."""
        return {
            "streams": [
                {
                    "kind": one.kind,
                    "seconds": round(one.seconds, 2),
                    "tokens": one.tokens,
                    "words_lost": one.lost,
                    "stored": one.stored,
                    "core_share": round(one.share, 4),
                    "pictures_per_s": round(one.layouts_per_s, 2),
                    "keys_sent": one.keys_sent,
                    "key_p50_ms": round(one.key_ms(0.5), 1),
                    "key_p95_ms": round(one.key_ms(0.95), 1),
                    "key_ms": [round(1e3 * s, 1) for s in one.key_s],
                }
                for one in self.streams
            ],
            "long_chat": {
                "messages": self.long.messages,
                "open_s": round(self.long.open_s, 3),
                "open_cpu_s": round(self.long.open_cpu_s, 3),
                "frames_ms": [round(1e3 * s, 1) for s in self.long.frames_s],
                "mounted": self.long.mounted,
            },
            "decode_tps": [{"run": run, "app": app} for run, app in self.pairs],
            "decode_ratio": round(self.ratio, 4),
            "core_share": [round(share, 4) for share in self.shares],
        }

    def lines(self) -> list[str]:
        """For people."""
        shares = 100 * median(self.shares)
        return [
            *(one.line() for one in self.streams),
            self.long.line(),
            f"decode in the app against `ingot run`: {100 * (self.ratio - 1):+.1f}% "
            f"({len(self.pairs)} pairs; the screen took {shares:.1f}% of a core)",
        ]


def tui(path: Path, options: BenchOptions) -> TuiResult:
    """Measure; ``options.seconds`` for each recorded stream, ``options.decode_tokens`` for each
    answer of the model in ``path``. Raises IngotError when the app does not start here."""
    streams = tuple(streamed(kind, options.seconds) for kind in ("code", "prose"))
    long = long_chat(_MESSAGES)
    pairs, shares = [], []
    for number in range(options.repeats):
        # Whoever comes first finds other caches; so each does in turn.
        order = ("run", "app") if number % 2 == 0 else ("app", "run")
        taken: dict[str, float] = {}
        for side in order:
            if side == "run":
                taken[side] = _by_command(path, options.decode_tokens)
            else:
                given = _child("ask", str(path), str(options.decode_tokens), _PROMPT).result
                taken[side] = float(given["decode_tps"])
                shares.append(float(given["thread_share"]))
        pairs.append((taken["run"], taken["app"]))
    return TuiResult(streams, long, tuple(pairs), tuple(shares))


@dataclass(frozen=True, slots=True)
class Job:
    """What the child wrote down, and the keys that were pressed."""

    result: dict[str, Any]
    ran: Ran


def streamed(kind: str, seconds: float, rate: float = RATE) -> Streamed:
    """A recorded stream of a kind (see ``app.tui.measure.recorded``)."""
    job = _child("stream", kind, str(seconds), str(rate), keys=KEYS)
    given = job.result
    return Streamed(
        kind,
        given["wall_s"],
        given["tokens"],
        given["lost"],
        given["stored"],
        given["thread_share"],
        given["layouts_per_s"],
        _latencies(job.ran.keys, given["keys"]),
        len(job.ran.keys),
    )


def long_chat(messages: int) -> LongChat:
    """A chat of so many messages."""
    given = _child("long", str(messages)).result
    return LongChat(
        messages, given["open_s"], given["open_cpu_s"], tuple(given["frames_s"]), given["mounted"]
    )


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


def _child(job: str, *arguments: str, keys: float = 0.0) -> Job:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        words = ("app.tui.measure.child", job, out, *arguments)
        ran = run_in_terminal(*words, keys_per_s=keys, ready=Path(f"{out}.ready"))
        if ran.code != 0 or not out.is_file():
            raise IngotError(f"the app ended with exit code {ran.code}: {ran.last}")
        return Job(json.loads(out.read_text(encoding="utf-8")), ran)


def _by_command(path: Path, tokens: int) -> float:
    """Decode speed that `ingot run` tells for the same prompt, its answer drawn on a terminal."""
    ran = run_in_terminal("app", "run", path, _PROMPT, "--max-tokens", tokens, "--temperature", "0")
    found = _DECODE.search(ran.last.replace("\r", "").replace("\n", " "))
    if ran.code != 0 or found is None:
        raise IngotError(f"`ingot run` ended with exit code {ran.code}: {ran.last}")
    return float(found[1].replace(",", ""))
