"""Rows that ask for scores, labels and embeddings: against the float model, killed, and refused."""

from __future__ import annotations

import csv
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.batch.journal.journal import journal_path
from app.batch.journal.lines import read_state
from app.batch.spec import BatchSpec, InputOptions
from app.batch.watch.preview import preview
from tests.app import stopping
from tests.app.batch.conftest import Batch
from tests.app.workers import worker_of
from tests.support import read_rows, write_rows

# Of each continuation the log-probability and the tokens that lm-evaluation-harness'
# ``loglikelihood`` finds with the float model: transformers' logits of both texts together, of
# which a space at the end of the prompt belongs to what follows.
PAIRS = json.loads(Path(__file__).with_name("scores.json").read_text("utf-8"))
ENDS = [*PAIRS[0]["expected"]]


def asked(prompt: str) -> dict[str, Any]:
    return {"prompt": prompt, "continuations": ENDS}


@pytest.mark.parametrize("kind", ["gguf_file", "onnx_folder"])
def test_scores_are_those_of_the_harness(
    batch: Batch, kind: str, request: pytest.FixtureRequest
) -> None:
    batch.model = request.getfixturevalue(kind)
    prompts = [pair["prompt"] for pair in PAIRS]
    write_rows(batch.source, map(asked, [*prompts, "What is 2 + 3? " + "Think well. " * 40]))
    batch("--task", "score", "--raw", "-q")
    records = batch.records
    for pair, record in zip(PAIRS, records, strict=False):
        assert list(record)[:7] == [
            "id", "index", "prompt", "continuations", "scores", "best", "best_norm",
        ]  # fmt: skip
        for score, (text, (logprob, tokens)) in zip(
            record["scores"], pair["expected"].items(), strict=True
        ):
            assert (score["text"], score["tokens"]) == (text, tokens)
            # What 8 bits change of a text's probability is little beside it.
            assert score["logprob"] == pytest.approx(logprob, rel=0.04, abs=0.2)
        sums = np.array([score["logprob"] for score in record["scores"]])
        lengths = np.array([len(text.strip()) for text in ENDS])
        best = int(np.argmax(sums)), int(np.argmax(sums / lengths))
        assert (record["best"], record["best_norm"]) == best
    # All but the first continuation found the prompt, less its last tokens.
    usage = records[-1]["usage"]
    scored = sum(score["tokens"] for score in records[-1]["scores"])
    prompt = (usage["prompt_tokens"] - scored) // len(ENDS)
    assert prompt > 100
    assert usage["cached_tokens"] > (len(ENDS) - 1) * (prompt - 4)


def test_labels_in_a_table(batch: Batch) -> None:
    batch.source, batch.out = (path.with_suffix(".csv") for path in (batch.source, batch.out))
    batch.source.write_text("text,label\nWhat is the capital of France?,x\n,y\n")
    labels = ["The capital of France is Paris.", "3 + 4 = 7"]
    choices = [word for label in labels for word in ("--choice", label)]
    batch("--task", "classify", *choices, "-q", code=1)
    with batch.out.open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["label"], first["input_label"]) == (labels[0], "x")
    likely = json.loads(first["probabilities"])
    assert list(likely) == labels
    assert likely[labels[0]] > 0.9
    assert sum(likely.values()) == pytest.approx(1, abs=1e-5)
    assert (second["label"], second["error.code"]) == ("", "empty_prompt")


def test_embeddings_in_every_form(batch: Batch, command: Any, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = ["The capital of France is Paris.", "What is 12 + 30?", "word " * 5000]
    write_rows(batch.source, [{"text": text} for text in texts])
    embed, parts = ["--task", "embed", "-q"], [tmp_path / f"part{i}.parquet" for i in (1, 2)]
    lines, merged = tmp_path / "lines.jsonl", tmp_path / "merged.parquet"
    batch(*embed, code=1)
    run = read_state(journal_path(batch.out)).run
    assert run is not None
    assert not run["spec"].keys() & {"file", "slots"}  # only what was asked
    batch(*embed, "--format", "openai", out=lines, code=1)
    for number, part in enumerate(parts, 1):
        command(*batch.words(*embed, "--shard", f"{number}/2", out=part))
    command("batch", "merge", merged, *parts)
    table = parquet.read_table(merged).to_pylist()
    records = batch.records
    assert records[2]["error"]["code"] == "context_length_exceeded"
    assert table[2]["embedding"] is None
    for record, line, row in zip(records[:2], read_rows(lines), table, strict=False):
        vector, body = np.array(record["embedding"]), line["response"]["body"]
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
        assert body["object"] == "list"
        assert body["usage"]["prompt_tokens"] == record["usage"]["prompt_tokens"]
        for other in (body["data"][0], row):
            assert np.abs(np.array(other["embedding"]) - vector).max() < 1e-6


def test_lines_of_other_endpoints(batch: Batch) -> None:
    def line(name: str, url: str, **body: Any) -> dict[str, Any]:
        return {"custom_id": name, "method": "POST", "url": url, "body": {"model": "m", **body}}

    embeddings, completions = "/v1/embeddings", "/v1/completions"
    lines = [
        line("two", embeddings, input=["Paris", "Rome"], dimensions=4),
        line("echo", completions, prompt="One, two,", echo=True, max_tokens=0, logprobs=1),
        line("several", completions, prompt=["One, two,", "What is"], max_tokens=2, n=2),
        line("outside", completions, prompt=[10**6], max_tokens=2),
        line("none", embeddings),
    ]
    write_rows(batch.source, lines)
    batch("-q", code=1)
    found = {record["custom_id"]: record for record in batch.records}
    bodies = {name: record["response"]["body"] for name, record in found.items()}
    assert [len(one["embedding"]) for one in bodies["two"]["data"]] == [4, 4]
    [echo] = bodies["echo"]["choices"]
    assert echo["text"] == "One, two,"
    first, *others = echo["logprobs"]["token_logprobs"]
    assert first is None
    assert all(value < 0 for value in others)
    assert [one["index"] for one in bodies["several"]["choices"]] == [0, 1, 2, 3]
    assert {name: one["error"]["code"] for name, one in found.items() if one["error"]} == {
        "outside": "invalid_request",
        "none": "missing_parameter",
    }


def test_a_scored_row_is_done_once_whatever_dies(batch: Batch, ingot: Any, tmp_path: Path) -> None:
    """It is ended and goes on, and then its worker dies."""
    count = 16
    ends = [[f"{number} + 1 = {number + more}" for more in range(3)] for number in range(count)]
    write_rows(
        batch.source,
        [{"prompt": f"What is {i} + 1?", "continuations": ends[i]} for i in range(count)],
    )
    words = ["--task", "score", "--reproducible", "--slots", "4", "--json"]
    batch(*words, "--limit", "4")
    held = stopping.after_rows(tmp_path / "held", 4)
    process = ingot.start(*batch.words(*words), env=held)
    stopping.wait_stopped(process)
    worker = worker_of(process)
    assert worker is not None
    worker.kill()
    process.send_signal(signal.SIGCONT)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert json.loads(said.splitlines()[-1])["answered"] == count
    assert sorted(batch.computed) == list(range(count))


def test_a_preview_and_a_dry_run_show_what_may_follow(batch: Batch) -> None:
    write_rows(batch.source, [asked("The capital of France is"), {"prompt": "x"}])
    shown = preview(BatchSpec(str(batch.source), rows=InputOptions(task="score"))).rows
    assert shown[0].prompt.splitlines()[:3] == [
        "The capital of France is",
        "[then]  Paris",
        "[then]  Rome.",
    ]
    assert "'continuations'" in (shown[1].error or "")
    flags = ["--format", "openai", "--limit", "1", "--test"]
    for task, code, said in (
        ("score", 2, "OpenAI's batch lines have no --task score"),
        ("classify", 2, "can be asked: the row has no 'labels' or 'choices'; --field"),
        ("embed", 0, ""),
    ):
        assert said in batch("--task", task, *flags, code=code).stderr
    assert "1 valid, 1 invalid" in batch("--task", "score", "--dry-run", code=1).stdout
