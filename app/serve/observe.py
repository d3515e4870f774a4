"""What is told of requests: a line of the log each, without any of their text, and figures for
Prometheus."""

import json
import logging
import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.figures import duration
from app.serve.batches.service import BatchService
from app.serve.generate import Generation, Generator
from app.serve.metrics import BatchFigures, EngineCollector

access = logging.getLogger("ingot.access")

_LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_GAP = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2)
_QUIET = frozenset({"/health", "/ready", "/metrics"})  # asked for every few seconds by programs


class Observer:
    """Counts what is answered; one a server."""

    def __init__(self, generator: Generator, batches: BatchService | None = None) -> None:
        self.registry = CollectorRegistry()
        own = self.registry
        self._requests = Counter(
            "ingot_requests",
            "Requests by what was asked and the status.",
            ("path", "status"),
            registry=own,
        )
        model = ("model",)
        self._ttft = Histogram(
            "ingot_ttft_seconds",
            "Submission to first token.",
            model,
            buckets=_LATENCY,
            registry=own,
        )
        self._tpot = Histogram(
            "ingot_tpot_seconds",
            "Mean gap between later tokens.",
            model,
            buckets=_GAP,
            registry=own,
        )
        self._total = Histogram(
            "ingot_request_seconds",
            "Submission to last token.",
            model,
            buckets=_LATENCY,
            registry=own,
        )
        own.register(EngineCollector(generator.pool))
        if batches is not None:
            own.register(BatchFigures(batches))

    def begin(self, request: Request, generation: Generation) -> None:
        """A request has become a generation."""
        request.scope["ingot.generation"] = generation

    def end(self, generation: Generation) -> None:
        """It is over, in whatever way."""
        completion = generation.completion
        if completion is None or not completion.usage.completion_tokens:
            return
        name, timings = generation.served.name, completion.timings
        self._ttft.labels(name).observe(timings.ttft_s)
        self._total.labels(name).observe(timings.total_s)
        if timings.tpot_s is not None:
            self._tpot.labels(name).observe(timings.tpot_s)

    def answered(self, scope: Scope, status: int, seconds: float, *, as_json: bool) -> None:
        """Log and count a request that has been answered."""
        route = scope.get("route")
        path = getattr(route, "path", None) or "other"
        self._requests.labels(path, str(status)).inc()
        level = logging.DEBUG if scope["path"] in _QUIET else logging.INFO
        if not access.isEnabledFor(level):
            return
        said: dict[str, Any] = {
            "time": round(time.time(), 3),
            "method": scope["method"],
            # As it came, percent-encoded: it must not write lines of its own.
            "path": scope["raw_path"][:200].decode("ascii", "backslashreplace"),
            "status": status,
            "seconds": round(seconds, 4),
            "client": (scope.get("client") or ("",))[0],
        }
        said |= _of_generation(scope.get("ingot.generation"))
        access.log(level, "%s", json.dumps(said) if as_json else _line(said))


class AccessLog:
    """Around the application: tells the observer of each response."""

    def __init__(self, app: ASGIApp, observer: Observer, *, as_json: bool) -> None:
        self._app, self._observer, self._as_json = app, observer, as_json

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.monotonic(), 499  # nothing was sent: the client has gone

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            seconds = time.monotonic() - begun
            self._observer.answered(scope, status, seconds, as_json=self._as_json)


def _of_generation(generation: Generation | None) -> dict[str, Any]:
    if generation is None:
        return {}
    said: dict[str, Any] = {"model": generation.served.called, "request": generation.stream.id}
    completion = generation.completion
    if completion is not None:
        usage, timings = completion.usage, completion.timings
        said["prompt_tokens"], said["cached_tokens"] = usage.prompt_tokens, usage.cached_tokens
        said["completion_tokens"] = sum(one.usage.completion_tokens for one in completion.choices)
        said["ttft_s"], said["finish"] = round(timings.ttft_s, 4), str(completion.finish_reason)
        if timings.decode_tps is not None:
            said["decode_tps"] = round(timings.decode_tps, 1)
    return said


def _line(said: dict[str, Any]) -> str:
    line = f"{said['method']} {said['path']} {said['status']} in {duration(said['seconds'])}"
    if "completion_tokens" in said:
        line += f" · {said['model']} · {said['prompt_tokens']} + {said['completion_tokens']} tokens"
        line += f" · first {duration(said['ttft_s'])}"
        line += f" · {said['decode_tps']} tok/s" if "decode_tps" in said else ""
    return line
