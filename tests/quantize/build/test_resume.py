"""Runs that end early, and the runs after them."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from quantize.build.workspace import Workspace
from quantize.manifest import NAME, FileEntry, load_manifest, write_manifest
from quantize.stages import RECORD, Stages, stage_key
from tests.quantize.conftest import Built, kill_during, run_quantize
from tests.quantize.entries import MODEL, entry_of, hash_files, manifest_of

KEY = stage_key("build", {"recipe": "q8_0"})


def _maker(text: str, calls: list[str]) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        calls.append(text)
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_text(text)
        return text

    return make


def test_a_finished_stage_is_taken_over_by_the_next_run(tmp_path: Path):
    calls: list[str] = []
    first = Stages(tmp_path, "model").run("build", KEY, _maker("a", calls))
    again = Stages(tmp_path, "model").run("build", KEY, _maker("b", calls))
    assert (first.reused, again.reused) == (False, True)
    assert again.value == "a"
    assert (again.folder / "deep" / "file").read_text() == "a"
    assert again.files == first.files
    assert calls == ["a"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda stage: (stage / "deep" / "file").write_text("x"),  # same length, other bytes
        lambda stage: (stage / "deep" / "file").write_text(""),
        lambda stage: (stage / "deep" / "file").unlink(),
        lambda stage: (stage / "more").touch(),
        lambda stage: (stage / RECORD).unlink(),
        lambda stage: (stage / RECORD).write_text('{"owner": "model", "va'),
    ],
)
def test_a_damaged_stage_is_made_again(tmp_path: Path, damage: Callable[[Path], object]):
    calls: list[str] = []
    damage(Stages(tmp_path, "model").run("build", KEY, _maker("a", calls)).folder)
    again = Stages(tmp_path, "model").run("build", KEY, _maker("a", calls))
    assert not again.reused
    assert len(calls) == 2


def test_other_inputs_are_another_stage_and_another_model_clears_all(tmp_path: Path):
    calls: list[str] = []
    stages = Stages(tmp_path, "model")
    stages.run("build", KEY, _maker("a", calls))
    stages.run("build", stage_key("build", {"recipe": "q4_0"}), _maker("b", calls))
    assert calls == ["a", "b"]
    (tmp_path / "build-unfinished").mkdir()
    Stages(tmp_path, "model")
    assert len(list(tmp_path.iterdir())) == 2
    Stages(tmp_path, "another model")
    assert list(tmp_path.iterdir()) == []
    Stages(tmp_path, "model").run("build", KEY, _maker("a", calls))
    Stages(tmp_path, "model", fresh=True)
    assert list(tmp_path.iterdir()) == []


def test_a_stage_that_fails_leaves_nothing(tmp_path: Path):
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Stages(tmp_path, "model").run("build", KEY, fail)
    assert list(tmp_path.iterdir()) == []


class _Killed(BaseException):
    """Stands for SIGKILL: nothing that would clean up is run."""


def _entry(path: Path, content: str) -> FileEntry:
    path.write_text(content)
    sums = {"m.gguf": hash_files(path)[path.name]}
    return entry_of("q8_0", "m.gguf", bytes=len(content), sha256=sums)


@pytest.mark.parametrize("step", ["plan", "unlist", "move", "list"])
@pytest.mark.parametrize("replaces", [False, True])
def test_killed_while_publishing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, replaces: bool
):
    """After each step of publishing: the manifest is right at once, and the next run leaves no file
    that it does not list."""
    out = tmp_path / "out"
    with Workspace(out) as space:
        if replaces:
            write_manifest(out, manifest_of(_entry(out / "m.gguf", "old")))
        space.open(MODEL)
        new = _entry(space.work / "made", "new")
        # The steps by hand, as a run that is killed leaves them.
        write_manifest(space.root, space.manifest.with_entry(new))
        if step != "plan" and replaces:
            write_manifest(out, space.manifest.without("q8_0"), space.work)
        if step in ("move", "list"):
            space.move_out(space.work / "made", "m.gguf")
        if step == "list":
            (space.root / NAME).replace(out / NAME)
        if (out / NAME).exists():
            for entry in load_manifest(out).files:
                assert hash_files(out / entry.path) == entry.sha256
        (space.stages / "a").mkdir()
        space.open(MODEL)
        after = space.manifest
    listed = {"plan": replaces, "unlist": False, "move": True, "list": True}[step]
    if step == "unlist" and not replaces:
        listed = False
    assert bool(after.files) is listed
    assert (out / "m.gguf").exists() is listed
    for entry in after.files:
        assert hash_files(out / entry.path) == entry.sha256


def test_an_error_while_publishing_is_cleared_up_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with Workspace(tmp_path / "out") as space:
        space.open(MODEL)
        new = _entry(space.work / "made", "new")
        made = space.work / "made"
        original = Workspace.move_out

        def interrupted(self: Workspace, made: Path, name: str) -> None:
            original(self, made, name)
            raise KeyboardInterrupt

        monkeypatch.setattr(Workspace, "move_out", interrupted)
        with pytest.raises(KeyboardInterrupt):
            space.publish(new, made)
        assert load_manifest(space.out).files == (new,)


def test_only_a_damaged_file_is_built_again(measured_llama: Built, tmp_path: Path):
    out = Path(shutil.copytree(measured_llama.out, tmp_path / "out"))
    before, graph = load_manifest(out), out / "onnx-int8" / "model.onnx"
    inode = graph.stat().st_ino
    data = bytearray((out / "llama-q8_0.gguf").read_bytes())
    data[len(data) // 2] ^= 1
    (out / "llama-q8_0.gguf").write_bytes(data)
    done = run_quantize(measured_llama.source, "--out", out, "--bits", "8", "--no-measure")
    assert "llama-q8_0.gguf is not as it was built" in done.stderr
    assert "onnx-int8 is already built" in done.stderr
    assert graph.stat().st_ino == inode
    after = load_manifest(out)
    for recipe in ("q8_0", "onnx-int8"):
        one, other = before.entry(recipe), after.entry(recipe)
        assert hash_files(out / other.path) == one.sha256 == other.sha256


def test_a_fresh_run_takes_over_nothing_and_shows_the_old_file_until_it_is_done(
    measured_llama: Built, tmp_path: Path
):
    out = Path(shutil.copytree(measured_llama.out, tmp_path / "out"))
    command = (measured_llama.source, "--recipe", "q8_0", "--out", out, "--no-measure", "--fresh")
    code, said = kill_during("converting", signal.SIGTERM, *command)
    assert code == 128 + signal.SIGTERM
    assert "already built" not in said
    assert load_manifest(out) == load_manifest(measured_llama.out)
    assert hash_files(out / "llama-q8_0.gguf") == hash_files(measured_llama.out / "llama-q8_0.gguf")
