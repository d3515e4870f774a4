"""Access log, one line a request without any of its text, and metrics for Prometheus."""

import collections
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, cast

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.figures import duration
from app.openai.validation import JsonObject
from app.serve.batches.work import BatchService
from app.serve.errors import HEADER, header_of
from app.serve.generate import Generation, Generator
from app.serve.pool import ModelPool
from runtimes.request import Completion

_OTHER = "other"  # a model that is not served, or not any more
_GAUGES = {
    "ingot_slots": ("Requests that run at the same time.", "slots"),
    "ingot_running": ("Requests that have a slot.", "running"),
    "ingot_queued": ("Requests that wait for a slot.", "queued"),
    "ingot_kv_tokens": ("Tokens in the KV cache.", "kv_tokens"),
    "ingot_kv_capacity_tokens": ("Tokens that the KV cache can hold.", "kv_capacity"),
    "ingot_prefix_bytes": ("Cached prefixes beside the slots.", "prefix_bytes"),
    "ingot_prefill_tps": ("Prompt tokens a second, of the last second.", "prefill_tps_now"),
    "ingot_decode_tps": ("Output tokens a second, of the last second.", "decode_tps_now"),
}
_COUNTERS = {
    "ingot_prompt_tokens": ("Prompt tokens that were computed.", "prompt_tokens"),
    "ingot_cached_tokens": ("Prompt tokens that were cached.", "cached_tokens"),
    "ingot_completion_tokens": ("Tokens that were sampled.", "completion_tokens"),
    "ingot_forced_tokens": ("Tokens that constraints forced.", "forced_tokens"),
    "ingot_proposed_tokens": ("Tokens that were guessed.", "proposed_tokens"),
    "ingot_accepted_tokens": ("Guessed tokens that were right.", "accepted_tokens"),
    "ingot_drafted_tokens": ("Tokens that the draft guessed.", "drafted_tokens"),
    "ingot_accepted_drafts": ("Of these, the right ones.", "accepted_drafts"),
    "ingot_preemptions": ("Times that a request lost its slot.", "preemptions"),
    "ingot_steps": ("Steps of the engine.", "steps"),
}


class _Collector(Collector):
    """Figures of the loaded models' engines and of batches, read when Prometheus asks."""

    def __init__(self, pool: ModelPool, batches: BatchService) -> None:
        self._pool, self._batches = pool, batches

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        loaded = self._pool.loaded()
        found = {name: one.engine.stats() for name, one in loaded.items()}
        for family, figures in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for metric, (told, field) in figures.items():
                values = {(name,): getattr(stats, field) for name, stats in found.items()}
                yield _metric(family, metric, told, values)
        told = "Times that the model's process died; it is started again when it is needed."
        deaths = {(name,): one.engine.deaths for name, one in loaded.items()}
        yield _metric(CounterMetricFamily, "ingot_worker_restarts", told, deaths)
        yield from _batch_metrics(self._batches)


def _batch_metrics(batches: BatchService) -> Iterable[Metric]:
    known = frozenset(batches.models.names())

    def label(model: str | None) -> str:
        """Return the model, or one label for all that are not served: clients may ask for any, and
        each label is kept for ever."""
        return model if model in known else _OTHER

    states = collections.Counter({("running",): 0, ("waiting",): 0})
    queued = collections.Counter[tuple[str]]()
    rows = collections.Counter[tuple[str, str]]()
    for one, live in batches.running():
        waits = "waiting" if one.status == "in_progress" else one.status
        states[("running" if live else waits,)] += 1
    for one in batches.all():
        counts, name = one.counts, label(one.model)
        if one.model is None or not counts.total:
            continue  # its rows are not counted yet
        rows[name, "completed"] += counts.completed
        rows[name, "failed"] += counts.failed
        if not one.ended:
            queued[(name,)] += max(0, counts.total - counts.completed - counts.failed)
    told = "Batches that have not ended: running, waiting, or the status that they have."
    yield _metric(GaugeMetricFamily, "ingot_batches", told, states, ("state",))
    told = "Rows of batches that are still to be answered."
    yield _metric(GaugeMetricFamily, "ingot_batch_rows_queued", told, queued)
    told = "Rows of batches that are done, also before a restart."
    yield _metric(CounterMetricFamily, "ingot_batch_rows", told, rows, ("model", "status"))


def _metric(
    family: Callable[..., Any],
    name: str,
    told: str,
    values: Mapping[Any, float],
    labels: tuple[str, ...] = ("model",),
) -> Metric:
    metric = family(name, told, labels=labels)
    for key, value in values.items():
        metric.add_metric(key, value)
    return cast(Metric, metric)


access = logging.getLogger("ingot.access")

_LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_GAP = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2)
_QUIET = frozenset({"/health", "/ready", "/metrics"})  # asked for every few seconds by programs


class Observer:
    """Counts what is answered; one a server."""

    def __init__(self, generator: Generator, batches: BatchService, *, as_json: bool) -> None:
        """``as_json``: how requests are logged."""
        self.left_out, self._as_json = batches.left_out, as_json
        self.registry = CollectorRegistry()
        own = self.registry
        self._requests = Counter(
            "ingot_requests",
            "Requests by what was asked and the status.",
            ("path", "status"),
            registry=own,
        )
        seconds = partial(Histogram, labelnames=("model",), registry=own)
        self._ttft = seconds("ingot_ttft_seconds", "Submission to first token.", buckets=_LATENCY)
        self._tpot = seconds("ingot_tpot_seconds", "Mean gap between later tokens.", buckets=_GAP)
        self._total = seconds(
            "ingot_request_seconds", "Submission to last token.", buckets=_LATENCY
        )
        own.register(_Collector(generator.pool, batches))
        generator.done.append(self._end)

    def begin(self, request: Request, generation: Generation) -> None:
        """A request has become a generation."""
        request.scope["ingot.generation"] = generation
        self.left_out.of_request(request.scope, generation.task.ignored)

    def _end(self, generation: Generation, completion: Completion) -> None:
        name, timings = generation.served.name, completion.timings
        self._ttft.labels(name).observe(timings.ttft_s)
        self._total.labels(name).observe(timings.total_s)
        if timings.tpot_s is not None:
            self._tpot.labels(name).observe(timings.tpot_s)

    def answered(self, scope: Scope, status: int, seconds: float) -> None:
        """Log and count a request that has been answered."""
        route = scope.get("route")
        path = getattr(route, "path", None) or "other"
        self._requests.labels(path, str(status)).inc()
        level = logging.DEBUG if scope["path"] in _QUIET else logging.INFO
        if not access.isEnabledFor(level):
            return
        said: JsonObject = {
            "time": round(time.time(), 3),
            "method": scope["method"],
            # As it came, percent-encoded: it must not write lines of its own.
            "path": scope["raw_path"][:200].decode("ascii", "backslashreplace"),
            "status": status,
            "seconds": round(seconds, 4),
            "client": (scope.get("client") or ("",))[0],
        }
        said |= _of_generation(scope.get("ingot.generation"))
        access.log(level, "%s", json.dumps(said) if self._as_json else _line(said))

    def around(self, app: ASGIApp) -> ASGIApp:
        """Tell of each response of ``app``, and name in it what was left out of its request."""

        async def observed(scope: Scope, receive: Receive, send: Send) -> None:
            begun, status = time.monotonic(), 499  # nothing was sent: the client has gone

            async def sending(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                    if (told := header_of(scope)) is not None:
                        message = {**message, "headers": [*message["headers"], (HEADER, told)]}
                await send(message)

            try:
                await app(scope, receive, sending)
            finally:
                if scope["type"] == "http":
                    self.answered(scope, status, time.monotonic() - begun)

        return observed


def _of_generation(generation: Generation | None) -> JsonObject:
    if generation is None:
        return {}
    said: JsonObject = {"model": generation.served.called, "request": generation.stream.id}
    completion = generation.completion
    if completion is not None:
        usage, timings = completion.usage, completion.timings
        said["prompt_tokens"], said["cached_tokens"] = usage.prompt_tokens, usage.cached_tokens
        said["completion_tokens"] = sum(one.usage.completion_tokens for one in completion.choices)
        said["ttft_s"], said["finish"] = round(timings.ttft_s, 4), str(completion.finish_reason)
        if timings.decode_tps is not None:
            said["decode_tps"] = round(timings.decode_tps, 1)
    return said


def _line(said: JsonObject) -> str:
    line = f"{said['method']} {said['path']} {said['status']} in {duration(said['seconds'])}"
    if "completion_tokens" in said:
        line += f" · {said['model']} · {said['prompt_tokens']} + {said['completion_tokens']} tokens"
        line += f" · cached {said['cached_tokens']:,} of {said['prompt_tokens']:,}"
        line += f" · first {duration(said['ttft_s'])}"
        line += f" · {said['decode_tps']} tok/s" if "decode_tps" in said else ""
    return line
