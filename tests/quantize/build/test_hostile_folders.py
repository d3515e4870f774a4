"""Output folders that came with a model from elsewhere: nothing outside of them changes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quantize.build.preflight import require_fitting
from quantize.build.workspace import WORK, Workspace
from quantize.errors import UsageError
from quantize.manifest import NAME, FileEntry, load_manifest, write_manifest
from quantize.options import Options, SourceOptions
from quantize.report.write import FILES, write_report
from quantize.source import open_source
from quantize.stages import RECORD, Stages, stage_key
from tests.quantize.conftest import run_quantize
from tests.quantize.entries import MODEL, entry_of, manifest_of

KEY = stage_key("build", {"recipe": "q8_0"})


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder of the user's, elsewhere."""
    folder = tmp_path / "documents"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "letter").write_text("dear")
    (folder / "README.md").write_text("mine")
    return folder


@pytest.fixture(autouse=True)
def _unchanged(theirs: Path):
    before = _state(theirs)
    yield
    assert _state(theirs) == before


def _state(folder: Path) -> dict[str, object]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def _entry(path: str) -> FileEntry:
    return entry_of("q8_0", path)


@pytest.mark.parametrize("name", ["", "stages", "scratch", "manifest.json", "child-x", "above"])
def test_a_link_in_the_work_folder_is_refused(tmp_path: Path, theirs: Path, name: str):
    out = tmp_path / "out"
    link = out / WORK / name if name else out / WORK
    link.parent.mkdir(parents=True)
    link.symlink_to("../.." if name == "above" else theirs)
    with pytest.raises(UsageError, match=r"is a link.*remove it"), Workspace(out):
        pass
    assert link.is_symlink()
    with pytest.raises(UsageError, match="is a link"), Workspace(out):
        pass  # the lock was given back


def test_a_link_among_the_stages_is_refused(tmp_path: Path, theirs: Path):
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "build-0123456789abcdef").symlink_to(theirs)
    with pytest.raises(UsageError, match="is a link"):
        Stages(tmp_path / "stages", "model")
    with pytest.raises(UsageError, match="is a link"):
        Stages(tmp_path / "stages", "model", fresh=True)


@pytest.mark.parametrize(
    "path",
    ["../documents", "/etc", "a/../../documents", "sub/../../documents/README.md", "..", "", "x\n"],
)
def test_a_planned_manifest_removes_nothing_elsewhere(tmp_path: Path, theirs: Path, path: str):
    out = tmp_path / "out"
    (out / WORK).mkdir(parents=True)
    if path == "/etc":
        path = str(theirs)
    write_manifest(out / WORK, manifest_of(_entry(path)))
    with Workspace(out) as space:
        space.open(MODEL)
        assert not (out / WORK / NAME).exists()


def test_a_planned_manifest_removes_nothing_through_a_link(tmp_path: Path, theirs: Path):
    out = tmp_path / "out"
    (out / WORK).mkdir(parents=True)
    (out / "link").symlink_to(theirs)
    write_manifest(out / WORK, manifest_of(_entry("link/README.md")))
    with pytest.raises(UsageError, match="is a link"), Workspace(out) as space:
        space.open(MODEL)


@pytest.mark.parametrize("path", [WORK, f"{WORK}/stages", NAME])
def test_a_planned_manifest_removes_none_of_our_own_files(tmp_path: Path, path: str):
    out = tmp_path / "out"
    (out / WORK / "stages" / "done").mkdir(parents=True)
    write_manifest(out / WORK, manifest_of(_entry(path)))
    write_manifest(out, manifest_of())
    with Workspace(out) as space:
        space.open(MODEL)
        assert [one.name for one in space.stages.iterdir()] == ["done"]
        assert load_manifest(out) == manifest_of()


@pytest.mark.parametrize("name", ["m.gguf", "onnx-int4"])
def test_a_link_in_the_place_of_a_file_is_not_written_through(
    tmp_path: Path, theirs: Path, name: str
):
    out = tmp_path / "out"
    out.mkdir()
    (out / name).symlink_to(theirs if name == "onnx-int4" else theirs / "README.md")
    with Workspace(out) as space:
        made = space.work / name
        if name == "onnx-int4":
            made.mkdir()
        else:
            made.write_text("new")
        with pytest.raises(UsageError, match="is a link"):
            space.move_out(made, name)
    assert (out / name).is_symlink()


def test_what_is_written_in_one_step_goes_through_no_link(tmp_path: Path, theirs: Path):
    out = tmp_path / "out"
    out.mkdir()
    names = [*FILES, NAME]
    for name in names:
        (out / name).symlink_to(theirs / "README.md")
        (out / f".{name}.partial").symlink_to(theirs / "README.md")
        (out / f".{name}.{os.getpid()}.partial").symlink_to(theirs / "README.md")
    write_report(out, manifest_of())
    write_manifest(out, manifest_of())
    assert all((out / name).is_file() and not (out / name).is_symlink() for name in names)


def test_a_file_with_a_second_name_keeps_its_content(tmp_path: Path, theirs: Path):
    out = tmp_path / "out"
    out.mkdir()
    for name in (*FILES, NAME):
        (out / name).hardlink_to(theirs / "README.md")
    write_report(out, manifest_of())
    write_manifest(out, manifest_of())


def test_an_output_folder_that_is_a_link_is_only_taken_by_name(
    tmp_path: Path, theirs: Path, pebble: Path
):
    (tmp_path / "pebble").symlink_to(pebble)
    source = replace(open_source(str(tmp_path / "pebble")), beside=tmp_path)
    source.default_out.symlink_to(theirs)
    options = Options(SourceOptions(str(tmp_path / "pebble")), ())
    with pytest.raises(UsageError, match="is a link"):
        require_fitting(options, source, source.default_out)
    require_fitting(replace(options, out=source.default_out), source, source.default_out)


def _stage(root: Path) -> Path:
    def make(folder: Path) -> dict[str, Any]:
        (folder / "m.gguf").write_text("weights")
        return {"notes": [], "route": "llama.cpp", "imatrix": None}

    return Stages(root, "model").run("build", KEY, make).folder


def _said(stage: Path, **changes: object) -> None:
    record = json.loads((stage / RECORD).read_text())
    (stage / RECORD).write_text(json.dumps(record | changes))


@pytest.mark.parametrize(
    "damage",
    [
        lambda stage: (stage / "m.gguf").write_text("WEIGHTS"),
        lambda stage: (stage / "m.gguf").unlink(),
        lambda stage: (stage / "more").touch(),
        lambda stage: (stage / RECORD).unlink(),
        lambda stage: (stage / RECORD).write_text('{"owner": "model", "va'),
        lambda stage: _said(stage, files={"m.gguf": "x"}),
        lambda stage: _said(stage, files=[1, 2]),
        lambda stage: _said(stage, files={"../../documents/README.md": {"bytes": 1, "sha256": ""}}),
        lambda stage: _said(stage, value={"notes": "x", "route": 1, "imatrix": []}),
        lambda stage: _said(stage, value=None),
        lambda stage: _said(stage, key=["x"]),
        lambda stage: (stage / RECORD).write_text("[" * 100_000),
        lambda stage: (stage / RECORD).write_text('{"owner": "model", "x": ' * 5000),
        lambda stage: (stage / "link").symlink_to("m.gguf"),
        lambda stage: (stage / "deep").mkdir() or (stage / "deep" / "l").symlink_to("/"),
    ],
)
def test_a_stage_that_no_run_has_made_is_made_again(
    tmp_path: Path, damage: Callable[[Path], object]
):
    from quantize.build.run import is_build

    root = tmp_path / "stages"
    root.mkdir()
    made = _stage(root)
    assert Stages(root, "model").find("build", KEY, is_build)
    damage(made)
    assert Stages(root, "model").find("build", KEY, is_build) is None
    assert list(root.iterdir()) == []


def test_a_pipe_in_the_place_of_a_manifest_is_not_waited_for(tmp_path: Path):
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no pipes with names")
    out = tmp_path / "out"
    (out / WORK).mkdir(parents=True)
    os.mkfifo(out / NAME)
    os.mkfifo(out / WORK / NAME)
    with Workspace(out) as space:
        space.open(MODEL)
        made = space.work / "m.gguf"
        made.write_text("new")
        space.publish(_entry("m.gguf"), made)
    assert load_manifest(out).entry("q8_0") == _entry("m.gguf")


def test_the_command_beside_a_hostile_folder(tmp_path: Path, theirs: Path, pebble_f16: Path):
    """The default output folder, which has come with the model."""
    shutil.copyfile(pebble_f16, tmp_path / "archive.gguf")
    out = tmp_path / "archive-built"
    command = (tmp_path / "archive.gguf", "--recipe", "q8_0", "--no-measure")
    out.symlink_to(theirs)
    refused = run_quantize(*command, check=False)
    assert (refused.returncode, "is a link" in refused.stderr) == (2, True)
    out.unlink()
    for link in (WORK, f"{WORK}/stages", f"{WORK}/scratch", "archive-q8_0.gguf"):
        (out / link).parent.mkdir(parents=True, exist_ok=True)
        (out / link).symlink_to(theirs)
        refused = run_quantize(*command, check=False)
        assert (refused.returncode, "remove it, or use another --out" in refused.stderr) == (
            2,
            True,
        )
        (out / link).unlink()
    write_manifest(out / WORK, manifest_of(_entry("../documents")))
    for name in FILES:
        (out / name).symlink_to(theirs / "README.md")
    done = run_quantize(*command)
    assert "which is outside its folder; it is not used" in done.stderr
    assert {path.name for path in out.iterdir()} == {"archive-q8_0.gguf", NAME, *FILES}
    assert not any(path.is_symlink() for path in out.iterdir())
