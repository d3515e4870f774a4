from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from app.builds.results import read_result, remove_file
from quantize.build.workspace import Workspace
from quantize.manifest import (
    Fidelity,
    FileEntry,
    Manifest,
    ModelInfo,
    ModelOrigin,
    Perplexity,
    load_manifest,
    write_manifest,
)
from runtimes.errors import ModelError

TEXT = Perplexity(9.0, 0.1, 100, "text", "0")


def entry(recipe: str, size: int, kl: float | None) -> FileEntry:
    fidelity = Fidelity(TEXT, kl, kl / 30, kl * 9, 0.97) if kl is not None else None
    path = f"m-{recipe}.gguf"
    return FileEntry(
        *("gguf", recipe, 4, path, size, {path: "0"}, ModelOrigin("m", "h"), {}), fidelity=fidelity
    )


def folder_of(tmp_path: Path, *entries: FileEntry) -> Path:
    write_manifest(tmp_path, Manifest(ModelInfo("m", "Llama", 5), entries))
    return tmp_path


MEASURED = (entry("q8_0", 5_300_000, 0.0004), entry("q4_0", 2_800_000, 0.05))


def test_rows_are_by_size_and_the_best_is_known(tmp_path: Path) -> None:
    result = read_result(folder_of(tmp_path, *MEASURED, entry("f16", 9_800_000, None)))
    assert [(row.recipe, row.best) for row in result.rows] == [
        ("q4_0", True),
        ("q8_0", False),
        ("f16", False),
    ]
    assert {point.label for point in result.points} == {"q4_0", "q8_0"}
    assert result.headings == ("MB", "KL", "same top")
    assert result.rows[1].cells == ("5.3", "0.0004", "97.0%")
    assert result.rows[2].cells == ("9.8", "-", "-")
    assert result.report is None
    assert result.advice.startswith("q4_0 (GGUF)")


def test_nothing_measured_is_no_chart(tmp_path: Path) -> None:
    result = read_result(folder_of(tmp_path, entry("q8_0", 5, None)))
    assert (result.points, result.advice) == ((), "")


def test_a_folder_without_files_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        read_result(tmp_path)


def test_a_deleted_file_is_listed_nowhere(pebble_built: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(pebble_built, tmp_path / "built"))
    remove_file(folder, "q8_0")
    assert [row.recipe for row in read_result(folder).rows] == ["q4_k_m", "onnx-int4", "onnx-int8"]
    assert not list(folder.glob("*q8_0*"))
    assert "q8_0" not in (folder / "report.html").read_text()
    (folder / "report.html").unlink()
    remove_file(folder, "onnx-int4")
    assert not (folder / "onnx-int4").exists()
    with pytest.raises(ModelError, match="has no q8_0 any more"):
        remove_file(folder, "q8_0")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who holds a lock")
def test_nothing_is_deleted_under_a_run(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, *MEASURED)
    with Workspace(folder), pytest.raises(ModelError, match=f"process {os.getpid()} builds into"):
        remove_file(folder, "q8_0")
    assert len(load_manifest(folder).files) == 2
