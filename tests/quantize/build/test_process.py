from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest

from quantize.build.process import last_lines, run_child
from quantize.errors import DiskFullError, ToolError
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


def test_a_child_that_python_cannot_begin_is_told_as_that(tmp_path: Path):
    (tmp_path / "logging.py").write_text("import no_such_package")
    with pytest.raises(ToolError, match=r"the step failed: Python could not import .*logging.py"):
        run_child(
            *("textwrap:dedent", {"text": "x"}),
            what="the step",
            work=tmp_path,
            environment={"PYTHONPATH": str(tmp_path)},
        )


def test_a_kill_reads_as_lack_of_memory(tmp_path: Path):
    with pytest.raises(OutOfMemoryError, match="memory ran out"):
        _run("subprocess:run", tmp_path, args=["sh", "-c", "kill -9 $PPID"])


def test_a_full_disk_in_the_child_is_told_as_such(tmp_path: Path):
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(DiskFullError):
        _run("shutil:copyfile", tmp_path, src=sys.executable, dst="/dev/full")


def test_a_disk_so_full_that_no_answer_can_be_written(tmp_path: Path):
    (tmp_path / "filling.py").write_text(
        "import errno, pathlib\n"
        "def refuse(*_args, **_more):\n"
        "    raise OSError(errno.ENOSPC, 'full')\n"
        "def fill():\n"
        "    pathlib.Path.write_text = refuse\n"
    )
    environment = {"PYTHONPATH": str(tmp_path)}
    with pytest.raises(DiskFullError, match="the step: the disk is full"):
        run_child("filling:fill", {}, what="the step", work=tmp_path, environment=environment)


def test_no_child_outlives_a_killed_parent(tmp_path: Path):
    script = (
        "import sys; from pathlib import Path; from quantize.build.process import run_child\n"
        "run_child('signal:pause', {}, what='x', work=Path(sys.argv[1]))"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    children: list[str] = []
    while parent.poll() is None:
        task = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        if not task.exists():
            pytest.skip("this system has no /proc with children")
        if children := task.read_text().split():
            break
        time.sleep(0.05)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    _wait_for_the_end_of(int(children[0]))


def _wait_for_the_end_of(pid: int) -> None:
    limit = time.monotonic() + 60
    while _alive(pid):
        if time.monotonic() > limit:
            os.kill(pid, signal.SIGKILL)
            pytest.fail("the child is still there")
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the latter while it goes away
        return False


def test_progress_reaches_the_parent_while_the_child_works(tmp_path: Path):
    """The first report is passed on before the child, which waits for it, can end."""
    (tmp_path / "busy.py").write_text(
        "import pathlib, time\n"
        "from quantize.build.child import report_progress, report_step\n"
        "def work(seen):\n"
        "    report_progress(1, 4, 'rows')\n"
        "    while not pathlib.Path(seen).exists():\n"
        "        time.sleep(0.01)\n"
        "    for n in range(1000):\n"
        "        report_progress(2 + n / 1000, 4, 'rows')\n"
        "    report_progress(4, 4, 'rows')\n"
        "    report_step('tidying up')\n"
    )

    class Heard:
        reports: ClassVar[list[tuple[float, float, str]]] = []
        steps: ClassVar[list[str]] = []

        def advance(self, done: float, total: float, unit: str) -> None:
            self.reports.append((done, total, unit))
            (tmp_path / "seen").touch()

        def step(self, text: str) -> None:
            self.steps.append(text)

    environment = {"PYTHONPATH": str(tmp_path)}
    arguments = {"seen": str(tmp_path / "seen")}
    run_child(
        *("busy:work", arguments),
        what="it",
        work=tmp_path,
        environment=environment,
        progress=Heard(),
    )
    assert Heard.reports[0] == (1, 4, "rows")
    assert Heard.steps == ["tidying up"]
    assert len(Heard.reports) < 20
    run_child("busy:work", arguments, what="it", work=tmp_path, environment=environment)


@pytest.mark.skipif(sys.platform != "linux", reason="a matter of Linux")
def test_a_child_that_keeps_pythons_lock_dies_with_its_parent(tmp_path: Path):
    """No thread of Python's could end it: PyDLL calls hold the lock."""
    (tmp_path / "stuck.py").write_text(
        "import ctypes, pathlib\n"
        "def hold(mark):\n"
        "    pathlib.Path(mark).touch()\n"
        "    ctypes.PyDLL(None).sleep(600)\n"
    )
    script = (
        "import sys; from pathlib import Path; from quantize.build.process import run_child\n"
        "run_child('stuck:hold', {'mark': sys.argv[1] + '/mark'}, what='x',"
        " work=Path(sys.argv[1]), environment={'PYTHONPATH': sys.argv[1]})"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    while not (tmp_path / "mark").exists():
        time.sleep(0.02)
    child = int(Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text())
    parent.kill()
    parent.wait()
    _wait_for_the_end_of(child)


def test_an_interrupt_ends_what_the_child_has_started(tmp_path: Path):
    (tmp_path / "nested.py").write_text(
        "import subprocess, pathlib\n"
        "def start(mark):\n"
        "    inner = subprocess.Popen(['sleep', '600'])\n"
        "    pathlib.Path(mark).write_text(str(inner.pid))\n"
        "    inner.wait()\n"
    )
    mark = tmp_path / "mark"

    def interrupt() -> None:
        while not mark.exists() or not mark.read_text():
            time.sleep(0.02)
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run_child(
            *("nested:start", {"mark": str(mark)}),
            what="it",
            work=tmp_path,
            environment={"PYTHONPATH": str(tmp_path)},
        )
    _wait_for_the_end_of(int(mark.read_text()))


def test_progress_bars_do_not_hide_the_reason():
    text = "reason\n" + "".join(f"\r{n}%" for n in range(100)) + "\n\n"
    assert last_lines(text) == "  reason\n  99%"
