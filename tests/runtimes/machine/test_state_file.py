"""Small files that several programs change at once, that are damaged, or that cannot be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtimes.machine.state_file import load_state, save_entry, save_state
from runtimes.paths import state_dir

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.usefixtures("home")

_SAVE = """
import sys
from runtimes.machine.state_file import save_entry

sys.stdin.readline()
for number in range(20):
    save_entry("things", f"{sys.argv[1]}-{number}", number, 1000)
"""


def _path(name: str = "things") -> Path:
    path = state_dir() / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_what_several_programs_save_at_once_is_all_there() -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", _SAVE, str(one)], stdin=subprocess.PIPE, cwd=ROOT)
        for one in range(3)
    ]
    for one in writers:  # they begin together, once they have started
        assert one.stdin is not None
        one.stdin.write(b"\n")
        one.stdin.close()
    assert [one.wait(120) for one in writers] == [0] * 3
    assert len(load_state("things")) == 3 * 20
    assert {one.name for one in state_dir().iterdir()} - {"selftest.json"} == {"things.json"}


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "[]", "\x00", '{"a": "\\ud800"}', "1" * 5000])
def test_a_damaged_file_is_replaced(text: str) -> None:
    _path().write_text(text)
    assert load_state("things") == {}
    save_entry("things", "b", 1, 10)
    assert load_state("things") == {"b": 1}


@pytest.mark.parametrize("kind", ["folder", "loop"])
def test_a_file_that_cannot_be_read_stays_as_it_is(kind: str) -> None:
    path = _path()
    path.symlink_to(path.name) if kind == "loop" else path.mkdir()
    before = path.lstat()
    assert load_state("things") == {}
    save_entry("things", "b", 1, 10)
    assert (path.lstat().st_ino, load_state("things")) == (before.st_ino, {})


def test_a_pipe_is_not_waited_for_and_no_folder_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(_path())
    assert load_state("things") == {}
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "file"))
    save_state("things", {"a": 1})
    assert load_state("things") == {}


def test_the_latest_entries_stay() -> None:
    for number in range(5):
        save_entry("things", str(number), number, 3)
    save_entry("things", "3", None, 3)
    assert load_state("things") == {"2": 2, "4": 4}
    save_state("things", {"x": 1})
    assert json.loads(_path().read_text()) == {"x": 1}
