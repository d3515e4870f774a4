"""`ingot serve` in a process of its own, killed, and on a disk that is full."""

from __future__ import annotations

import resource
import threading

import pytest
from openai import APIStatusError, OpenAI

from tests.app.serve.batches.conftest import begin, ended, line, lines_of
from tests.app.serve.batches.kills import kill_often
from tests.app.serve.conftest import started
from tests.support import until

FULL = 30_000  # bytes of the largest file


def test_kills_at_any_moment(gguf_file, tmp_path):
    kill_often(gguf_file, tmp_path, rows=150, kills=6, seed=3)


def test_a_batch_waits_for_room_on_the_disk(ingot, gguf_file, tmp_path):
    def small_files() -> None:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, hard))

    process, port = started(ingot, tmp_path, f"pebble={gguf_file}", preexec=small_files)
    reader = threading.Thread(target=process.stderr.read)  # what it says must not fill the pipe
    reader.start()
    client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
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
    process.kill()
    reader.join()
