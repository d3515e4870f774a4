from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from app.builds.results import draw, read_result
from quantize.manifest import (
    Fidelity,
    FileEntry,
    Manifest,
    ModelInfo,
    Perplexity,
    Source,
    write_manifest,
)
from quantize.report.chart import make_chart
from runtimes.errors import ModelError

TEXT = Perplexity(9.0, 0.1, 100, "text", "0")


def entry(recipe: str, size: int, kl: float | None) -> FileEntry:
    fidelity = Fidelity(TEXT, kl, kl / 30, kl * 9, 0.97) if kl is not None else None
    path = f"m-{recipe}.gguf"
    return FileEntry(
        *("gguf", recipe, 4, path, size, {path: "0"}, Source("m", "h"), {}), fidelity=fidelity
    )


def folder_of(tmp_path: Path, *entries: FileEntry) -> Path:
    write_manifest(tmp_path, Manifest(ModelInfo("m", "Llama", 5), entries))
    return tmp_path


MEASURED = (entry("q8_0", 5_300_000, 0.0004), entry("q4_0", 2_800_000, 0.05))


def test_rows_are_by_size_and_have_their_letters(tmp_path: Path) -> None:
    result = read_result(folder_of(tmp_path, *MEASURED, entry("f16", 9_800_000, None)))
    assert [(row.mark, row.recipe) for row in result.rows] == [
        ("A", "q4_0"),
        ("B", "q8_0"),
        ("", "f16"),
    ]
    assert result.headings == ("MB", "KL", "same top")
    assert result.rows[1].cells == ("5.3", "0.0004", "97.0%")
    assert result.rows[2].cells == ("9.8", "-", "-")
    assert result.report is None
    assert result.advice.startswith("q4_0 (GGUF)")


def test_nothing_measured_is_no_chart(tmp_path: Path) -> None:
    result = read_result(folder_of(tmp_path, entry("q8_0", 5, None)))
    assert result.chart is None
    assert result.plot(80, 20) == []
    assert result.advice == ""


def test_a_folder_without_files_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        read_result(tmp_path)


@pytest.mark.parametrize("size", [(30, 6), (78, 14), (118, 30), (200, 60)])
def test_the_chart_has_every_point_where_it_belongs(tmp_path: Path, size: tuple[int, int]) -> None:
    result = read_result(folder_of(tmp_path, *MEASURED))
    lines = result.plot(*size)
    assert len(lines) <= size[1]
    assert {len(line) for line in lines} == {size[0]}
    at = {
        mark: (r, line.index(mark))
        for r, line in enumerate(lines[1:-2])
        for mark in "AB"
        if mark in line
    }
    assert at["A"][0] < at["B"][0]  # the smaller file is further from the original, so higher
    assert at["A"][1] < at["B"][1]  # and further left
    assert "0.01" in "\n".join(lines)
    assert "MB" in lines[-1]


def test_names_stand_beside_points_where_they_fit(tmp_path: Path) -> None:
    text = "\n".join(read_result(folder_of(tmp_path, *MEASURED)).plot(78, 14))
    assert "A q4_0" in text
    assert "B q8_0" in text or "q8_0 B" in text


def test_points_at_one_place_are_both_there(tmp_path: Path) -> None:
    twins = (entry("q4_0", 2_800_000, 0.05), entry("q4_1", 2_800_001, 0.05))
    lines = read_result(folder_of(tmp_path, *twins)).plot(78, 14)
    text = "\n".join(lines)
    assert "A" in text
    assert "B" in text.replace("MB", "")


def test_one_file_and_twenty_fit(tmp_path: Path) -> None:
    for count in (1, 20):
        entries = [entry(f"r{i}", 1000 * (i + 1), 0.3 / (i + 1)) for i in range(count)]
        chart = make_chart(entries)
        assert chart is not None
        lines = draw(chart, {f"r{i}": chr(97 + i) for i in range(count)}, 78, 14)
        assert {len(line) for line in lines} == {78}
        assert all(chr(97 + i) in "\n".join(lines) for i in range(count))


def test_a_model_of_gigabytes_has_readable_figures(tmp_path: Path) -> None:
    entries = [dataclasses.replace(e, bytes=e.bytes * 3000) for e in MEASURED]
    lines = read_result(folder_of(tmp_path, *entries)).plot(78, 14)
    assert lines[-1].split() == ["0", "5,000", "10,000", "15,000", "MB"]
