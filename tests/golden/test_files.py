"""What `ingot` writes and prints as data: keys in their order, types, and where marks and spaces
count the lines themselves, with their texts and numbers masked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.golden.shapes import masked, shape

ROWS = """\
{"id":"a","prompt":"What is 1 + 1?"}
{"id":"b","prompt":"What is 2 + 1?","extra":true}
{"prompt":7}
{"prompt":"What is 3 + 1?"}
"""
TABLES = ("out.csv", "out.parquet")
ASKED = "--recipe q8_0 --max-tokens 4 --temperature 0 --threads 1 --quiet"
JOB = f"-m BUILT {ASKED}"


@pytest.fixture(scope="module")
def job(commands: Any, folder: Path) -> dict[str, str]:
    """What each command printed, of a job and of the model. The job's output in other forms is made
    of its journal, which takes no model."""
    (folder / "in.jsonl").write_text(ROWS)
    lines = {
        "events": f"ingot batch in.jsonl out.jsonl {JOB} --json --report report.json",
        "status": "ingot batch status out.jsonl --json",
        "dry-run": f"ingot batch in.jsonl {JOB} --dry-run --json",
        "logprobs": f"ingot batch in.jsonl - {JOB} --no-input-fields --logprobs --n 2",
        "run": f"ingot run BUILT hello {ASKED} --json",
        "plan": "ingot plan BUILT --recipe q8_0 --threads 1 --context 64 --json",
        "doctor": "ingot doctor --json",
        "checksums": "ingot doctor BUILT --checksums --json",
    }
    said = commands(*lines.values())
    assert [one["code"] for one in said] == [1, 0, 1, 1, 0, 0, 0, 0], said
    for name in (*TABLES, "openai.jsonl"):
        shutil.copy(folder / "out.jsonl.journal.jsonl", folder / f"{name}.journal.jsonl")
    again = commands(
        *(f"ingot batch in.jsonl {name} {JOB}" for name in TABLES),
        f"ingot batch in.jsonl openai.jsonl {JOB} --format openai",
    )
    assert [one["code"] for one in again] == [1, 1, 1], again
    return {name: one["out"] for name, one in zip(lines, said, strict=True)}


def test_rows(job: dict[str, str], folder: Path, golden: Any) -> None:
    rows = [(folder / name).read_text() for name in ("out.jsonl", "openai.jsonl")]
    assert "\n".join(masked(text) for text in (*rows, job["logprobs"])) == golden


def test_tables(job: dict[str, str], folder: Path, golden: Any) -> None:
    parquet = pytest.importorskip("pyarrow.parquet").read_schema(folder / "out.parquet")
    head, _, _, bad, _ = (folder / "out.csv").read_text().splitlines()
    assert f"{head}\n{bad}\n\n{parquet.to_string(show_schema_metadata=False)}\n" == golden


def test_journal(job: dict[str, str], folder: Path, golden: Any) -> None:
    lines = (folder / "out.jsonl.journal.jsonl").read_text().splitlines(keepends=True)
    told = [line for line in lines if '"batch-left"' not in line]  # on a slow machine
    assert masked("".join(told)) == golden


def test_events(job: dict[str, str], golden: Any) -> None:
    kinds: dict[str, list[Any]] = {}  # in the order of their first; how many there are is chance
    for line in job["events"].splitlines():
        event = json.loads(line)
        kinds.setdefault(event["event"], []).append(event)
    told = (f"{kind}\n{shape(events, types=False)}" for kind, events in kinds.items())
    assert "\n".join(told) == golden


@pytest.mark.parametrize("name", ["status", "dry-run", "run", "plan", "doctor", "checksums"])
def test_answers(job: dict[str, str], name: str, golden: Any) -> None:
    told = json.loads(job[name])
    if name == "plan":
        told["accuracy"] = {}  # of a folder that was measured
    if name == "doctor":
        told["hardware"]["gpus"] = []
    assert shape(told, types=False) == golden


def test_report(job: dict[str, str], folder: Path, golden: Any) -> None:
    assert shape(json.loads((folder / "report.json").read_text()), types=False) == golden


def test_built(pebble_built: Path, golden: Any) -> None:
    manifest = json.loads((pebble_built / "manifest.json").read_text())
    manifest["model"].update(quality=None, perplexity=None)
    for file in manifest["files"]:
        file.update(quality=None, fidelity=None, speed=None, tools={})  # which differ by machine
    paths = (path.relative_to(pebble_built) for path in pebble_built.rglob("*"))
    names = sorted(path.as_posix() for path in paths if not path.parts[0].startswith("."))
    assert "\n".join([*names, "", shape(manifest)]) == golden
