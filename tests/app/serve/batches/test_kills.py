"""`ingot serve` in a process of its own, killed under a batch, and on a disk that is full."""

from __future__ import annotations

import json
import random
import resource
import threading
import time

import pytest
from openai import APIStatusError

from tests.app.serve.batches.conftest import ENDED, begin, ended, line, lines_of
from tests.app.serve.conftest import started
from tests.support import until

FULL = 30_000  # bytes of the largest file
ROWS = 45


def serving(ingot, data, model, **options):
    """A server of its own process, and a client of it."""
    process, door = started(ingot, data, f"pebble={model}", "--slots", 4, **options)
    # What it says of each request must not fill the pipe.
    threading.Thread(target=process.stderr.read).start()
    return process, door.client()


def answers(data, batch):
    """What the batch's journal has: every answer once."""
    found = {}
    for journal in (data / "batches" / batch.id).glob("*.journal.jsonl"):
        for text in journal.read_bytes().splitlines(keepends=True):
            row = json.loads(text) if text.endswith(b"\n") else {}
            if row.get("ok"):
                assert row["index"] not in found, f"row {row['index']} was asked twice"
                found[row["index"]] = row["answer"]["response"]
    return found


def done(client, batch, rows):
    """How many rows are, once there are so many, or the batch has ended."""
    now = until(
        lambda: client.batches.retrieve(batch.id),
        lambda now: now.status in ENDED or now.request_counts.completed > rows,
    )
    return now.request_counts.completed


def test_kills_at_any_moment_lose_no_row_and_double_none(ingot, gguf_file, tmp_path):
    chance, seen = random.Random(3), {}
    process, client = serving(ingot, tmp_path, gguf_file)
    before = ended(client, begin(client, [line(i, max_tokens=2) for i in range(5)]))
    results = client.files.content(before.output_file_id).content
    stories = [line(i, f"Tell me a story about {i} ships.", max_tokens=48) for i in range(ROWS)]
    batch = begin(client, stories)  # takes about a second
    for kill in range(2):  # while its input is read, and while its rows run
        if kill:
            assert done(client, batch, 5 * kill) >= len(seen)
        time.sleep(chance.uniform(0, 0.05))
        process.kill()
        process.wait()
        found = answers(tmp_path, batch)
        assert seen.items() <= found.items() or not found  # where it has ended
        assert not kill or 0 < len(found) < ROWS
        seen |= found
        process, client = serving(ingot, tmp_path, gguf_file)
    batch = ended(client, batch)
    assert (batch.status, batch.request_counts.completed) == ("completed", ROWS)
    rows = lines_of(client, batch.output_file_id)
    assert [one["custom_id"] for one in rows] == [f"row-{i}" for i in range(ROWS)]
    for index, text in seen.items():
        body = rows[index]["response"]["body"]
        assert body["choices"][0]["message"]["content"] == text
    assert client.files.content(before.output_file_id).content == results
    assert len(client.files.list().data) == 4
    assert len(client.batches.list().data) == 2
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
    process.kill()
