"""Servers as clients have them: `ingot serve`, `llama-server` and others, which get token ids and
answer over the loopback interface."""

import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, Self

from app.bench.frame import tail, tool_arguments
from app.bench.loops import Prompts
from runtimes.errors import IngotError
from runtimes.machine.processes import child_environment, python
from runtimes.settings import FlashAttention, RunnerSettings

_HOST = "127.0.0.1"
_START_S, _ANSWER_S, _STOP_S = 120.0, 900.0, 10.0
_WARM_UP = [7] * 8
# Not by way of a proxy that the environment names.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


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

    def seconds(self, prompts: Prompts, tokens: int) -> float:
        """Seconds that so many greedy tokens of each prompt take the server, after a warm-up, two
        requests a slot at a time."""
        self.row_seconds([_WARM_UP] * self._rows, 3)
        return max(self.row_seconds(prompts, tokens, 2 * self._rows))

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    def row_seconds(self, prompts: Prompts, tokens: int, clients: int | None = None) -> list[float]:
        """As ``completions``. Raises IngotError where the server made other than so many tokens."""
        url = self._url + self._path
        found = completions(url, self._most, prompts, tokens, clients, name=self.name)
        made = sum(int(reduce(getitem, self._made, answer)) for _, answer in found)
        if made != tokens * len(prompts):
            raise IngotError(f"{self.name} made {made} tokens instead of {tokens * len(prompts)}")
        return [seconds for seconds, _ in found]

    def _wait_until_ready(self) -> None:
        limit, problem = time.monotonic() + _START_S, f"was not ready in {_START_S:.0f} s"
        while time.monotonic() < limit:
            if (code := self._process.poll()) is not None:
                problem = f"ended with exit code {code}"
                break
            with suppress(OSError, IngotError):
                ask(f"{self._url}/health")
                return
            time.sleep(0.05)  # it loads, and says 503 while it does
        self._log.seek(0)
        raise IngotError(f"{self.name} {problem}:\n{tail(self._log.read())}")


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


def completions(
    url: str,
    most: str,
    prompts: Prompts,
    tokens: int,
    clients: int | None = None,
    *,
    name: str = "",
    **more: object,
) -> list[tuple[float, Any]]:
    """Seconds from now to the end of each prompt's answer of so many greedy tokens, and the answer;
    all asked for at once, or so many ``clients`` at a time. ``most`` is the field that bounds an
    answer; all else is the server's default. Raises IngotError as ``ask``."""
    begin = time.perf_counter()

    def one(prompt: Sequence[int]) -> tuple[float, Any]:
        # Token ids, so that all servers compute the same.
        body = {"prompt": list(prompt), most: tokens, "temperature": 0, "ignore_eos": True}
        answer = ask(url, body | more, name)
        return time.perf_counter() - begin, answer

    with ThreadPoolExecutor(clients or len(prompts)) as pool:
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


class IngotServer(Server):
    """`ingot serve` with its defaults but for what ``settings`` say."""

    name, _path, _most = "ingot serve", "/v1/completions", "max_tokens"
    _made = ("usage", "completion_tokens")

    def __init__(self, model: Path, settings: RunnerSettings) -> None:
        command: list[object] = ["-m", "app", "serve", model, "--slots", settings.slots]
        command += ["--context", settings.context, "--batch-tokens", settings.batch]
        command += ["--flash-attention", settings.flash_attention]
        command += ["--threads", settings.threads]
        command += ["--kv-type", settings.kv_type]
        self._data = tempfile.TemporaryDirectory(prefix="ingot-bench-")
        command += ["--data", self._data.name, "--saved-mb", 0]
        super().__init__(python(*command), settings.slots)

    def close(self) -> None:
        """End the process, and take its folder away."""
        super().close()
        self._data.cleanup()
