"""Rows that ask for scores, labels and embeddings: against the float model, killed, and refused."""

from __future__ import annotations

import csv
import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.batch.journal.journal import journal_path
from app.batch.spec import BatchSpec, InputOptions
from app.batch.watch.preview import preview
from tests.app import stopping
from tests.app.workers import worker_of
from tests.support import read_rows, write_rows

ONE = ["--threads", "1", "--quiet"]
PAIRS = [
    {
        "id": f"capital-{number}",
        "prompt": prompt,
        "continuations": [" Paris", " Rome.", " the city of Paris, in France", "\nParis"],
    }
    for number, prompt in enumerate(
        (
            "The capital of France is",
            "The capital of Italy is ",  # the space belongs to what follows
            "What is the capital of France?\nThe capital of France is",
            "Zürich lies in Switzerland. 東京 is the capital of",
        )
    )
]


def harness(model: Any, tokenizer: Any, context: str, continuation: str) -> tuple[float, int, bool]:
    """lm-evaluation-harness' ``_encode_pair`` and ``loglikelihood`` for a causal model."""
    import torch

    spaces = len(context) - len(context.rstrip())
    if spaces > 0:
        continuation = context[-spaces:] + continuation
        context = context[:-spaces]
    whole = tokenizer(context + continuation)["input_ids"]
    begin = len(tokenizer(context)["input_ids"])
    with torch.no_grad():
        logits = model(torch.tensor([whole])).logits[0].double()
    logs = torch.log_softmax(logits, -1)[begin - 1 : -1]
    rest = torch.tensor(whole[begin:])
    chosen = logs.gather(1, rest[:, None])[:, 0]
    return float(chosen.sum()), len(rest), bool((logs.argmax(1) == rest).all())


@pytest.mark.parametrize("kind", ["gguf_file", "onnx_folder"])
def test_scores_are_those_of_the_harness(
    command: Any, pebble: Path, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rows, out = write_rows(tmp_path / "in.jsonl", PAIRS), tmp_path / "out.jsonl"
    words = ["batch", rows, out, "--model", request.getfixturevalue(kind), "--task", "score"]
    done = command(*words, "--raw", *ONE)
    assert done.returncode == 0, done.stderr
    model = AutoModelForCausalLM.from_pretrained(pebble, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(pebble)
    for row, record in zip(PAIRS, read_rows(out), strict=True):
        assert list(record)[:7] == [
            "id", "index", "prompt", "continuations", "scores", "best", "best_norm",
        ]  # fmt: skip
        sums = []
        for text, score in zip(row["continuations"], record["scores"], strict=True):
            total, tokens, _ = harness(model, tokenizer, str(row["prompt"]), text)
            assert (score["text"], score["tokens"]) == (text, tokens)
            # What 8 bits change of a text's probability is little beside it.
            assert score["logprob"] == pytest.approx(total, rel=0.04, abs=0.2)
            sums.append(score["logprob"])
        assert record["best"] == int(np.argmax(sums))
        lengths = [len(text.strip()) for text in row["continuations"]]
        assert record["best_norm"] == int(np.argmax(np.array(sums) / lengths))


def test_a_prompt_is_read_once_for_all_that_may_follow(
    command: Any, gguf_file: Path, tmp_path: Path
) -> None:
    ends = [f"The answer is {number}." for number in range(6)]
    asked = {"prompt": "What is 2 + 3? " + "Think well. " * 40, "continuations": ends}
    rows, out = write_rows(tmp_path / "in.jsonl", [asked]), tmp_path / "out.jsonl"
    done = command("batch", rows, out, "--model", gguf_file, "--task", "score", *ONE)
    assert done.returncode == 0, done.stderr
    [record] = read_rows(out)
    usage = record["usage"]
    scored = sum(score["tokens"] for score in record["scores"])
    prompt = (usage["prompt_tokens"] - scored) // len(ends)
    assert prompt > 100
    # All but the first continuation found the prompt, less its last tokens.
    assert usage["cached_tokens"] > (len(ends) - 1) * (prompt - 4)


def test_labels_in_a_table(command: Any, gguf_file: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("text,label\nWhat is the capital of France?,x\n,y\n")
    labels = ["The capital of France is Paris.", "3 + 4 = 7"]
    choices = [word for label in labels for word in ("--choice", label)]
    words = ["batch", source, out, "--model", gguf_file, "--task", "classify", *choices, *ONE]
    assert command(*words).returncode == 1
    with out.open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["label"], first["input_label"]) == (labels[0], "x")
    likely = json.loads(first["probabilities"])
    assert list(likely) == labels
    assert likely[labels[0]] > 0.9
    assert sum(likely.values()) == pytest.approx(1, abs=1e-5)
    assert (second["label"], second["error.code"]) == ("", "empty_prompt")


def test_embeddings_in_every_form(command: Any, gguf_file: Path, tmp_path: Path) -> None:
    texts = ["The capital of France is Paris.", "What is 12 + 30?", "word " * 5000]
    rows = write_rows(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    found = {}
    for name in ("out.jsonl", "lines.jsonl", "out.parquet"):
        if name.endswith("parquet"):
            pytest.importorskip("pyarrow")
        form = ["--format", "openai"] if name == "lines.jsonl" else []
        words = ["batch", rows, tmp_path / name, "--model", gguf_file, "--task", "embed", *form]
        assert command(*words, *ONE).returncode == 1
    records = read_rows(tmp_path / "out.jsonl")
    assert records[2]["error"]["code"] == "context_length_exceeded"
    for record, line in zip(records[:2], read_rows(tmp_path / "lines.jsonl"), strict=False):
        vector = np.array(record["embedding"])
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
        body = line["response"]["body"]
        assert (body["object"], body["usage"]["prompt_tokens"]) == (
            "list",
            record["usage"]["prompt_tokens"],
        )
        assert np.abs(np.array(body["data"][0]["embedding"]) - vector).max() < 1e-6
        found[record["index"]] = vector
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert np.abs(np.array(table[0]["embedding"]) - found[0]).max() < 1e-6
    assert table[2]["embedding"] is None
    parts = [tmp_path / f"part{number}.parquet" for number in (1, 2)]
    for number, part in enumerate(parts, 1):
        words = ["batch", rows, part, "--model", gguf_file, "--task", "embed"]
        command(*words, "--shard", f"{number}/2", *ONE)
    command("batch", "merge", tmp_path / "merged.parquet", *parts)
    merged = pyarrow.parquet.read_table(tmp_path / "merged.parquet").to_pylist()
    assert np.abs(np.array(merged[0]["embedding"]) - found[0]).max() < 1e-6


def lines_of_a_batch() -> list[dict[str, Any]]:
    def line(name: str, url: str, **body: Any) -> dict[str, Any]:
        return {"custom_id": name, "method": "POST", "url": url, "body": {"model": "m", **body}}

    embeddings, completions = "/v1/embeddings", "/v1/completions"
    return [
        line("two", embeddings, input=["Paris", "Rome"], dimensions=4),
        line("packed", embeddings, input=[5, 6], encoding_format="base64"),
        line("wide", embeddings, input="x", dimensions=10**6),
        line("echo", completions, prompt="One, two,", echo=True, max_tokens=0, logprobs=1),
        line("several", completions, prompt=["One, two,", "What is"], max_tokens=2, n=2),
        line("ids", completions, prompt=[5, 6, 7], max_tokens=2),
        line("outside", completions, prompt=[10**6], max_tokens=2),
        line("none", embeddings),
    ]


def test_lines_of_other_endpoints(command: Any, gguf_file: Path, tmp_path: Path) -> None:
    rows, out = write_rows(tmp_path / "in.jsonl", lines_of_a_batch()), tmp_path / "out.jsonl"
    assert command("batch", rows, out, "--model", gguf_file, *ONE).returncode == 1
    found = {record["custom_id"]: record for record in read_rows(out)}
    bodies = {name: record["response"]["body"] for name, record in found.items()}
    assert [len(one["embedding"]) for one in bodies["two"]["data"]] == [4, 4]
    assert isinstance(bodies["packed"]["data"][0]["embedding"], str)
    [echo] = bodies["echo"]["choices"]
    assert echo["text"] == "One, two,"
    assert echo["logprobs"]["token_logprobs"][0] is None
    assert all(value < 0 for value in echo["logprobs"]["token_logprobs"][1:])
    assert [one["index"] for one in bodies["several"]["choices"]] == [0, 1, 2, 3]
    assert bodies["ids"]["usage"]["prompt_tokens"] == 3
    codes = {name: (record["error"] or {}).get("code") for name, record in found.items()}
    assert {name: code for name, code in codes.items() if code} == {
        "wide": "invalid_value",
        "outside": "invalid_request",
        "none": "missing_parameter",
    }


COUNT = 40
ASKED = [
    {
        "id": number,
        "prompt": f"What is {number} + 1?",
        "continuations": [f"{number} + 1 = {number + more}" for more in range(3)],
        "labels": ["odd", "even"],
    }
    for number in range(COUNT)
]


def done_once(out: Path) -> bool:
    """Whether the journal has a record of each row, and of none two."""
    lines = read_rows(journal_path(out))
    return Counter(line["index"] for line in lines if "index" in line) == Counter(range(COUNT))


@pytest.mark.parametrize("task", ["score", "embed"])
def test_a_worker_that_dies_costs_no_row(
    ingot: Any, gguf_file: Path, tmp_path: Path, task: str
) -> None:
    source, out = write_rows(tmp_path / "in.jsonl", ASKED), tmp_path / "out.jsonl"
    words = ["batch", source, out, "--model", gguf_file, "--task", task, "--threads", "1", "--json"]
    process = ingot.start(*words, env=stopping.after_rows(tmp_path / "held", 5))
    stopping.wait_stopped(process)
    worker = worker_of(process)
    assert worker is not None
    worker.kill()
    process.send_signal(signal.SIGCONT)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    end = json.loads(said.splitlines()[-1])
    assert end["answered"] == COUNT
    assert end["crashes"] <= 1  # none where it had finished all that it was given
    assert done_once(out)


@pytest.mark.parametrize("task", ["score", "classify", "embed"])
def test_a_row_is_done_once_whatever_kills_the_job(
    ingot: Any, command: Any, gguf_file: Path, tmp_path: Path, task: str
) -> None:
    source, out = write_rows(tmp_path / "in.jsonl", ASKED), tmp_path / "out.jsonl"
    calm = tmp_path / "calm.jsonl"
    words = ["--model", gguf_file, "--task", task, "--reproducible", *ONE]
    for number in range(2):
        env = stopping.after_rows(tmp_path / f"held{number}", 5)
        process = ingot.start("batch", source, out, *words, env=env)
        stopping.wait_stopped(process)
        process.kill()
        process.communicate()
    assert not out.exists()
    assert command("batch", source, out, *words).returncode == 0
    assert done_once(out)
    assert command("batch", source, calm, *words).returncode == 0
    assert calm.read_bytes() == out.read_bytes()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--task", "embed", "--choice", "a"], "--task embed generates nothing: leave --choice"),
        (["--task", "score", "--regex", "a+"], "leave --regex out"),
        (["--task", "classify", "--choice", "a"], "two different --choice"),
        (["--task", "classify", "--choice", "a", "--choice", "a"], "two different --choice"),
        (["--task", "score", "--json-schema-field", "s"], "leave --json-schema-field out"),
        (["--dimensions", "3"], "--dimensions is for --task embed"),
        (["--task", "score", "--format", "openai"], "OpenAI's batch lines have no --task score"),
        (["--task", "embed", "--recipe", "onnx-int8"], "ONNX graphs and rerankers give none"),
    ],
)
def test_what_is_refused(
    command: Any, pebble_built: Path, tmp_path: Path, flags: list[str], said: str
) -> None:
    rows = write_rows(tmp_path / "in.jsonl", PAIRS)
    done = command("batch", rows, tmp_path / "out.jsonl", "--model", pebble_built, *flags)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "out.jsonl").exists()


def test_a_preview_shows_what_may_follow(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "in.jsonl", [PAIRS[0], {"prompt": "x"}])
    shown = preview(BatchSpec(str(rows), rows=InputOptions(task="score"))).rows
    assert shown[0].prompt.splitlines()[:3] == [
        "The capital of France is",
        "[then]  Paris",
        "[then]  Rome.",
    ]
    assert "'continuations'" in (shown[1].error or "")


def test_another_task_is_another_job(command: Any, gguf_file: Path, tmp_path: Path) -> None:
    rows, out = write_rows(tmp_path / "in.jsonl", PAIRS), tmp_path / "out.jsonl"
    words = ["batch", rows, out, "--model", gguf_file, *ONE]
    assert command(*words, "--task", "score").returncode == 0
    again = command(*words, "--max-tokens", "4")
    assert again.returncode == 2
    assert 'task: "score" -> none' in again.stderr
    looked = command(*words[:2], *words[3:], "--task", "score", "--dry-run")
    assert looked.returncode == 0, looked.stderr
    assert "4 valid" in looked.stdout
