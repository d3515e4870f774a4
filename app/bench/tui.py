"""The chat screen: a recorded stream with keys pressed meanwhile, a long chat, and decode speed in
the app against `ingot run`.

Each run is the app in a process and a terminal of its own (``app.tui.measure``), as a user
has it; the keys are written to that terminal.
"""

import bisect
import json
import os
import random
import re
import select
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from app.bench.frame import BenchResult, Figures, Samples, in_turn, samples
from app.bench.options import BenchOptions
from runtimes.errors import IngotError
from runtimes.machine.processes import Child

RATE = 200.0  # tokens per second of the recorded stream
KEYS = 5.0  # a second
_WHILE_LEAVING = 1
_PROMPT = "Tell me a long story about a river, and leave nothing out."
_MESSAGES = 1000
_DECODE = re.compile(r"decode ([\d,.]+) tok/s \((\d+) tokens\)")
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?<>=]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_LAST = 4000  # bytes of output that are kept
_LIMIT_S = 900.0
_FRAME = "◆ Ingot".encode()
_QUIT = b"\x11"  # ctrl+q
_SIZE = (40, 120)  # rows and columns


def tui(path: Path, options: BenchOptions) -> BenchResult:
    """Measure; ``options.seconds`` for each recorded stream, ``options.decode_tokens`` for each
    answer of the model in ``path``. Raises IngotError when the app does not start here."""
    streams = [_streamed(kind, options.seconds) for kind in ("code", "prose")]
    long_chat = _long_chat(_MESSAGES)
    paint = Samples(_first_paint(path) for _ in range(options.repeats))
    sides: dict[str, Callable[[int], tuple[float, float]]] = {
        "run": partial(_by_command, path, options.decode_tokens),
        "app": partial(_by_app, path, options.decode_tokens),
    }
    taken = in_turn(sides, options.repeats)
    command, app = samples(taken, lambda ran: ran[0]).values()
    shares = Samples(share for _, share in taken["app"])
    ratio = (app / command).median
    figures = {
        "streams": [stream.figures for stream in streams],
        "long_chat": long_chat.figures,
        "openings": {"first_paint_s": paint},
        "decode_tps": [{"run": a, "app": b} for a, b in zip(command, app, strict=True)],
        "decode_ratio": ratio,
        "core_share": shares,
    }
    lines = [line for result in (*streams, long_chat) for line in result.lines]
    lines.append(f"first paint {paint:.2f} s after the start")
    lines.append(
        f"decode in the app against `ingot run`: {ratio - 1:+.1%} "
        f"({len(app)} pairs; the screen took {shares:.1%} of a core)"
    )
    return BenchResult(figures, lines)


def _streamed(kind: str, seconds: float) -> BenchResult:
    """A recorded stream of a kind (see ``app.tui.measure``): words that were not shown or
    shown twice, the time from writing each key to its effect, processor time of the app's thread.
    """
    given, ran = _child("stream", kind, str(seconds), str(RATE), keys=KEYS)
    key_ms = _latencies_ms(ran.keys, given.pop("keys"))
    most, words = _within(key_ms)
    figures = {"kind": kind, **given, "keys_sent": len(ran.keys), "key_p95_ms": most}
    complete = given["stored"] and not given["words_lost"]
    lost = "nothing lost" if complete else f"{given['words_lost']} words lost"
    line = (
        f"{kind}: {given['tokens']:,} tokens in {given['seconds']:.1f} s, {lost}; "
        f"{len(key_ms)} of {len(ran.keys)} keys, {words}; {given['core_share']:.1%} of a core, "
        f"{given['pictures_per_s']:.1f} pictures a second"
    )
    return BenchResult(figures, [line])


def _long_chat(messages: int) -> BenchResult:
    """A chat of so many messages opened, then scrolled up; times from scrolling to the picture."""
    given, _ = _child("long", str(messages))
    frames = _within([1e3 * s for s in given.pop("frames_s")])[1]
    line = (
        f"{messages:,} messages: open in {given['open_s']:.2f} s ({given['open_cpu_s']:.2f} s of "
        f"processor), pictures of scrolling: {frames}; {given['mounted']} messages mounted"
    )
    return BenchResult({"messages": messages, **given}, [line])


def _first_paint(path: Path) -> float:
    """Seconds from the start of `ingot chat` to its frame on the terminal."""
    ran = _run_in_terminal("app", "chat", path, awaited=_FRAME, then=_QUIT)
    if ran.awaited_s is None:
        raise IngotError(f"the app was not drawn: {ran.last}")
    return ran.awaited_s


def _within(samples_ms: list[float]) -> tuple[float, str]:
    """The limit that 95% of the samples keep, and in words those of others."""
    ordered = sorted(samples_ms)
    half, most = ordered[len(ordered) // 2], ordered[int(0.95 * (len(ordered) - 1))]
    words = f"half within {half:.0f} ms, 95% within {most:.0f} ms, the slowest {ordered[-1]:.0f} ms"
    return most, words


def _latencies_ms(sent: list[float], seen: list[list[float]]) -> list[float]:
    """Milliseconds from each key to a prompt of that length; ``seen`` has lengths and their times.
    Only keys that were pressed while the app was leaving may have had no effect."""
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


@dataclass(frozen=True, slots=True)
class _Ran:
    """End of a program in a terminal that nobody looks at: its exit code, the monotonic
    times of keys pressed, the end of its output without escape sequences, and the seconds until it
    had written what was awaited."""

    code: int
    keys: list[float]
    last: str
    awaited_s: float | None = None


def _child(job: str, *arguments: str, keys: float = 0.0) -> tuple[Figures, _Ran]:
    """Figures that the child wrote, and how it ran."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        words = ("app.tui.measure", job, out, *arguments)
        ran = _run_in_terminal(*words, keys_per_s=keys, ready=Path(f"{out}.ready"))
        if ran.code != 0 or not out.is_file():
            raise IngotError(f"the app ended with exit code {ran.code}: {ran.last}")
        return json.loads(out.read_text(encoding="utf-8")), ran


def _by_app(path: Path, tokens: int, _: int) -> tuple[float, float]:
    """Decode speed, and the share of a core that the app's thread took."""
    given, _ran = _child("ask", str(path), str(tokens), _PROMPT)
    return float(given["decode_tps"]), float(given["core_share"])


def _by_command(path: Path, tokens: int, _: int) -> tuple[float, float]:
    """Decode speed that `ingot run` tells for the same prompt, its answer drawn on a terminal."""
    ran = _run_in_terminal(
        "app", "run", path, _PROMPT, "--max-tokens", tokens, "--temperature", "0"
    )
    found = _DECODE.search(ran.last.replace("\r", "").replace("\n", " "))
    if ran.code != 0 or found is None:
        raise IngotError(f"`ingot run` ended with exit code {ran.code}: {ran.last}")
    return float(found[1].replace(",", "")), 0.0


def _run_in_terminal(
    *module: object,
    keys_per_s: float = 0.0,
    ready: Path | None = None,
    awaited: bytes | None = None,
    then: bytes = b"",
) -> _Ran:
    """Run ``python -m module ...`` until it ends, pressing letters at about ``keys_per_s`` while
    there is a file ``ready``, and the keys ``then`` once it has written ``awaited``. The
    program is killed when it has not ended after 15 minutes.

    Raises IngotError on Windows.
    """
    terminal, its_end = _open()
    begun, awaited_s = time.monotonic(), None
    # With its bytecode, which an installed program has, whatever the shell says.
    environment = {
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    ends: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), its_end)
    child = Child("-m", *module, environment=environment, start_new_session=True, **ends)
    os.close(its_end)
    draw = random.Random(0)
    pressed: list[float] = []
    last = b""
    limit, due = time.monotonic() + _LIMIT_S, 0.0
    pause = 0.002 if keys_per_s else 0.1
    try:
        while time.monotonic() < limit:
            if select.select([terminal], [], [], pause)[0]:
                try:
                    data = os.read(terminal, 1 << 16)
                except OSError:  # its end is closed
                    break
                if not data:
                    break
                last += data
                if awaited is not None and awaited_s is None and awaited in last:
                    awaited_s = time.monotonic() - begun
                    os.write(terminal, then)
                last = last[-_LAST:]
            if keys_per_s and ready is not None and time.monotonic() >= due and ready.exists():
                key = _LETTERS[len(pressed) % len(_LETTERS)]
                pressed.append(time.monotonic())
                os.write(terminal, key.encode())
                due = time.monotonic() + draw.uniform(0.5, 1.5) / keys_per_s
    finally:
        if time.monotonic() >= limit:
            child.kill()
        os.close(terminal)
        child.wait()
    output = _ESCAPES.sub("", last.decode(errors="replace"))
    return _Ran(child.returncode, pressed, output, awaited_s)


def _open() -> tuple[int, int]:
    """A terminal and the end that a program has of it. Raises IngotError on Windows."""
    if sys.platform != "win32":
        import fcntl
        import pty
        import termios

        ends = pty.openpty()
        fcntl.ioctl(ends[0], termios.TIOCSWINSZ, struct.pack("HHHH", *_SIZE, 0, 0))
        return ends
    raise IngotError("this measurement needs a terminal of its own, which Windows does not have")
