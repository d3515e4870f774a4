"""What `ingot batch` refuses before any work: nothing is written, and nothing replaced."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support import write_rows


@pytest.fixture
def folder(tmp_path: Path, gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with all that a command might take for something else."""
    monkeypatch.chdir(tmp_path)
    write_rows(Path("in.jsonl"), [{"prompt": "x"}, {"prompt": "y"}])
    Path("empty").touch()
    Path("blank").write_bytes(b"\n \r\n\n")
    write_rows(Path("other.jsonl"), [{"a": "x", "b": 2}])
    Path("theirs").write_text("precious")
    Path("loop").symlink_to("loop")
    os.mkfifo("pipe")
    Path("folder").mkdir()
    Path("protected").touch(0o400)
    Path("link").symlink_to("in.jsonl")
    Path("here").symlink_to(".")
    Path("model.gguf").symlink_to(gguf_file)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("empty out", "has no rows"),
        ("blank out", "has no rows"),
        ("other.jsonl out", "a, b"),
        ("other.jsonl out --field c.d", "a, b"),
        ("in.jsonl in.jsonl", "overwrite the input"),
        ("in.jsonl none/out", "no folder"),
        ("in.jsonl .", "folder"),
        ("in.jsonl theirs", "--fresh replaces it"),
        ("in.jsonl theirs --force", "--fresh replaces it"),  # which keeps what is there
        ("in.jsonl loop --fresh", "loop cannot be written: Too many levels"),
        ("in.jsonl pipe --fresh", "not a regular file"),
        ("in.jsonl /dev/null --fresh", "not a regular file"),
        ("in.jsonl folder --fresh", "is a folder"),
        ("in.jsonl protected --fresh", "cannot be written: Permission denied"),
        ("in.jsonl", "OUT"),
        ("missing out", "no such file"),
        ("in.jsonl - --json", "--json"),
        ("in.jsonl out --top-p 7", "top_p"),
        ("in.jsonl out --slots 0", "--slots"),
        ("status", "usage: ingot batch status OUT"),
        ("status none", "no job here"),
        ("status in.jsonl --model m", "./status"),
        ("merge out", "PART"),
        ("merge out missing", "no such file"),
        ("in.jsonl out", "--model"),
        ("in.jsonl out more", "more"),
        ("in.jsonl - --unordered", "--unordered"),
        ("in.jsonl - --format csv", "csv"),
        ("in.jsonl out.csv --unordered", "--unordered"),
        ("in.jsonl out --shard 3/2", "I/N"),
        ("in.jsonl out --n 3 --best-of 2", "best_of"),
        # What a job uses itself, also through a link, cannot take its report.
        *((f"in.jsonl out --report {name}", "--report") for name in (
            *(".", "nowhere/report", "theirs/report", "out", "out.journal.jsonl", "in.jsonl"),
            *("link", "here/in.jsonl", "model.gguf"),
        )),
        ("in.jsonl out --task embed --choice a", "--task embed generates nothing: leave --choice"),
        ("in.jsonl out --task score --regex a+", "leave --regex out"),
        ("in.jsonl out --task classify --choice a", "two different --choice"),
        ("in.jsonl out --task classify --choice a --choice a", "two different --choice"),
        ("in.jsonl out --task score --json-schema-field s", "leave --json-schema-field out"),
        ("in.jsonl out --dimensions 3", "--dimensions is for --task embed"),
        ("in.jsonl out --task embed --model BUILT --recipe onnx-int8", "ONNX graphs and rerankers"),
        ("in.jsonl out --reproducible --unified-kv", "--reproducible"),
    ],
)  # fmt: skip
def test_refused_before_any_work(
    folder: Path, command: Any, pebble_built: Path, arguments: str, words: str
) -> None:
    if "protected" in arguments and os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    before = sorted(folder.iterdir())
    given = [str(pebble_built) if word == "BUILT" else word for word in arguments.split()]
    named = words == "--model" or given[0] in ("status", "merge") or "--model" in given
    done = command("batch", *given, *([] if named else ["--model", "model.gguf", "-q"]))
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert sorted(folder.iterdir()) == before
    assert Path("theirs").read_text() == "precious"
    assert len(Path("in.jsonl").read_text().splitlines()) == 2


def test_the_field_that_no_row_has_is_told_behind_a_line_that_is_none(
    folder: Path, command: Any
) -> None:
    Path("broken.jsonl").write_text('{"q": \n{"b": "x"}\n{"b": "y"}\n')
    done = command("batch", "broken.jsonl", "out", "--field", "q", "--model", "model.gguf", "-q")
    assert done.returncode == 2
    assert "no row of broken.jsonl has the field 'q'; the rows have: b" in done.stderr
