from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from quantize.disk import free_space, full_disk_explained, human, require_room, write_atomically
from quantize.errors import DiskFullError, UsageError


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (310_400, "310 kB"), (4_710_000, "4.7 MB"), (15e9, "15 GB")],
)
def test_sizes_in_words(count: int, text: str):
    assert human(count) == text


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
