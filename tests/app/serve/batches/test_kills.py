"""`ingot serve` in a process of its own, killed, and on a disk that is full."""

from __future__ import annotations

import resource
import threading

import pytest
from openai import APIStatusError, OpenAI

from tests.app.endless import CONTEXT, SAMPLING
from tests.app.serve.batches.conftest import begin, ended, line, lines_of
from tests.app.serve.batches.kills import kill_often
from tests.app.serve.conftest import started
from tests.support import until

FULL = 30_000  # bytes of the largest file


def serving(ingot, data, model, *arguments, **options):
    """A server of its own process, and a client of it."""
    process, port = started(ingot, data, f"pebble={model}", *arguments, **options)
    # What it says of each request must not fill the pipe.
    threading.Thread(target=process.stderr.read).start()
    return process, OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def test_kills_at_any_moment(gguf_file, tmp_path):
    kill_often(gguf_file, tmp_path, rows=100, kills=4, seed=3)


def test_a_server_that_is_told_to_end_does_not_wait_for_its_batches(
    ingot, endless_gguf, gguf_file, tmp_path
):
    process, client = serving(ingot, tmp_path, endless_gguf, "--context", CONTEXT)
    tales = {**SAMPLING, "ignore_eos": True}
    batch = begin(client, [line(i, max_tokens=3) for i in range(2)] + [line(2, "A tale.", **tales)])
    until(lambda: client.batches.retrieve(batch.id).request_counts.completed == 2)
    process.terminate()
    assert process.wait(60) == 0
    process, client = serving(ingot, tmp_path, endless_gguf, "--context", CONTEXT)
    found = client.batches.retrieve(batch.id)
    assert (found.status, found.request_counts.completed) == ("in_progress", 2)
    client.batches.cancel(batch.id)
    assert ended(client, batch).request_counts.completed == 2
    process.kill()


def test_a_batch_waits_for_room_on_the_disk(ingot, gguf_file, tmp_path):
    def small_files() -> None:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, hard))

    process, client = serving(ingot, tmp_path, gguf_file, preexec=small_files)
    with pytest.raises(APIStatusError) as refused:
        client.files.create(file=("large", b"x" * 2 * FULL), purpose="batch")
    assert refused.value.status_code == 507
    assert client.files.list().data == []

    batch = begin(client, [line(i, max_tokens=8) for i in range(100)])
    seen = until(lambda: client.batches.retrieve(batch.id), lambda now: now.errors)
    assert seen.status == "in_progress"
    assert "make room" in seen.errors.data[0].message
    assert 0 < seen.request_counts.completed < 100
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (10**9, resource.RLIM_INFINITY))
    batch = ended(client, batch)  # by itself
    assert (batch.status, batch.errors) == ("completed", None)
    found = [one["custom_id"] for one in lines_of(client, batch.output_file_id)]
    assert found == [f"row-{i}" for i in range(100)]
