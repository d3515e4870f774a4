"""Prompts to their end: the engine, alone and behind `ingot serve`, against `llama-server` of the
same llama.cpp.

The engine runs in a worker process, as for every front end.
Everybody starts afresh each round, so that no round finds the prompts of the one before in a cache.
Servers get token ids and answer over the loopback interface, two requests a slot at a time.
"""

import json
import re
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any, Self

from app.bench.frame import (
    DEFAULT,
    LAYOUTS,
    BenchResult,
    against,
    in_turn,
    require_tool,
    samples,
    tail,
    tool_arguments,
)
from app.bench.options import BenchOptions
from app.bench.work import UNBOUNDED, bench_prompts, greedy, loaded, timed_run
from runtimes.errors import IngotError
from runtimes.machine.processes import child_environment, python
from runtimes.settings import FlashAttention, RunnerSettings

_HOST = "127.0.0.1"
_START_S, _ANSWER_S, _STOP_S = 120.0, 900.0, 10.0
_SLOTS = re.compile(r"n_slots = (\d+), n_ctx_slot = (\d+), kv_unified = '(\w+)'")
_WARM_UP = [7] * 8
# Not by way of a proxy that the environment names.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def server(path: Path, options: BenchOptions) -> BenchResult:
    """Every side in turn: generated tok/s end to end."""
    program = require_tool(options.llama_server, "llama-server")
    prompts = bench_prompts(path, options)
    need = max(map(len, prompts)) + options.decode_tokens + 1
    split = options.settings(need)
    said: dict[str, Any] = {}  # by llama-server, of its slots

    def engine(unified: bool, _: int) -> float:
        params = [greedy(options.decode_tokens)] * len(prompts)
        settings = options.settings(need, unified=unified)
        with loaded(path, settings, UNBOUNDED, worker=True) as engine:
            return timed_run(engine, prompts, params)[0]

    def serve(_: int) -> float:
        with IngotServer(path, split) as own:
            return own.seconds(prompts, options.decode_tokens)

    def llama(_: int) -> float:
        with LlamaServer(program, path, split) as native:
            said.update(native.slots())
            return native.seconds(prompts, options.decode_tokens)

    sides: dict[str, Callable[[int], float]] = {
        name: partial(engine, unified) for name, unified in LAYOUTS.items()
    }
    taken = in_turn({**sides, "serve": serve, "llama": llama}, options.repeats)
    made = options.decode_tokens * len(prompts)
    seconds, tps = samples(taken, float), samples(taken, lambda took: made / took)
    ratios, verdict = against({name: tps[name] for name in LAYOUTS}, {"llama": tps["llama"]})
    to_llama = (tps["serve"] / tps["llama"]).median
    to_engine = (tps["serve"] / tps[DEFAULT]).median
    prompt_tokens = sum(map(len, prompts))
    figures = {
        "slots": options.rows,
        "context": split.context,
        "threads": split.threads,
        "requests": len(prompts),
        "prompt_tokens": prompt_tokens,
        "completion_tokens": made,
        "clients": 2 * options.rows,
        "llama_server_slots": said,
        "ingot_seconds": {name: seconds[name] for name in LAYOUTS},
        "ingot_serve_seconds": seconds["serve"],
        "llama_server_seconds": seconds["llama"],
        "serve_to_llama_server": to_llama,
        "serve_to_engine": to_engine,
        **ratios,
    }
    lines = [
        f"{len(prompts)} prompts of {prompt_tokens} tokens in all, {made} tokens "
        f"generated, {options.rows} slots of {split.context}: seconds end to end"
    ]
    names = {"serve": IngotServer.name, "llama": f"{LlamaServer.name} (it says: {said})"}
    for side, took in seconds.items():
        lines.append(
            f"  {names.get(side, f'ingot, {side}')}: {took:.2f} s,"
            f" {tps[side]:.1f} generated tok/s ({took.spread('.2f')} s)"
        )
    lines.append(
        f"  {IngotServer.name} has {to_llama:.3f} of {LlamaServer.name}'s tok/s, and"
        f" {to_engine:.3f} of the engine's alone"
    )
    return BenchResult(figures, [*lines, verdict])


class Server:
    """A server's process; ended on leaving, whatever happens.

    Raises IngotError with its last lines when it does not come up.
    """

    name: str  # for people
    _path: str  # of completions
    _most: str  # field of a request with the most tokens of its answer
    _made: tuple[str, ...]  # fields of an answer that lead to the number of its tokens

    def __init__(self, command: Sequence[object], rows: int) -> None:
        """``command`` is told where to listen."""
        with socket.socket() as probe:
            probe.bind((_HOST, 0))
            port = probe.getsockname()[1]
        self._url, self._rows = f"http://{_HOST}:{port}", rows
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [*map(str, command), "--host", _HOST, "--port", str(port)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env=child_environment(),
            )
        except OSError as error:
            self._log.close()
            raise IngotError(f"{command[0]} cannot be started: {error}") from error

    def __enter__(self) -> Self:
        """Wait until it is ready."""
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.close()

    def close(self) -> None:
        """End the process. A second call does nothing."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()

    def seconds(self, prompts: Sequence[Sequence[int]], tokens: int) -> float:
        """Seconds that so many greedy tokens of each prompt take the server, after a warm-up, two
        requests a slot at a time. Raises IngotError when it made others."""
        self.complete([_WARM_UP] * self._rows, 3, self._rows)
        begin = time.perf_counter()
        made = self.complete(prompts, tokens, 2 * self._rows)
        seconds = time.perf_counter() - begin
        if made != tokens * len(prompts):
            raise IngotError(f"{self.name} made {made} tokens instead of {tokens * len(prompts)}")
        return seconds

    def complete(self, prompts: Sequence[Sequence[int]], tokens: int, clients: int) -> int:
        """Greedy completions of ``tokens`` tokens each, ``clients`` requests at a time; all but
        that is the server's default.

        Returns how many tokens it made. Raises IngotError for an answer that is not a completion.
        """
        bodies = [_body(prompt, self._most, tokens) for prompt in prompts]
        with ThreadPoolExecutor(clients) as pool:
            answers = pool.map(lambda body: self._ask(self._path, body), bodies)
            return sum(int(reduce(getitem, self._made, answer)) for answer in answers)

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    def row_seconds(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[float]:
        """As ``row_seconds``."""
        return row_seconds(self._url + self._path, self._most, prompts, tokens)

    def _ask(self, path: str, body: object = None) -> Any:
        return ask(self._url + path, body, self.name)

    def _wait_until_ready(self) -> None:
        limit, problem = time.monotonic() + _START_S, f"was not ready in {_START_S:.0f} s"
        while time.monotonic() < limit:
            if (code := self._process.poll()) is not None:
                problem = f"ended with exit code {code}"
                break
            with suppress(OSError, IngotError):
                self._ask("/health")
                return
            time.sleep(0.05)  # it loads, and says 503 while it does
        raise IngotError(f"{self.name} {problem}:\n{tail(self._said())}")

    def _said(self) -> str:
        self._log.flush()
        self._log.seek(0)
        return self._log.read()


def ask(url: str, body: object = None, name: str = "") -> Any:
    """The JSON that a server answers. Raises IngotError for another status than 200."""
    data = None if body is None else json.dumps(body).encode()
    kind = {"Content-Type": "application/json"}
    try:
        with _open(urllib.request.Request(url, data, kind), None, _ANSWER_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        said = error.read()[:300]
        raise IngotError(f"{name or url} answered {error.code}: {said!r}") from error


def _body(prompt: Sequence[int], most: str, tokens: int) -> dict[str, Any]:
    # Token ids, so that all servers compute the same.
    return {"prompt": list(prompt), most: tokens, "temperature": 0, "ignore_eos": True}


def row_seconds(
    url: str, most: str, prompts: Sequence[Sequence[int]], tokens: int, **more: object
) -> list[float]:
    """Seconds from now to the end of each prompt's answer of so many greedy tokens, all of them
    asked for at once; ``most`` is the field that bounds an answer."""
    begin = time.perf_counter()

    def one(prompt: Sequence[int]) -> float:
        ask(url, _body(prompt, most, tokens) | more)
        return time.perf_counter() - begin

    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(one, prompts))


class LlamaServer(Server):
    """`llama-server` with its defaults but for what ``settings`` say."""

    name, _path, _most = "llama-server", "/completion", "n_predict"
    _made = ("tokens_predicted",)

    def __init__(
        self,
        program: Path,
        model: Path,
        settings: RunnerSettings,
        flash_attention: FlashAttention = "auto",
    ) -> None:
        words = ("-np", settings.slots, "-fa", flash_attention)
        super().__init__([*tool_arguments(program, model, settings), *words], settings.slots)

    def slots(self) -> dict[str, Any]:
        """Slots in the server's log: their number, the ``context`` of each, ``unified_kv``."""
        return parse_slots(self._said())


class IngotServer(Server):
    """`ingot serve` with its defaults but for what ``settings`` say."""

    name, _path, _most = "ingot serve", "/v1/completions", "max_tokens"
    _made = ("usage", "completion_tokens")

    def __init__(self, model: Path, settings: RunnerSettings) -> None:
        command: list[object] = ["-m", "app", "serve", model, "--slots", settings.slots]
        command += ["--context", settings.context, "--batch-tokens", settings.batch]
        if settings.flash_attention != "auto":
            command += ["--flash-attention", settings.flash_attention]
        if settings.threads is not None:
            command += ["--threads", settings.threads]
        if settings.kv_type != "f16":
            command += ["--kv-type", settings.kv_type]
        self._data = tempfile.TemporaryDirectory(prefix="ingot-bench-")
        command += ["--data", self._data.name, "--saved-mb", 0]
        super().__init__(python(*command), settings.slots)

    def close(self) -> None:
        """End the process, and take its folder away."""
        super().close()
        self._data.cleanup()


def parse_slots(log: str) -> dict[str, Any]:
    """Slots in the log of `llama-server`; empty when it does not say."""
    found = _SLOTS.search(log)
    if not found:
        return {}
    slots, context, unified = found.groups()
    return {"slots": int(slots), "context": int(context), "unified_kv": unified == "true"}
