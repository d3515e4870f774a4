"""`ingot embed` as users type it: texts, pipes and files in, lines or an array out."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np

from tests.support import until

QUIET = ["--quiet", "--threads", "1"]
TEXTS = ["The capital of France is Paris.", "Paris lies in France.", "3 + 4 = 7"]


def vectors(out: str) -> np.ndarray[Any, Any]:
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["index"] for record in records] == list(range(len(records)))
    return np.array([record["embedding"] for record in records])


def test_texts_lines_and_files_give_the_same(
    command: Any, pebble_built: Path, tmp_path: Path
) -> None:
    """Also from a folder whose best file would be an ONNX graph."""
    said = command("embed", pebble_built, *TEXTS, *QUIET)
    assert said.returncode == 0, said.stderr
    found = vectors(said.stdout)
    assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-5
    assert found[0] @ found[1] > found[0] @ found[2]

    piped = command("embed", pebble_built, *QUIET, stdin="\n".join(TEXTS).encode())
    assert np.abs(vectors(piped.stdout) - found).max() < 1e-6
    source, out = tmp_path / "in.jsonl", tmp_path / "out.npy"
    source.write_text("".join(json.dumps({"doc": {"body": text}}) + "\n" for text in TEXTS))
    flags = ["--input", source, "--field", "doc.body", "-o", out, "--dimensions", 8]
    assert command("embed", pebble_built, *flags, *QUIET).returncode == 0
    array = np.load(out)
    assert (array.shape, array.dtype) == ((3, 8), np.float32)
    short = found[:, :8] / np.linalg.norm(found[:, :8], axis=1, keepdims=True)
    assert np.abs(array - short).max() < 1e-5
    assert {path.name for path in tmp_path.iterdir()} >= {"in.jsonl", "out.npy"}
    assert not [*tmp_path.glob(".out*")]


def test_a_text_that_fails(command: Any, gguf_file: Path, tmp_path: Path) -> None:
    texts = ["Paris", "word " * 5000]
    done = command("embed", gguf_file, *texts, *QUIET)
    assert done.returncode == 1
    first, second = map(json.loads, done.stdout.splitlines())
    assert len(first["embedding"]) > 100
    assert second["error"]["code"] == "context_length_exceeded"
    out = tmp_path / "out.npy"
    done = command("embed", gguf_file, *texts, "-o", out, *QUIET)
    assert done.returncode == 1
    assert "no array was written: line 2: the prompt has" in done.stderr
    assert not out.exists()


def test_half_a_file_is_not_put_in_place(ingot: Any, gguf_file: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("".join(f"The number {number} of many.\n" for number in range(3000)))
    process = ingot.start("embed", gguf_file, "--input", source, "-o", out, *QUIET)

    def partial() -> list[Path]:
        return [*tmp_path.glob(".out.jsonl.*.partial")]

    until(lambda: process.poll() is not None or any(one.stat().st_size for one in partial()))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert not partial()
    if process.returncode == 0:  # it was quicker
        assert len(out.read_text().splitlines()) == 3000
    else:
        assert process.returncode == 130
        assert not out.exists()
