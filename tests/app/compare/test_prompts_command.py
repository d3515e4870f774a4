"""`ingot compare --prompts` with Pebble's real files: its figures are computed again from texts."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

from runtimes.models.registry import read_model, tokenizer_of
from runtimes.output import markdown_lines
from tests.support import read_rows, until

PROMPTS = [
    {"prompt": "What is the capital of France?", "expected": "The capital of France is Paris."},
    {"prompt": "Tell me a story about a fox and a tailor in Rome", "expected": "no such story"},
    {"prompt": "What is 2 + 2?", "answer": ["5", "2 + 2 = 4"]},
    {"prompt": "Tell me a story about a robot | of steel.\nIt is short."},
    {"prompt": "Which one?", "choices": ["a", "b"], "answer": 1},
    {"prompt": 7},
]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in PROMPTS))
    return path


def files(built: Path) -> list[Path]:
    return [built / "pebble-q8_0.gguf", built / "pebble-q4_k_m.gguf", built / "onnx-int4"]


def start_of(a: Any, b: Any) -> int:
    """How much of the beginning is equal; another way than the code's."""
    return next(n for n in range(min(len(a), len(b)), -1, -1) if a[:n] == b[:n])


@pytest.mark.usefixtures("home")
def test_figures_are_those_of_the_texts(
    command: Any, pebble_built: Path, prompts: Path, tmp_path: Path
) -> None:
    models, page = files(pebble_built), tmp_path / "report.md"
    # One after the other: what is computed beside an answer decides near-ties.
    flags = ["--prompts", prompts, "--max-tokens", "48", "--slots", "1"]
    done = command("compare", *models, *flags, "--output", page, "--json")
    assert done.returncode == 1, done.stderr  # a row that is no prompt
    found = json.loads(done.stdout)
    assert [file["file"] for file in found["files"]] == [str(model) for model in models]
    assert [file["runtime"] for file in found["files"]] == ["llamacpp", "llamacpp", "onnx"]
    rows = [[told["text"] for told in row["answers"]] for row in found["rows"][:5]]
    asked = [[str(v) for v in e] for e in (["The capital of France is Paris."], ["no such story"])]
    asked += [["5", "2 + 2 = 4"], [], ["b"]]
    assert [row["expected"] for row in found["rows"]] == [*asked, []]
    right = [[t.strip() in e for t in texts] for texts, e in zip(rows, asked, strict=True) if e]
    for number, file in enumerate(found["files"]):
        assert (file["answered"], file["failed"]) == (5, 1)
        assert file["right"] == sum(one[number] for one in right)
        speeds = [row["answers"][number]["decode_tps"] for row in found["rows"][:5]]
        assert file["decode_tps"] == median(speed for speed in speeds if speed is not None)
        assert file["ttft_s"] == median(r["answers"][number]["ttft_s"] for r in found["rows"][:5])
        assert file["bytes"] > 1e6
        assert 4 < file["bits_per_weight"] < 9
        assert file["kl"] is None  # these were built without measuring
    encoders = [tokenizer_of(read_model(model)) for model in models]
    differ = 0
    for number, pair in enumerate(found["pairs"], 1):
        same = [texts[0] == texts[number] for texts in rows]
        differ += same.count(False)
        assert (pair["rows"], pair["identical"]) == (5, same.count(True))
        assert pair["identical_share"] == same.count(True) / 5
        assert [row["same"][number - 1] for row in found["rows"]] == [*same, None]
        assert pair["unit"] == "tokens"
        places = []
        for texts, is_same in zip(rows, same, strict=True):
            ids = [encoders[n].encode(texts[n], add_special=False) for n in (0, number)]
            if not is_same:
                places.append(start_of(*ids))
        assert [
            r["parts"][number - 1] for r in found["rows"] if r["parts"][number - 1] is not None
        ] == places
        assert pair["first_difference_mean"] == pytest.approx(mean(places))
        assert pair["first_difference_median"] == median(places)
        was = Counter((one[0], one[number]) for one in right)
        assert pair["flips"]["rows"] == 4
        assert pair["flips"]["to_wrong"] == was[True, False]
        assert pair["flips"]["to_right"] == was[False, True]
    assert differ  # else nothing of this was tried
    text = page.read_text()
    assert text.count("\n### ") == 6
    for texts in rows:
        for number, answer in enumerate(texts):
            cell = "<br>".join(markdown_lines(answer))
            assert cell in text.replace("▶", ""), number
    assert "The capital of France is Paris. ✓" in text
    # Again: nothing is asked any more, and stdout has a table without colours.
    again = command("compare", *models, *flags)
    assert again.stderr.count("no row needed the model") == 3
    assert "\x1b" not in again.stdout
    assert f"{found['pairs'][0]['identical']} of 5" in again.stdout


def test_a_killed_run_goes_on(
    ingot: Any, command: Any, home: Path, pebble_built: Path, tmp_path: Path
) -> None:
    rows = tmp_path / "many.txt"
    rows.write_text("".join(f"The number {number} is\n" for number in range(30)))
    words = ["compare", *files(pebble_built)[:2], "--prompts", rows, "--max-tokens", "12"]
    words += ["--slots", "4", "--json"]

    def journals() -> dict[Path, int]:
        found = home.glob("state/compare/*/answers.jsonl.journal.jsonl")
        return {path: path.read_bytes().count(b'"ok":true') for path in found}

    process = ingot.start(*words)  # killed in the second file's rows
    until(lambda: sum(journals().values()) >= 36 or process.poll() is not None)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    held = sum(journals().values())
    assert held >= 36
    done = command(*words)
    assert done.returncode == 0, done.stderr
    assert [file["answered"] for file in json.loads(done.stdout)["files"]] == [30, 30]
    for path in journals():
        computed = Counter(line["index"] for line in read_rows(path) if "index" in line)
        assert computed == Counter(range(30))  # each row finished once


@pytest.mark.usefixtures("home")
def test_refusals(command: Any, pebble_built: Path, prompts: Path, tmp_path: Path) -> None:
    one, other, _ = files(pebble_built)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "folder.md").mkdir()
    text = tmp_path / "prompts.md"
    text.write_text("a prompt\n")
    refused = {
        "is named twice": [one, other, one, "--prompts", prompts],
        "needs two files": [one, "--prompts", prompts],
        "no such file or folder": [one, other, "--prompts", tmp_path / "none.jsonl"],
        "several times": [one, other, "--prompts", "/dev/null"],
        "has no rows": [one, other, "--prompts", tmp_path / "empty.txt"],
        "must end with .md or .json": [one, other, "--prompts", prompts, "--output", "a.pdf"],
        "no such folder": [one, other, "--prompts", prompts, "--output", tmp_path / "no/a.md"],
        "it is a folder": [one, other, "--prompts", prompts, "--output", tmp_path / "folder.md"],
        "replace the prompts": [one, other, "--prompts", text, "--output", text],
        "--together is for one": [one, other, "--prompts", prompts, "--together"],
        "--output goes with": [one, "Hello", "--output", tmp_path / "a.md"],
        "--reproducible goes with": [one, "Hello", "--reproducible"],
        "give one PROMPT": [one, "Hello", "you"],
    }
    for said, arguments in refused.items():
        done = command("compare", *arguments)
        assert said in done.stderr, arguments
        assert (done.returncode, done.stdout) == (2, ""), arguments
    missing = command("compare", one, tmp_path / "none.gguf", "--prompts", prompts)
    assert missing.returncode == 3, missing.stderr
