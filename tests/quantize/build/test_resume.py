"""Runs that end early, and the runs after them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from quantize.build.workspace import WORK, Workspace, disk_errors
from quantize.errors import BusyError, DiskFullError, UsageError
from quantize.manifest import NAME, FileEntry, load_manifest, write_manifest
from quantize.stages import Stages, stage_key
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


_HOLD = """
import sys, time
from pathlib import Path
from quantize.build.workspace import Workspace
with Workspace(Path(sys.argv[1])) as space:
    (space.work / "half").write_bytes(b"x" * 1000)
    print("ready", flush=True)
    time.sleep(60)
"""


def _holder(out: Path) -> subprocess.Popen[str]:
    """Another process in the middle of a build into ``out``."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def _fail_in(out: Path, error: BaseException) -> None:
    with Workspace(out) as space:
        (space.work / "half").write_bytes(b"x")
        raise error


def test_an_error_leaves_nothing(tmp_path: Path):
    out = tmp_path / "out"
    with pytest.raises(RuntimeError):
        _fail_in(out, RuntimeError())
    assert not out.exists()
    out.mkdir()
    (out / "theirs").write_bytes(b"kept")
    with pytest.raises(KeyboardInterrupt):
        _fail_in(out, KeyboardInterrupt())
    assert [p.name for p in out.iterdir()] == ["theirs"]


def test_a_reader_of_a_replaced_folder_never_finds_it_missing_or_mixed(tmp_path: Path):
    """The second kind of publishing: a folder over a folder."""
    wrong: list[str] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:  # one open folder: its two files must belong together
                folder = os.open(tmp_path / "onnx-int4", os.O_RDONLY)
            except FileNotFoundError:
                wrong.append("missing")
                continue
            try:
                parts = []
                for name in ("model.onnx", "model.onnx.data"):
                    file = os.open(name, os.O_RDONLY, dir_fd=folder)
                    parts.append(os.read(file, 100))
                    os.close(file)
                if parts[0] != parts[1]:
                    wrong.append(f"mixed {parts}")
            except FileNotFoundError:
                pass  # the old folder, being removed after it was replaced
            finally:
                os.close(folder)

    with Workspace(tmp_path) as space:
        reader = threading.Thread(target=read)
        for version in range(100):
            made = space.work / "onnx-int4"
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
            for name in ("model.onnx", "model.onnx.data"):
                (made / name).write_text(str(version))
            space.move_out(made, "onnx-int4")
            if version == 0:
                reader.start()
        done.set()
        reader.join()
    assert wrong == []
    assert (tmp_path / "onnx-int4" / "model.onnx").read_text() == "99"


def test_two_runs_do_not_share_a_folder_and_the_next_removes_what_a_killed_one_left(tmp_path: Path):
    out = tmp_path / "out"
    holder = _holder(out)
    with pytest.raises(BusyError, match="another run"), Workspace(out):
        pass
    holder.kill()
    holder.wait()
    assert (out / WORK / "scratch" / "half").exists()  # the other's work is untouched
    with Workspace(out) as space:
        assert list(space.work.iterdir()) == []
    assert not out.exists()


def test_a_full_disk_is_told_as_such():
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with (
        pytest.raises(DiskFullError, match="full"),
        disk_errors(Path("/dev")),
        open("/dev/full", "w") as file,
    ):
        file.write("x" * 100_000)


def test_a_file_in_the_way(tmp_path: Path):
    (tmp_path / "out").write_text("a file")
    with (
        pytest.raises(UsageError, match="--out"),
        disk_errors(tmp_path / "out"),
        Workspace(tmp_path / "out"),
    ):
        pass
