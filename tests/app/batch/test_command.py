"""`ingot batch` as users type it, on Pebble's files: order, resumption, bad rows, what is shown."""

from __future__ import annotations

import json
import os
import pty
from pathlib import Path
from typing import Any

import pytest

from tests.app.batch.conftest import Batch
from tests.support import questions, write_rows

SHORT = ["--max-tokens", "8"]


def test_rows_in_order_with_their_figures(batch: Batch, command: Any) -> None:
    write_rows(batch.source, questions(20))
    done = batch(*SHORT, "--json")
    assert "\x1b" not in done.stderr
    records = batch.records
    for index, record in enumerate(records):
        assert list(record) == [
            "id", "index", "prompt", "response", "finish_reason", "usage", "timings",
        ]  # fmt: skip
        assert (record["id"], record["index"]) == (f"row-{index}", index)
        assert record["finish_reason"] in ("stop", "length")
        assert 1 <= record["usage"]["completion_tokens"] <= 8
        assert record["timings"]["ttft_s"] > 0
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["rows"], report["answered"], report["failed"]) == (20, 20, 0)
    assert report["slots"] == 16
    assert report["decode_tps"] > 0

    # One alone gives what it gave among the others.
    alone = command("run", batch.model, "What is 15 + 0?", *SHORT, "-q", "--threads", "1").stdout
    assert alone.strip() == records[5]["response"].strip()

    before = batch.out.stat()
    again = batch(*SHORT)
    assert "up to date: no row needed the model" in again.stderr
    assert batch.out.stat().st_mtime_ns == before.st_mtime_ns


def test_an_edited_input_keeps_what_stayed_and_other_settings_are_refused(
    batch: Batch, onnx_folder: Path
) -> None:
    write_rows(batch.source, questions(6))
    short = ["--max-tokens", "4", "-q"]
    batch(*short, "--limit", "4")
    before = {record["id"]: record["response"] for record in batch.records}
    assert len(before) == 4
    write_rows(batch.source, [{"id": "new", "prompt": "Who are you?"}, *questions(6)[1:]])
    assert batch.end(*short)["reused"] == 3
    after = {record["id"]: record["response"] for record in batch.records}
    assert list(after) == ["new", *(f"row-{i}" for i in range(1, 6))]
    assert list(after.items())[1:4] == list(before.items())[1:]

    content = batch.out.read_bytes()
    changed = batch("--max-tokens", "5", "--temperature", "0.5", code=2)
    assert "sampling.max_tokens: 4 -> 5" in changed.stderr
    assert "sampling.temperature: 0.0 -> 0.5" in changed.stderr
    assert onnx_folder.name in batch(*short, model=onnx_folder, code=2).stderr
    assert 'task: none -> "score"' in batch(*short, "--task", "score", code=2).stderr
    assert batch.out.read_bytes() == content
    assert batch.end("--max-tokens", "5", "--force")["reused"] == 0
    assert batch.end(*short, "--force")["reused"] == 6  # the old answers were kept
    assert batch.out.read_bytes() == content
    assert batch.end(*short, "--fresh")["reused"] == 0


def test_bad_rows_become_error_rows(batch: Batch) -> None:
    lines = [
        b'\xef\xbb\xbf{"prompt":"What is 1 + 1?","id":"same"}\r',
        b'{"prompt":NaN}',
        b"",
        b'{"prompt":"What is 1 + 1?","id":"same"}',
        b'{"id":"long","prompt":"' + b"word " * 2**16 + b'"}',
        b'{"question_id":9,"prompt":"What is 2 + 2?"}',
        b'{"id":"gone","prompt":"' + b"gone " * 3000 + b'"}',
    ]
    batch.source.write_bytes(b"\n".join(lines))
    done = batch(*SHORT, code=1)
    records = batch.records
    errors = [record.get("error", {"code": "", "message": ""}) for record in records]
    codes = [error["code"] for error in errors]
    long = "context_length_exceeded"
    assert codes == ["", "invalid_json", "", long, "", long]
    assert [record["id"] for record in records] == ["same", 1, "same", "long", 9, "gone"]
    where = [error["message"].split(":")[0] for error in errors]
    assert where == ["", "line 2", "", "line 5", "", "line 7"]
    assert "1 rows repeat" in done.stderr

    # The rows that failed in the engine are tried again; those that are done are not.
    again = batch.end(*SHORT, code=1)
    assert (again["reused"], again["completion_tokens"], again["failed"]) == (3, 0, 3)
    assert batch.records == records
    # The failure of a row that is gone does not count.
    batch.source.write_bytes(b"\n".join(lines[:-1]))
    done = batch(*SHORT, "--skip-failed", "--json", code=1)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    begin = events[0]
    assert (begin["rows"], begin["cached"], begin["failed"]) == (5, 3, 2)
    assert (events[-1]["answered"], events[-1]["failed"]) == (3, 2)


def test_turns_are_a_conversation(batch: Batch) -> None:
    turns = ["My name is Ada.", "What is my name?"]
    write_rows(batch.source, [{"question_id": 81, "talk": {"turns": turns}}])
    batch(*SHORT, "--field", "talk.turns")
    [record] = batch.records
    assert record["id"] == 81
    assert len(record["responses"]) == 2
    assert record["response"] == record["responses"][1]

    # The second turn was asked with the first and its answer before it.
    messages = [
        {"role": "user", "content": turns[0]},
        {"role": "assistant", "content": record["responses"][0]},
        {"role": "user", "content": turns[1]},
    ]
    write_rows(batch.source, [{"messages": messages}])
    assert json.loads(batch(*SHORT, out="-").stdout)["response"] == record["response"]


def test_equal_prompts_get_samples_of_their_own(batch: Batch) -> None:
    write_rows(batch.source, [{"prompt": "Tell me a story."}] * 4)

    def texts() -> list[str]:
        done = batch(*SHORT, "--temperature", "1.5", "--seed", "7", out="-")
        return [json.loads(line)["response"] for line in done.stdout.splitlines()]

    first = texts()
    assert len(set(first)) > 1
    assert texts() == first


def test_trying_it_out_writes_nothing(
    batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file that is called as a command is."""
    monkeypatch.chdir(tmp_path)
    batch.source = write_rows(tmp_path / "status", questions(9))
    done = batch("--test")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["index"] for record in records] == [0, 1, 2]
    assert all(record["usage"]["completion_tokens"] <= 16 for record in records)
    assert list(tmp_path.iterdir()) == [batch.source]


def test_a_reader_that_goes_away_ends_it(batch: Batch, ingot: Any) -> None:
    write_rows(batch.source, questions(30))
    process = ingot.start(*batch.words(*SHORT, "-q", out="-"))
    assert json.loads(process.stdout.readline())["id"] == "row-0"
    process.stdout.close()
    assert process.wait(60) in (0, 141)  # 0 if all was written before the pipe was closed
    assert b"Traceback" not in process.stderr.read()


def test_a_bar_on_a_terminal(batch: Batch, ingot: Any) -> None:
    write_rows(batch.source, questions(20))
    screen, end = pty.openpty()
    process = ingot.start(*batch.words(*SHORT), stderr=end, env={"TERM": "xterm"})
    os.close(end)
    shown = b""
    try:
        while piece := os.read(screen, 4096):
            shown += piece
    except OSError:  # how Linux tells that the other end is closed
        pass
    os.close(screen)
    assert process.wait(60) == 0
    for part in (b"\x1b[", b"/20", b"tok/s", b"KV", b"GiB", b"20 rows: 20 answered"):
        assert part in shown
    assert len(batch.records) == 20
