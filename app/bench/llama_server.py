"""A `llama-server` or an `ingot serve` on the loopback interface, and the same requests to both."""

import json
import re
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from app.bench.harness import tail, tool_arguments
from runtimes.errors import IngotError
from runtimes.machine.processes import child_environment, python
from runtimes.settings import FlashAttention, RunnerSettings

_HOST = "127.0.0.1"
_START_S, _ANSWER_S, _STOP_S = 120.0, 900.0, 10.0
_SLOTS = re.compile(r"n_slots = (\d+), n_ctx_slot = (\d+), kv_unified = '(\w+)'")
_WARM_UP = [7] * 8
# Not by way of a proxy that the environment names.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class Server(ABC):
    """A server's process; ended on leaving, whatever happens.

    Raises IngotError with its last lines when it does not come up.
    """

    name: str  # for people
    _path: str  # of completions

    def __init__(self, command: Sequence[str], rows: int) -> None:
        """``command`` is told where to listen."""
        with socket.socket() as probe:
            probe.bind((_HOST, 0))
            port = probe.getsockname()[1]
        self._url, self._rows = f"http://{_HOST}:{port}", rows
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        command = [*command, "--host", _HOST, "--port", str(port)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env=child_environment(),
            )
        except OSError as error:
            self._log.close()
            raise IngotError(f"{command[0]} cannot be started: {error}") from error

    @abstractmethod
    def _body(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        """A request for so many greedy tokens. Token ids, so that all compute the same; everything
        else is the server's default."""

    @abstractmethod
    def _made(self, answer: Any) -> int:
        """How many tokens an answer has."""

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
        """How long so many greedy tokens of each prompt take it, after a warm-up, two requests a
        slot at a time. Raises IngotError when it made others."""
        self.complete([_WARM_UP] * self._rows, 3, self._rows)
        begin = time.perf_counter()
        made = self.complete(prompts, tokens, 2 * self._rows)
        seconds = time.perf_counter() - begin
        if made != tokens * len(prompts):
            raise IngotError(f"{self.name} made {made} tokens instead of {tokens * len(prompts)}")
        return seconds

    def complete(self, prompts: Sequence[Sequence[int]], tokens: int, clients: int) -> int:
        """Greedy completions of ``tokens`` tokens each, ``clients`` requests at a time.

        Returns how many tokens it made. Raises IngotError for an answer that is not a completion.
        """
        bodies = [self._body(list(prompt), tokens) for prompt in prompts]
        with ThreadPoolExecutor(clients) as pool:
            answers = pool.map(lambda body: self._ask(self._path, body), bodies)
            return sum(map(self._made, answers))

    def _ask(self, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"}
        try:
            with _open(urllib.request.Request(self._url + path, data, kind), None, _ANSWER_S) as it:
                return json.load(it)
        except urllib.error.HTTPError as error:
            said = error.read()[:300]
            raise IngotError(f"{self.name} answered {error.code}: {said!r}") from error

    def _wait_until_ready(self) -> None:
        limit = time.monotonic() + _START_S
        while time.monotonic() < limit:
            code = self._process.poll()
            if code is not None:
                said = f"{self.name} ended with exit code {code}"
                raise IngotError(f"{said}:\n{tail(self._said())}")
            try:
                self._ask("/health")
            except (OSError, IngotError):
                time.sleep(0.05)  # it loads, and says 503 while it does
            else:
                return
        raise IngotError(f"{self.name} was not ready in {_START_S:.0f} s:\n{tail(self._said())}")

    def _said(self) -> str:
        self._log.flush()
        self._log.seek(0)
        return self._log.read()


class LlamaServer(Server):
    """With its defaults but for what ``settings`` say."""

    name, _path = "llama-server", "/completion"

    def __init__(
        self,
        program: Path,
        model: Path,
        settings: RunnerSettings,
        flash_attention: FlashAttention = "auto",
    ) -> None:
        command = [*tool_arguments(program, model, settings), "-np", str(settings.slots)]
        command += ["-fa", flash_attention]
        super().__init__(command, settings.slots)

    def slots(self) -> dict[str, Any]:
        """What it says of its slots: ``slots``, ``context`` of each, ``unified_kv``."""
        return parse_slots(self._said())

    def _body(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        return {"prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": True}

    def _made(self, answer: Any) -> int:
        return int(answer["tokens_predicted"])


class IngotServer(Server):
    """`ingot serve`, with its defaults but for what ``settings`` say."""

    name, _path = "ingot serve", "/v1/completions"

    def __init__(self, model: Path, settings: RunnerSettings) -> None:
        command = python("-m", "app", "serve", str(model), "--slots", str(settings.slots))
        command += ["--context", str(settings.context), "--batch-tokens", str(settings.batch)]
        if settings.flash_attention != "auto":
            command += ["--flash-attention", settings.flash_attention]
        if settings.threads is not None:
            command += ["--threads", str(settings.threads)]
        self._data = tempfile.TemporaryDirectory(prefix="ingot-bench-")
        super().__init__([*command, "--data", self._data.name, "--saved-mb", "0"], settings.slots)

    def close(self) -> None:
        """End the process, and take its folder away."""
        super().close()
        self._data.cleanup()

    def _body(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}

    def _made(self, answer: Any) -> int:
        return int(answer["usage"]["completion_tokens"])


def parse_slots(log: str) -> dict[str, Any]:
    """What the server's log says of its slots; empty when it does not say."""
    found = _SLOTS.search(log)
    if not found:
        return {}
    slots, context, unified = found.groups()
    return {"slots": int(slots), "context": int(context), "unified_kv": unified == "true"}
