"""A `llama-server` process on the loopback interface, and requests to it."""

import http.client
import json
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from app.bench.tools import tail
from runtimes.errors import IngotError
from runtimes.settings import RunnerSettings

_HOST = "127.0.0.1"
_START_S, _ANSWER_S, _STOP_S = 120.0, 900.0, 10.0
_SLOTS = re.compile(r"n_slots = (\d+), n_ctx_slot = (\d+), kv_unified = '(\w+)'")


class LlamaServer:
    """Started with its defaults but for what ``settings`` say; ended on leaving, whatever happens.

    Raises IngotError with its last lines when it does not come up.
    """

    def __init__(
        self,
        program: Path,
        model: Path,
        settings: RunnerSettings,
    ) -> None:
        self.port = _free_port()
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        slots, context = settings.slots, settings.context or 0
        options: dict[str, object] = {
            "-m": model,
            "-np": slots,
            "-c": slots * context,
            "-b": settings.batch,
            "-ub": settings.batch,
            "-t": settings.threads,
            "-tb": settings.threads,
            "--host": _HOST,
            "--port": self.port,
        }
        command = [str(program), *(str(word) for pair in options.items() for word in pair)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            self._log.close()
            raise IngotError(f"{program} cannot be started: {error}") from error

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

    def slots(self) -> dict[str, Any]:
        """What it says of its slots: ``slots``, ``context`` of each, ``unified_kv``."""
        return parse_slots(self._said())

    def complete(self, prompts: Sequence[Sequence[int]], tokens: int, clients: int) -> int:
        """Greedy completions of ``tokens`` tokens each, ``clients`` requests at a time.

        Returns how many tokens it made. Raises IngotError for an answer that is not a completion.
        """
        with ThreadPoolExecutor(clients) as pool:
            return sum(pool.map(lambda prompt: self._complete(prompt, tokens), prompts))

    def _complete(self, prompt: Sequence[int], tokens: int) -> int:
        # Token ids, so that both sides compute the same; everything else is the server's default.
        body = {
            "prompt": list(prompt),
            "n_predict": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        answer = self._request("POST", "/completion", body)
        return int(answer["tokens_predicted"])

    def _request(self, method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection(_HOST, self.port, timeout=_ANSWER_S)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise IngotError(f"llama-server answered {response.status}: {data[:300]!r}")
        return json.loads(data)

    def _wait_until_ready(self) -> None:
        limit = time.monotonic() + _START_S
        while time.monotonic() < limit:
            code = self._process.poll()
            if code is not None:
                raise IngotError(f"llama-server ended with exit code {code}:\n{tail(self._said())}")
            try:
                self._request("GET", "/health")
            except (OSError, http.client.HTTPException, IngotError):
                time.sleep(0.05)  # it loads, and says 503 while it does
            else:
                return
        raise IngotError(f"llama-server was not ready in {_START_S:.0f} s:\n{tail(self._said())}")

    def _said(self) -> str:
        self._log.flush()
        self._log.seek(0)
        return self._log.read()


def parse_slots(log: str) -> dict[str, Any]:
    """What the server's log says of its slots; empty when it does not say."""
    found = _SLOTS.search(log)
    if not found:
        return {}
    slots, context, unified = found.groups()
    return {"slots": int(slots), "context": int(context), "unified_kv": unified == "true"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
