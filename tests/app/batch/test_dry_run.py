"""What is checked before any work: `--dry-run`, `--strict`, and how much memory checking takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.models.planning import plan_files, task_for
from app.options import ModelOptions
from runtimes.planner.known import save_plan
from runtimes.planner.plan import Figures, Plan
from runtimes.settings import PROMPT_CHUNK, RunnerSettings
from tests.app.batch.conftest import Batch
from tests.support import write_rows


def request(identity: str, text: str, **body: Any) -> dict[str, Any]:
    chat = {"method": "POST", "url": "/v1/chat/completions"}
    messages = [{"role": "user", "content": text}]
    return {"custom_id": identity, **chat, "body": {"messages": messages, **body}}


def looked(batch: Batch, *flags: object, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(batch(*flags, "--dry-run", "--json", code=code).stdout)
    return found


def test_a_dry_run_counts_and_writes_nothing(batch: Batch) -> None:
    rows = [
        request("a", "What is 2 + 2?", max_tokens=5),
        request("b", "What is 2 + 3?", max_tokens=7, n=2),
        request("a", "What is 2 + 4?"),
        request("c", "word " * 400),
        request("d", "hi", stream=True),
        request("e", "hi", logit_bias={"99999999": 1}),
        request("f", "What is the longest of all these questions?", max_tokens=10**6),
    ]
    write_rows(batch.source, rows)
    with batch.source.open("a") as file:
        file.write("{\n")
    flags = ("--context", "128")
    report = looked(batch, *flags, code=1)
    assert (report["rows"], report["valid"], report["invalid"]) == (8, 3, 5)
    assert [(found["where"], found["code"]) for found in report["problems"]] == [
        ("line 3", "duplicate_id"),
        ("line 5", "unsupported_parameter"),
        ("line 8", "invalid_json"),
        ("line 4", "context_length_exceeded"),
        ("line 6", "invalid_request"),
    ]
    longest = report["longest_prompt"]
    assert longest["where"] == "line 7"
    # An answer ends where the context does; each sample is one.
    assert report["most_answer_tokens"] == 5 + 2 * 7 + (128 - longest["tokens"])
    assert report["memory"]["total"] > batch.model.stat().st_size / 2
    shown = batch(*flags, "--dry-run", code=1).stdout
    assert "8: 3 valid, 5 invalid" in shown
    assert "line 1 has the same custom_id" in shown
    assert [path.name for path in batch.source.parent.iterdir()] == ["in.jsonl"]


def test_what_is_read_once_is_what_the_run_finds_cached(batch: Batch) -> None:
    said = "Answer in one word, and be kind to whoever asks. " * 4
    write_rows(batch.source, [{"prompt": f"{n} + 7?"} for n in range(6)])
    options = ["--system", said, "--max-tokens", "2", "--slots", "2"]
    dry = looked(batch, *options)
    assert dry["read_once_tokens"] * 5 == dry["saved_tokens"] > dry["prompt_tokens"] / 2
    # Two rows with the same digit have some more in common.
    cached = batch.end(*options)["cached_tokens"]
    assert cached == pytest.approx(dry["saved_tokens"], rel=0.05)
    once = f"once:    the {dry['read_once_tokens']} tokens that all"
    assert once in batch(*options, "--dry-run").stdout
    chunks = looked(batch, *options, "--reproducible")["read_once_tokens"]
    assert chunks == dry["read_once_tokens"] // PROMPT_CHUNK * PROMPT_CHUNK
    write_rows(batch.source, [{"prompt": said + str(n)} for n in "12"])
    assert looked(batch, "--task", "embed")["saved_tokens"] == 0, "each is embedded whole"
    assert looked(batch, "--limit", "1")["saved_tokens"] == 0


def test_the_time_is_the_plans(batch: Batch, home: Path) -> None:
    write_rows(batch.source, [{"prompt": f"{i}?"} for i in range(200)])
    assert "ingot plan" in batch("--dry-run").stdout
    model = str(batch.model)
    files = plan_files(model, ModelOptions(), None).models
    figures = Figures(prefill_tps=1000.0, decode_tps={1: 10.0, 4: 25.0, 8: 40.0})
    settings = RunnerSettings(threads=1, slots=4, context=512, unified_kv=True, gpu_layers=0)
    plan = Plan("batch", "balanced", "llamacpp", model, settings, 1, figures)
    save_plan(files, task_for("batch", "balanced"), plan)
    report = looked(batch, "--max-tokens", "20")
    assert report["slots"] == 4
    expected = report["prompt_tokens"] / 1000 + 200 * 20 / 25
    assert report["most_seconds"] == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"prompt": "x"}, {}], "line 2: the row has no"),
        ([{"prompt": "x", "id": 1}, {"prompt": "y", "id": 1}], "line 2 that of line 1"),
        ([request("a", "x"), request("a", "y")], 'line 2: line 1 has the same custom_id "a"'),
        ([{"prompt": "x"}, {"prompt": "word " * 4000}], "line 2: the prompt has"),
    ],
    ids=["row", "id", "custom_id", "length"],
)
def test_strict_stops_before_any_work(batch: Batch, rows: list[Any], words: str) -> None:
    write_rows(batch.source, rows)
    shown = batch("--strict", code=2).stderr
    assert words in shown
    assert "--strict" in shown
    assert ("1 rows do not fit" in shown) == words.endswith("the prompt has")
    assert list(batch.source.parent.iterdir()) == [batch.source]


_PEAK = """
import sys
from app.cli.main import main
from quantize.quality.peak import peak_resident
for path in sys.argv[2:]:
    code = main(["batch", path, "--model", sys.argv[1], "--dry-run", "--json"])
    print(code, peak_resident())
"""


def test_memory_grows_by_little_for_each_row(gguf_file: Path, tmp_path: Path) -> None:
    """Ids, lines and digests are all that is kept: no row is."""
    filler = "What is this text about? " * 60
    files = [
        write_rows(
            tmp_path / str(count),
            ({"id": f"row {i}", "prompt": "x", "more": filler} for i in range(count)),
        )
        for count in (500, 5_500)
    ]
    command = [sys.executable, "-c", _PEAK, gguf_file, files[0], *files]  # once to get warm
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    _, (few, small), (many, large) = (line.split() for line in done.stdout.splitlines()[1::2])
    assert (few, many) == ("0", "0")
    assert (int(large) - int(small)) / 5_000 < 400
