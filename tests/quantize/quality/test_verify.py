from __future__ import annotations

from pathlib import Path

import pytest

from quantize.manifest import Manifest, findings, is_whole, write_manifest
from tests.quantize.entries import entry_in, manifest_of


@pytest.fixture
def built(tmp_path: Path) -> tuple[Path, Manifest]:
    """A GGUF file and an ONNX folder of two files, with their checksums."""
    (tmp_path / "m.gguf").write_bytes(bytes(range(256)) * 8)
    (tmp_path / "onnx-int4").mkdir()
    (tmp_path / "onnx-int4" / "model.onnx").write_bytes(b"graph")
    (tmp_path / "onnx-int4" / "model.onnx.data").write_bytes(b"weights")
    names = {"q8_0": "m.gguf", "onnx-int4": "onnx-int4"}
    manifest = manifest_of(*(entry_in(tmp_path, *named) for named in names.items()))
    write_manifest(tmp_path, manifest)
    return tmp_path, manifest


def _problems(folder: Path, manifest: Manifest) -> dict[str, str]:
    return {
        found.path.relative_to(folder).as_posix(): found.problem
        for entry in manifest.files
        for found in findings(folder, entry)
        if found.problem
    }


def test_whole_files_have_no_problem(built: tuple[Path, Manifest]):
    folder, manifest = built
    assert _problems(folder, manifest) == {}
    assert sum(f.bytes for entry in manifest.files for f in findings(folder, entry)) == 2060
    assert all(is_whole(folder, entry) for entry in manifest.files)


@pytest.mark.parametrize("position", [0, 1000, 2047])
def test_one_flipped_bit_is_found(built: tuple[Path, Manifest], position: int):
    folder, manifest = built
    data = bytearray((folder / "m.gguf").read_bytes())
    data[position] ^= 0x10
    (folder / "m.gguf").write_bytes(data)
    assert _problems(folder, manifest) == {"m.gguf": "has other bytes than were built"}


def test_a_truncated_a_missing_and_a_foreign_file(built: tuple[Path, Manifest]):
    folder, manifest = built
    (folder / "m.gguf").write_bytes(b"")
    data = folder / "onnx-int4" / "model.onnx.data"
    outside = folder.parent / f"{folder.name}-outside"
    data.rename(outside)
    data.symlink_to(outside)
    problems = _problems(folder, manifest)
    assert "0 bytes and was built with 2,048" in problems["m.gguf"]
    assert problems["onnx-int4/model.onnx.data"] == "lies outside the folder"
    data.unlink()
    assert "5 bytes and was built with 12" in _problems(folder, manifest)["onnx-int4"]
    assert not is_whole(folder, manifest.files[1])
