from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quantize.errors import DiskFullError, ToolError
from quantize.process import last_lines, run_child
from runtimes.errors import OutOfMemoryError


def _run(function: str, work: Path, **arguments: object) -> object:
    return run_child(function, arguments, what="the step", work=work)


def test_a_result_comes_back(tmp_path: Path):
    assert _run("textwrap:dedent", tmp_path, text="  é\n  b") == "é\nb"
    assert list(tmp_path.iterdir()) == []


def test_a_native_crash_is_an_error_here(tmp_path: Path):
    with pytest.raises(ToolError, match=r"the step died .SIGSEGV"):
        _run("ctypes:string_at", tmp_path, ptr=0)


def test_an_exception_is_shown_without_its_traceback(tmp_path: Path):
    with pytest.raises(ToolError, match="the step failed: ModuleNotFoundError: No module") as error:
        _run("no_such_module:f", tmp_path)
    assert "Traceback" not in str(error.value)


def test_what_a_tool_said_last_is_shown(tmp_path: Path):
    (tmp_path / "talkative.py").write_text(
        "import sys\n"
        "def give_up():\n"
        "    for n in range(20):\n"
        "        print('line', n)\n"
        "    sys.exit(1)\n"
    )
    with pytest.raises(ToolError, match=r"it gave up .*\n  line 12\n(.|\n)*line 19") as error:
        run_child(
            "talkative:give_up",
            {},
            what="the step",
            work=tmp_path,
            environment={"PYTHONPATH": str(tmp_path)},
        )
    assert "line 11" not in str(error.value)


def test_a_kill_reads_as_lack_of_memory(tmp_path: Path):
    with pytest.raises(OutOfMemoryError, match="memory ran out"):
        _run("subprocess:run", tmp_path, args=["sh", "-c", "kill -9 $PPID"])


def test_a_full_disk_in_the_child_is_told_as_such(tmp_path: Path):
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(DiskFullError):
        _run("shutil:copyfile", tmp_path, src=sys.executable, dst="/dev/full")


def test_no_child_outlives_a_killed_parent(tmp_path: Path):
    script = (
        "import sys; from pathlib import Path; from quantize.process import run_child\n"
        "run_child('signal:pause', {}, what='x', work=Path(sys.argv[1]))"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    children: list[str] = []
    for _ in range(200):
        task = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        if not task.exists():
            pytest.skip("this system has no /proc with children")
        if children := task.read_text().split():
            break
        time.sleep(0.05)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for _ in range(100):
        if not _alive(int(children[0])):
            return
        time.sleep(0.05)
    os.kill(int(children[0]), signal.SIGKILL)
    pytest.fail("the child is still there")


def _alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def test_progress_bars_do_not_hide_the_reason():
    text = "reason\n" + "".join(f"\r{n}%" for n in range(100)) + "\n\n"
    assert last_lines(text) == "  reason\n  99%"
