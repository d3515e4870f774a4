from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from quantize.build.workspace import WORK, Workspace, disk_errors
from quantize.errors import BusyError, DiskFullError, UsageError

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


def test_finished_stages_outlive_a_failed_run_and_not_a_good_one(tmp_path: Path):
    out = tmp_path / "out"
    with contextlib.suppress(RuntimeError), Workspace(out) as space:
        (space.stages / "done").mkdir()
        raise RuntimeError
    assert [path.name for path in (out / WORK).iterdir()] == ["stages"]
    with Workspace(out) as space:
        assert [path.name for path in space.stages.iterdir()] == ["done"]
        (out / "file").touch()
    assert [path.name for path in out.iterdir()] == ["file"]


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
