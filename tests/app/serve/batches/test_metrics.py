"""What /metrics tells of batches, and of models whose process dies."""

from __future__ import annotations

import os
import signal
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.app.serve.batches.conftest import begin, ended, line
from tests.app.serve.batches.test_client import TALE
from tests.app.serve.conftest import Running
from tests.support import until


def figures(server: Running, name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric by its labels' values."""
    with urllib.request.urlopen(f"{server.address}/metrics") as answer:
        families = text_string_to_metric_families(answer.read().decode())
    samples = [sample for family in families for sample in family.samples]
    return {tuple(one.labels.values()): one.value for one in samples if one.name == name}


def test_batches_and_their_rows_are_counted(endless):
    with endless() as server:
        client = server.client()
        assert figures(server, "ingot_batches") == {("running",): 0, ("waiting",): 0}
        tales = [line(i, "Tell a tale.", **TALE) for i in range(4, 9)]
        first = begin(client, [line(i, max_tokens=3) for i in range(4)] + tales)
        until(lambda: client.batches.retrieve(first.id).request_counts.completed == 4)
        queued = begin(client, [line(0, max_tokens=3)])
        until(
            lambda: figures(server, "ingot_batches"),
            lambda found: found == {("running",): 1, ("waiting",): 1},
        )
        assert figures(server, "ingot_batch_rows_queued") == {("pebble",): 6}
        rows = figures(server, "ingot_batch_rows_total")
        assert rows == {("pebble", "completed"): 4, ("pebble", "failed"): 0}
        for batch in (queued, first):
            client.batches.cancel(batch.id)
            ended(client, batch)
        assert figures(server, "ingot_batches") == {("running",): 0, ("waiting",): 0}
        assert figures(server, "ingot_batch_rows_queued") == {}
        assert figures(server, "ingot_batch_rows_total")["pebble", "completed"] >= 4


def test_a_worker_that_dies_is_counted(server, client):
    ask = {"model": "pebble", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    client.chat.completions.create(**ask)
    before = figures(server, "ingot_worker_restarts_total")["pebble",]
    os.kill(server.pool.loaded()["pebble"].engine.pid, signal.SIGKILL)
    until(
        lambda: figures(server, "ingot_worker_restarts_total")["pebble",],
        lambda now: now == before + 1,
    )
    assert client.chat.completions.create(**ask).choices[0].message.content
