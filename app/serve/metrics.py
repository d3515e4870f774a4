"""Figures for Prometheus that are looked up when they are asked for."""

from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.serve.batches.service import BatchService
from app.serve.pool import ModelPool

_OTHER = "other"  # a model that is not served, or not any more


class EngineCollector(Collector):
    """Figures of the loaded models' engines, as they are when they are asked for."""

    def __init__(self, pool: ModelPool) -> None:
        self._pool = pool

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names are known once there are models."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        gauges = {
            "ingot_slots": ("Requests that run at the same time.", "slots"),
            "ingot_running": ("Requests that have a slot.", "running"),
            "ingot_queued": ("Requests that wait for a slot.", "queued"),
            "ingot_kv_tokens": ("Tokens in the KV cache.", "kv_tokens"),
            "ingot_kv_capacity_tokens": ("Tokens that the KV cache can hold.", "kv_capacity"),
            "ingot_prefix_bytes": ("Cached prefixes beside the slots.", "prefix_bytes"),
            "ingot_prefill_tps": ("Prompt tokens a second, of the last second.", "prefill_tps_now"),
            "ingot_decode_tps": ("Output tokens a second, of the last second.", "decode_tps_now"),
        }
        counters = {
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
        loaded = self._pool.loaded()
        found = {name: one.engine.stats() for name, one in loaded.items()}
        for name, (told, field) in gauges.items():
            gauge = GaugeMetricFamily(name, told, labels=("model",))
            for model, stats in found.items():
                gauge.add_metric((model,), getattr(stats, field))
            yield gauge
        for name, (told, field) in counters.items():
            counter = CounterMetricFamily(name, told, labels=("model",))
            for model, stats in found.items():
                counter.add_metric((model,), getattr(stats, field))
            yield counter
        told = "Times that the model's process died; it is started again when it is needed."
        restarts = CounterMetricFamily("ingot_worker_restarts", told, labels=("model",))
        for model, one in loaded.items():
            restarts.add_metric((model,), one.engine.deaths)
        yield restarts


class BatchFigures(Collector):
    """Batches and their rows."""

    def __init__(self, batches: BatchService) -> None:
        self._batches = batches

    def describe(self) -> Iterable[Metric]:
        """Nothing, as above."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        known = frozenset(self._batches.models.names())

        def label(model: str | None) -> str:
            """Clients may ask for any model, and each label is kept for ever."""
            return model if model in known else _OTHER

        states = Counter({"running": 0, "waiting": 0})
        queued: Counter[str] = Counter()
        rows: Counter[tuple[str, str]] = Counter()
        for one in self._batches.running():
            waits = "waiting" if one.status == "in_progress" else one.status
            states["running" if one.live else waits] += 1
            if one.model is None:
                continue  # its rows are not counted yet
            counts, name = one.counts, label(one.model)
            queued[name] += max(0, counts.total - counts.completed - counts.failed)
            rows[name, "completed"] += counts.completed
            rows[name, "failed"] += counts.failed
        for (model, status), count in self._batches.ended_rows().items():
            rows.setdefault((label(model), "completed"), 0)
            rows.setdefault((label(model), "failed"), 0)
            rows[label(model), status] += count
        told = "Batches that have not ended: running, waiting, or the status that they have."
        batches = GaugeMetricFamily("ingot_batches", told, labels=("state",))
        for state, count in states.items():
            batches.add_metric((state,), count)
        yield batches
        told = "Rows of batches that are still to be answered."
        gauge = GaugeMetricFamily("ingot_batch_rows_queued", told, labels=("model",))
        for model, count in queued.items():
            gauge.add_metric((model,), count)
        yield gauge
        told = "Rows of batches that are done, also before a restart."
        counter = CounterMetricFamily("ingot_batch_rows", told, labels=("model", "status"))
        for labels, count in rows.items():
            counter.add_metric(labels, count)
        yield counter
