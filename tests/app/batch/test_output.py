"""What `ingot batch` writes and tells: forms of output, growing outputs, shards, limits, status."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from app.batch.journal.journal import journal_path
from app.batch.report.figures import status_of
from tests.app import stopping
from tests.app.batch.conftest import Batch
from tests.support import until, write_rows

MANY = 120  # that are not all answered before a test has looked
SHORT = ["--max-tokens", "8"]


def numbers(path: Path, count: int) -> Path:
    return write_rows(path, [{"id": i, "prompt": f"The number {i} is"} for i in range(count)])


def test_a_growing_output_over_kills(
    batch: Batch, ingot: Any, command: Any, tmp_path: Path
) -> None:
    out = batch.out
    numbers(batch.source, MANY)
    words = ["--raw", "--unordered", "--max-tokens", "24", "--slots", "8", "-q"]
    # Answers are appended once a second: there are some by then, of at most 8 a write.
    held = stopping.after_rows(tmp_path / "held", 40, pause_s=0.05)
    process = ingot.start(*batch.words(*words), env=held)
    stopping.wait_stopped(process)  # it is still there, and gets no further
    seen = out.read_text().splitlines()
    assert len(seen) > 2  # one may be torn
    told = status_of(out)
    process.kill()
    process.communicate()
    assert (told.state, told.rows) == ("running", MANY)
    assert MANY > told.done >= len(seen) - 1
    with out.open("ab") as file:
        file.write(b'{"id":7,"ind')  # as a kill in the middle of a write leaves it
    told = status_of(out)
    assert (told.state, told.done + told.unfinished) == ("stopped", MANY)
    batch(*words)
    text = out.read_text().splitlines()
    assert text[: len(seen) - 1] == seen[:-1]  # what was there stayed where it was
    assert Counter(json.loads(line)["id"] for line in text) == Counter(range(MANY))
    told = json.loads(command("batch", "status", out, "--json").stdout)
    assert (told["state"], told["left"], told["done"]) == ("finished", 0, MANY)


def test_limits_leave_the_rest_for_later(batch: Batch) -> None:
    numbers(batch.source, 30)
    words = ["--raw", "--max-tokens", "24", "--slots", "4"]
    # The time includes that for loading, so that at once after it the job drains.
    end = batch.end(*words, "--max-time", "0.01", code=1)
    assert end["ended"] == "time"
    assert end["answered"] + end["unfinished"] == 30
    assert end["unfinished"] > 0
    assert not batch.out.exists()

    batch(*words, "--row-timeout", "0.001", "--retries", "0", code=1)
    failed = batch.records
    assert {record["error"]["code"] for record in failed if "error" in record} == {"timeout"}
    end = batch.end(*words, "--skip-failed", code=1)
    assert (end["slots"], end["errors"]) == (0, {"timeout": end["failed"]})
    assert batch.records == failed
    batch(*words)
    assert all("response" in record for record in batch.records)


def test_sigterm_while_nothing_runs(batch: Batch, ingot: Any) -> None:
    numbers(batch.source, 4)
    process = ingot.start(*batch.words(*SHORT))
    # It is made before the model is loaded.
    until(lambda: journal_path(batch.out).exists() or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"Traceback" not in err
    assert not batch.out.exists()


def request(name: str, **body: Any) -> dict[str, Any]:
    chat = "messages" in body
    url = "/v1/chat/completions" if chat else "/v1/completions"
    return {"custom_id": name, "method": "POST", "url": url, "body": {"model": "any", **body}}


def test_openai_lines_and_a_report_through_a_pipe(batch: Batch, ingot: Any, tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "What is 2 + 3?"}]
    rows = [
        request("some", messages=asked, n=2, temperature=1, seed=1, logprobs=True, top_logprobs=3),
        request("text", prompt="The number 7 is", logprobs=2),
        request("long", prompt="word " * 5000),
    ]
    write_rows(batch.source, rows)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = ingot.start(*batch.words(*SHORT, "-q", "--report", pipe))
    figures = json.loads(pipe.read_bytes())
    assert process.wait(60) == 1
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert figures["summary"]["answered"] == 2
    assert figures["summary"]["errors"] == {"context_length_exceeded": 1}
    assert figures["engine"]["steps"] > 0
    some, text, long = batch.records
    codes = [line["response"]["status_code"] for line in batch.records]
    assert (codes, long["error"]["code"]) == ([200, 200, 400], "context_length_exceeded")
    bodies = [line["response"]["body"] for line in (some, text)]
    assert len(bodies[0]["choices"]) == 2
    spoken, [written] = bodies[0]["choices"][0], bodies[1]["choices"]
    tokens = [entry["token"] for entry in spoken["logprobs"]["content"]]
    assert "".join(tokens) == spoken["message"]["content"]
    assert "".join(written["logprobs"]["tokens"]) == written["text"]
    types = pytest.importorskip("openai.types")
    types.chat.ChatCompletion.model_validate(bodies[0], strict=True)
    types.Completion.model_validate(bodies[1], strict=True)
