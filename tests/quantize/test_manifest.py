from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from quantize.manifest import (
    NAME,
    Fidelity,
    FileEntry,
    FileSpeeds,
    Manifest,
    Perplexity,
    Quality,
    TokenParity,
    findings,
    is_whole,
    load_manifest,
    write_manifest,
)
from quantize.resolve import resolve
from runtimes.errors import ModelError
from tests.quantize.entries import MODEL, entry_in, entry_of, manifest_of


def _manifest(*entries: FileEntry) -> Manifest:
    return Manifest(dataclasses.replace(MODEL, quality=Quality(0.5, 2, {"a": 0.5})), entries)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """q8_0, then an ONNX folder, then q4_k_m."""
    for name in ("m-q8_0.gguf", "m-q4_k_m.gguf"):
        (tmp_path / name).write_bytes(b"abc")
    (tmp_path / "onnx-int4").mkdir()
    (tmp_path / "onnx-int4" / "genai_config.json").write_text("{}")
    (tmp_path / "onnx-int4" / "model.onnx").write_text("x")
    names = "onnx-int4/genai_config.json", "onnx-int4/model.onnx"
    entries = [
        entry_of("q8_0", "m-q8_0.gguf"),
        entry_of("onnx-int4", "onnx-int4", sha256=dict.fromkeys(names, "0" * 64)),
        entry_of("q4_k_m", "m-q4_k_m.gguf"),
    ]
    write_manifest(tmp_path, _manifest(*entries))
    return tmp_path


def test_round_trip(tmp_path: Path):
    full = entry_of(
        "q8_0",
        "m.gguf",
        token_parity=TokenParity(300, 0),
        quality=Quality(1.0, 2, {"a": 1.0}),
        speed=FileSpeeds(1.0, 2.0, 3.0),
        notes=("größer",),
    )
    manifest = _manifest(full, entry_of("onnx-int4", "onnx-int4"))
    write_manifest(tmp_path, manifest)
    assert load_manifest(tmp_path) == manifest
    assert [p.name for p in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize(
    "path", ["../x.gguf", "/etc/passwd", "a/../../x", "..", "", ".", "a\\..\\x", "link.gguf"]
)
def test_paths_do_not_leave_the_folder(tmp_path: Path, path: str):
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "x.gguf").write_bytes(b"")
    (inside / "link.gguf").symlink_to(tmp_path / "x.gguf")
    write_manifest(inside, _manifest(entry_of("q8_0", path)))
    with pytest.raises(ModelError, match="outside"):
        resolve(inside)


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.pop("model"),
        lambda d: d["files"][0].pop("path"),
        lambda d: d["files"][0].update(format="exe"),
        lambda d: d["files"][0].update(sha256=[]),
        lambda d: d.update(version=99),
        lambda d: d.update(files=None),
        lambda d: d["files"][0].update(bytes=-1),
        lambda d: d["files"][0].update(bytes=10**400),
        lambda d: d["files"][0].update(bytes=float("inf")),
        lambda d: d["model"].update(parameters=10**30),
    ],
)
def test_a_damaged_manifest_says_so(folder: Path, damage):
    data = json.loads((folder / NAME).read_text())
    damage(data)
    (folder / NAME).write_text(json.dumps(data))
    with pytest.raises(ModelError, match="build the model again"):
        load_manifest(folder)


def test_a_manifest_that_is_no_json(folder: Path):
    (folder / NAME).write_text('{"version": 1, ')
    with pytest.raises(ModelError, match="not JSON"):
        load_manifest(folder)


def test_resolving_a_built_folder(folder: Path):
    assert resolve(folder) == folder / "m-q4_k_m.gguf"
    assert resolve(folder, recipe="q8_0") == folder / "m-q8_0.gguf"
    assert resolve(folder, recipe="onnx-int4") == folder / "onnx-int4"
    assert resolve(folder, file="m-q8_0.gguf") == folder / "m-q8_0.gguf"
    assert resolve(folder, file="onnx-int4/") == folder / "onnx-int4"


def test_resolving_files_and_onnx_folders(folder: Path):
    assert resolve(folder / "m-q8_0.gguf") == folder / "m-q8_0.gguf"
    assert resolve(str(folder / "onnx-int4")) == folder / "onnx-int4"
    (folder / NAME).unlink()
    assert resolve(folder, file="m-q8_0.gguf") == folder / "m-q8_0.gguf"
    with pytest.raises(ModelError, match="say which with --file"):
        resolve(folder)
    with pytest.raises(ModelError, match=r"has no other\.gguf; it holds m-q4_k_m\.gguf"):
        resolve(folder, file="other.gguf")
    with pytest.raises(ModelError, match="take --file"):
        resolve(folder, recipe="q8_0")
    (folder / "m-q8_0.gguf").unlink()
    with pytest.raises(ModelError, match=r"has no m-q8_0\.gguf"):
        resolve(folder, file="m-q8_0.gguf")
    assert resolve(folder) == folder / "m-q4_k_m.gguf"


def test_resolving_what_is_not_there(folder: Path, tmp_path: Path, sources: dict[str, Path]):
    (folder / "notes.txt").write_text("")
    for path, asked, why in (
        (folder, {"recipe": "q8_1"}, "did you mean q8_0"),
        (folder, {"file": "m-q8.gguf"}, r"m-q8_0\.gguf"),
        (folder / "nothing", {}, "no such file"),
        (sources["llama"], {}, "build it first"),
        (folder / "notes.txt", {}, r"not a \.gguf"),
    ):
        with pytest.raises(ModelError, match=why):
            resolve(path, **asked)
    (folder / "m-q8_0.gguf").unlink()
    with pytest.raises(ModelError, match="missing"):
        resolve(folder, recipe="q8_0")


@pytest.mark.parametrize(("recipe", "file"), [("q8_0", "m-q8_0.gguf"), ("onnx-int4", "model.onnx")])
def test_a_file_of_another_size_is_not_loaded(folder: Path, recipe: str, file: str):
    path = next(folder.rglob(file))
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size - 1)
    with pytest.raises(ModelError, match=r"2 bytes and was built with 3.*--checksums"):
        resolve(folder, recipe=recipe)
    path.unlink()
    with pytest.raises(ModelError, match=r"missing|has 2 bytes"):
        resolve(folder, recipe=recipe)


def test_figures_that_make_no_sense_are_read(folder: Path):
    """Of a manifest from elsewhere; what is told of them is another matter."""
    from quantize.report.facts import make_chart, scatter

    speed = FileSpeeds(1.0, 2.0, 3.0, ranges={"__class__": (1.0, 2.0), "decode_tps_1": (1.0, 2.0)})
    assert scatter(speed) == 0.5
    text = Perplexity(9.0, 0.1, 100, "text", "0")
    for kl in (1e308, float("inf"), float("nan"), -1.0, 0.0):
        make_chart([entry_of("q8_0", "m.gguf", fidelity=Fidelity(text, kl, kl, kl, 0.9))])


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a\nb", "x\x1b[2J", "a/./b", "a" * 300])
def test_checksums_of_files_elsewhere(folder: Path, name: str):
    data = json.loads((folder / NAME).read_text())
    data["files"][0]["sha256"] = {name: "0" * 64}
    (folder / NAME).write_text(json.dumps(data))
    with pytest.raises(ModelError, match="names the file"):
        load_manifest(folder)


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
