"""The app around the batch screen alone, and jobs by their journals: of any rows, and one that
stands still in the middle."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

from app.batch.journal.journal import journal_path
from app.batch.report.eta import Left
from app.batch.watch.job import JobView, Phase, WatchedJob
from app.batch.watch.rows import SpeedAt
from app.tui.app import IngotApp
from app.tui.screens.batch import BatchScreen

ROWS = 48


class BatchApp(IngotApp):
    MODES: ClassVar[dict[str, Any]] = {"batch": BatchScreen}
    DEFAULT_MODE = "batch"

    @property
    def batch(self) -> BatchScreen:
        screen = self.get_screen_stack("batch")[0]
        assert isinstance(screen, BatchScreen)
        return screen


def run_of(rows: int, asked: str) -> dict[str, Any]:
    """A journal's line of a run that reads ``asked``, in the working folder."""
    return {
        "ingot": "batch-run", "at": 1000.0, "host": "there", "pid": 1, "born": 1.0,
        "command": ["batch", asked, "answers.jsonl", "--model", "pebble.gguf"],
        "folder": ".", "rows": rows, "input_rows": rows, "invalid": 0, "reused": 0,
        "shard": None, "format": "jsonl", "input": asked,
    }  # fmt: skip


def answered(i: int, text: str, prompt: int, tokens: int, speed: float) -> dict[str, Any]:
    """The line of a row with its answer, ``tokens`` long."""
    answer = {
        "response": text, "finish_reason": "stop", "created": 1001.0 + i,
        "usage": {"prompt_tokens": prompt, "completion_tokens": tokens, "cached_tokens": 8},
        "timings": {
            "prefill_tps": 900.0 + 17 * (i % 9), "decode_tps": speed, "ttft_s": 0.05,
            "total_s": 0.7,
        },
    }  # fmt: skip
    return {"key": f"{i:032x}", "index": i, "ok": True, "answer": answer}


def late(i: int, text: str) -> dict[str, Any]:
    """The line of a row that was not answered in time."""
    error = {"code": "timeout", "message": text}
    return {"key": f"{i:032x}", "index": i, "ok": False, "answer": {"error": error}}


def write_journal(out: Path, lines: Iterable[dict[str, Any]]) -> None:
    begin = {"ingot": "batch-journal", "version": 2, "settings": {"model": "pebble.gguf"}}
    journal_path(out).write_text("".join(json.dumps(line) + "\n" for line in [begin, *lines]))


class Frozen(WatchedJob):
    """A job whose journal is read once, at a moment that is given."""

    given = JobView(
        output="answers.jsonl",
        phase=Phase.RUNNING,
        own=True,
        rows=ROWS,
        answered=20,
        failed=1,
        cached=4,
        running=2,
        slots=2,
        elapsed_s=42.0,
        time_left=Left(60.0, 66.0, 72.0),
        prefill_tps_now=212.4,
        prefill_tps=1034.0,
        decode_tps_now=118.2,
        decode_tps=113.9,
        kv_tokens=612,
        kv_capacity=2048,
        memory_bytes=1_288_490_188,
        speeds=tuple(SpeedAt(i, 200.0 + 40 * (i % 7), 90.0 + 5 * (i % 6)) for i in range(42)),
        notes=("questions.jsonl, line 31: the row has no 'prompt' or 'messages'",),
    )

    @property
    def own(self) -> bool:
        return True

    def poll(self) -> bool:
        return False

    def view(self) -> JobView:
        return self.given


def frozen(said: Callable[[str], str] = str) -> Frozen:
    """A job that is under way: rows of an earlier run, answers and an error of this one. ``said``
    makes what the model has told."""

    def row(i: int) -> dict[str, Any]:
        text = said(f"{i} plus {i + 1} is {2 * i + 1}.")
        return answered(i, text, 14 + i % 3, 30 + i % 11, 55.0 + i % 8)

    run, out = run_of(ROWS, "questions.jsonl"), Path("answers.jsonl")
    late_one = late(20, said("not finished within 5 s (--row-timeout)"))
    write_journal(out, [run, *map(row, range(4)), run, *map(row, range(4, 20)), late_one])
    job = Frozen(out)
    while job.journal.read():
        pass
    job.rows.set_running((21, 22))
    return job
