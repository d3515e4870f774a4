"""Output files that users name: whatever is at the path, nothing is lost, and nothing is replaced
that is no file."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from quantize.disk import (
    check_outfile,
    free_space,
    full_disk_explained,
    outfile,
    require_room,
    write_atomically,
)
from quantize.errors import DiskFullError, UsageError
from tests.support import until

ROOT = Path(__file__).resolve().parents[2]


def _write(path: Path, text: str = "new", **options: bool) -> None:
    with outfile(path, **options) as partial:  # type: ignore[arg-type]
        partial.write_text(text)


def _names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[tuple[Path, list[bytes]]]:
    """A pipe, and what was read from it."""
    pipe, found = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    thread = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    thread.start()
    yield pipe, found
    thread.join(30)
    assert not thread.is_alive()


def test_a_new_file_and_an_old_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for text in ("one", "two"):
        _write(out, text)
        assert out.read_text() == text
    assert _names(tmp_path) == ["out"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o755])
def test_permissions_stay(tmp_path: Path, mode: int) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    out.chmod(mode)
    _write(out)
    assert stat.S_IMODE(out.stat().st_mode) == mode


def test_an_error_leaves_everything(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    with contextlib.suppress(KeyboardInterrupt), outfile(out) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    with outfile(out) as partial:
        partial.unlink()
    assert (out.read_text(), _names(tmp_path)) == ("old", ["out"])


def test_links_stay_and_what_they_lead_to_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "kept").write_text("old")
    (tmp_path / "b").symlink_to(folder / "kept")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "new").symlink_to(folder / "made")
    before = (folder / "kept").stat().st_ino
    _write(tmp_path / "a")
    _write(tmp_path / "new")
    assert (tmp_path / "a").is_symlink()
    assert (tmp_path / "b").is_symlink()
    assert (tmp_path / "new").is_symlink()
    assert [(folder / name).read_text() for name in ("kept", "made")] == ["new", "new"]
    assert (folder / "kept").stat().st_ino != before  # in one step
    assert _names(folder) == ["kept", "made"]


def test_a_link_at_the_name_of_the_partial_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "out.partial").symlink_to(victim)
    with outfile(tmp_path / "out", "out.partial") as partial:
        partial.write_text("new")
    assert (victim.read_text(), (tmp_path / "out").read_text()) == ("precious", "new")


def test_a_pipe_is_written_to(reader: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    pipe, found = reader
    check_outfile(pipe)
    _write(pipe, "through")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    until(lambda: found)
    assert (found, _names(tmp_path)) == ([b"through"], ["pipe"])


@pytest.mark.parametrize("name", ["/dev/null", "/dev/full"])
def test_a_device_is_written_to(name: str, tmp_path: Path) -> None:
    device = Path(name)
    link = tmp_path / "link"
    link.symlink_to(device)
    before = device.stat()
    for path in (device, link):
        if name == "/dev/null":
            _write(path)
        else:
            with pytest.raises(OSError, match="No space"):
                _write(path)
    assert (device.stat().st_ino, device.stat().st_mode) == (before.st_ino, before.st_mode)
    assert link.is_symlink()


@pytest.mark.parametrize("mode", ["wb", "ab"])
def test_descriptors_of_this_process_are_written_to(tmp_path: Path, mode: str) -> None:
    """Also where they lead to a file, which keeps what stands before and gets what comes after."""
    (tmp_path / "link").symlink_to("/dev/stdout")
    (tmp_path / "folder").symlink_to("/dev/fd")
    names = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link", "folder/1", "/dev/stderr")
    code = (
        "import sys; from pathlib import Path; from quantize.disk import outfile\n"
        "for name in sys.argv[1:]:\n"
        "    stream = sys.stderr if 'err' in name else sys.stdout\n"
        "    print('before', name, file=stream)\n"
        "    with outfile(Path(name)) as partial: partial.write_text('new\\n')\n"
        "    print('after', file=stream)\n"
        "    stream.flush()\n"
    )
    with (tmp_path / "log").open(mode) as out:
        subprocess.run(
            [sys.executable, "-c", code, *names],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=out,
            stderr=out,
            check=True,
            timeout=60,
        )
    expected = "".join(f"before {name}\nnew\nafter\n" for name in names)
    assert (tmp_path / "log").read_text() == expected


def test_what_cannot_be_written_is_refused_before_and_after(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        before = _names(tmp_path)
        for name in (".", "folder", "link", "nowhere/out", "file/out", "a", "socket", "x" * 300):
            for use in (check_outfile, _write):
                if (name, use) != ("x" * 300, check_outfile):
                    with pytest.raises(OSError, match=r"\w"):
                        use(tmp_path / name)
        assert stat.S_ISSOCK((tmp_path / "socket").stat().st_mode)
    assert (_names(tmp_path), (tmp_path / "file").read_text()) == (before, "old")


def test_a_working_folder_that_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for use in (check_outfile, _write):
        with pytest.raises(FileNotFoundError, match="no such folder"):
            use(Path("out"))
    _write(tmp_path / "out")


def test_nothing_is_replaced_unless_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    for name in ("file", "link", "pipe"):
        with pytest.raises(FileExistsError):
            _write(tmp_path / name, replace=False)
    _write(tmp_path / "new", replace=False)
    assert _names(tmp_path) == ["file", "link", "new", "pipe"]
    assert (tmp_path / "file").read_text() == "old"


def test_a_file_with_the_same_content_may_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    _write(out)
    before = out.stat()
    _write(out, keep_same=True)
    assert out.stat().st_ino == before.st_ino
    _write(out, "other", keep_same=True)
    assert out.read_text() == "other"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("protected", ["file", "folder"])
def test_what_is_protected_stays(tmp_path: Path, protected: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    out = folder / "out"
    out.write_text("old")
    (out if protected == "file" else folder).chmod(0o500)
    try:
        for use in (check_outfile, _write):
            with pytest.raises(PermissionError):
                use(out)
    finally:
        folder.chmod(0o700)
    assert out.read_text() == "old"


def test_room_is_asked_of_the_disk_that_will_be_written(tmp_path: Path):
    require_room(tmp_path / "not" / "there", 1, "writing")
    needed = free_space(tmp_path)[1] * 3 // 2
    with pytest.raises(DiskFullError, match=r"writing needs .* GB free .*INGOT_HOME"):
        require_room(tmp_path / "not" / "there", needed, "writing")


def test_what_is_written_is_on_the_disk_before_it_is_seen(tmp_path: Path, monkeypatch):
    """A power cut may come at any moment: the order of the calls is all that can be tested."""
    done, fsync, replace = [], os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        found = os.fstat(descriptor)
        done.append(("synced", found.st_ino, found.st_size))
        fsync(descriptor)

    def placed(path: Path, target: Path) -> Path:
        done.append(("placed", path.stat().st_ino, path.stat().st_size))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", placed)
    write_atomically(tmp_path / "state.json", "new")
    inode = (tmp_path / "state.json").stat().st_ino
    assert done == [("synced", inode, 3), ("placed", inode, 3)]


def test_what_the_disk_refuses_is_told(tmp_path: Path):
    for number, kind in ((errno.ENOSPC, DiskFullError), (errno.EROFS, UsageError)):
        with pytest.raises(kind, match="INGOT_HOME"), full_disk_explained(tmp_path):
            raise OSError(number, "no")
    with pytest.raises(FileNotFoundError), full_disk_explained(tmp_path):
        raise FileNotFoundError("nothing")


def test_a_file_is_replaced_in_one_step(tmp_path: Path):
    path, work = tmp_path / "new" / "file.json", tmp_path / "work"
    work.mkdir()
    write_atomically(path, "one")
    with path.open() as reader:
        write_atomically(path, "two", work)
        assert reader.read() == "one"  # replaced, not written over
    assert path.read_text() == "two"
    assert [*path.parent.iterdir(), *work.iterdir()] == [path]
