from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from quantize import children
from quantize.children import run_child
from quantize.errors import DiskFullError, ToolError
from quantize.progress import Reporter
from runtimes.errors import OutOfMemoryError
from runtimes.machine.processes import Child
from tests.quantize.build import misbehaving

FORKED = pytest.param(
    True, marks=pytest.mark.skipif(sys.platform != "linux", reason="children are forked on Linux")
)
# What the server imports takes seconds, and matters to one test here: the others have a bare one.
_BARE = (
    "import sys; from quantize import children; children._MODULES = ();"
    " children.serve(int(sys.argv[1]))"
)


@pytest.fixture(autouse=True)
def _as_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children that need no torch are not forked."""
    monkeypatch.setattr(children, "Child", Child)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Children are forked of a server that imports nothing, and ends with the test."""
    if sys.platform != "linux":
        yield
        return
    server = children.ForkServer()
    monkeypatch.setattr(children, "_SERVE", _BARE)
    monkeypatch.setattr(children, "_forks", server)
    yield
    server.close()


def _run(call: Callable[[], object], work: Path, **options: Any) -> object:
    return run_child(call, what="the step", work=work, **options)


@pytest.mark.parametrize("torch", [False, FORKED])
def test_a_child_has_the_environment_of_now(tmp_path: Path, torch: bool):
    told = {"INGOT_TOLD": str(tmp_path)}
    found = _run(misbehaving.imported, tmp_path, torch=torch, environment=told)
    assert found == (torch, str(tmp_path), True)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("torch", [False, FORKED])
def test_a_native_crash_is_an_error_here(tmp_path: Path, torch: bool):
    with pytest.raises(ToolError, match=r"the step died .SIGSEGV"):
        _run(partial(ctypes.string_at, 0), tmp_path, torch=torch)


def test_an_exception_is_shown_without_its_traceback(tmp_path: Path):
    with pytest.raises(ToolError, match="the step failed: ModuleNotFoundError: No module") as error:
        _run(partial(importlib.import_module, "no_such_module"), tmp_path)
    assert "Traceback" not in str(error.value)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("torch", [False, FORKED])
def test_what_a_tool_said_last_is_shown(tmp_path: Path, torch: bool):
    with pytest.raises(ToolError, match=r"it gave up .*\n  line 12\n(.|\n)*line 19") as error:
        _run(misbehaving.give_up, tmp_path, torch=torch)
    assert "line 11" not in str(error.value)


def test_a_child_that_python_cannot_begin_is_told_as_that(tmp_path: Path):
    (tmp_path / "logging.py").write_text("import no_such_package")
    with pytest.raises(ToolError, match=r"the step failed: Python could not import .*logging.py"):
        _run(os.getpid, tmp_path, environment={"PYTHONPATH": str(tmp_path)})


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("torch", [False, FORKED])
def test_a_kill_reads_as_lack_of_memory(tmp_path: Path, torch: bool):
    with pytest.raises(OutOfMemoryError, match="memory ran out"):
        _run(partial(subprocess.run, ["sh", "-c", "kill -9 $PPID"]), tmp_path, torch=torch)


@pytest.mark.usefixtures("bare")
@pytest.mark.skipif(sys.platform != "linux", reason="children are forked on Linux")
def test_a_child_whose_server_is_killed_ends_and_the_next_one_gets_another(tmp_path: Path):
    with pytest.raises(OutOfMemoryError, match="memory ran out"):
        _run(partial(misbehaving.kill_the_server, os.getpid()), tmp_path, torch=True)
    assert _run(partial(int, "3"), tmp_path, torch=True) == 3


@pytest.mark.usefixtures("bare")
@pytest.mark.skipif(sys.platform != "linux", reason="children are forked on Linux")
def test_where_memory_is_short_a_server_that_waits_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    server = _run(os.getppid, tmp_path, torch=True)
    assert isinstance(server, int)
    _run(os.getpid, tmp_path)
    assert _alive(server)
    monkeypatch.setattr(children, "_SHORT", 1e18)
    _run(os.getpid, tmp_path)
    assert not _alive(server)


def test_a_full_disk_in_the_child_is_told_as_such(tmp_path: Path):
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(DiskFullError):
        _run(partial(shutil.copyfile, sys.executable, "/dev/full"), tmp_path)


def test_a_disk_so_full_that_no_answer_can_be_written(tmp_path: Path):
    with pytest.raises(DiskFullError, match="the step: the disk is full"):
        _run(misbehaving.fill_the_disk, tmp_path)


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

    class Heard(Reporter):
        reports: ClassVar[list[tuple[float, float | None, str]]] = []
        steps: ClassVar[list[str]] = []

        def advance(self, done: float, total: float | None, unit: str) -> None:
            self.reports.append((done, total, unit))
            (tmp_path / "seen").touch()

        def step(self, text: str) -> None:
            self.steps.append(text)

    call = partial(misbehaving.report, tmp_path / "seen")
    _run(call, tmp_path, progress=Heard())
    assert Heard.reports[0] == (1, 4, "rows")
    assert Heard.steps == ["tidying up"]
    assert len(Heard.reports) < 20
    _run(call, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="a matter of Linux")
@pytest.mark.parametrize("torch", [False, True])
def test_a_child_that_keeps_pythons_lock_dies_with_its_parent(tmp_path: Path, torch: bool):
    script = (
        "import sys; from functools import partial; from pathlib import Path\n"
        "from quantize.children import run_child\n"
        "from quantize import children\n"
        "from tests.quantize.build.misbehaving import hold_the_lock\n"
        f"children._SERVE = {_BARE!r}\n"
        "work = Path(sys.argv[1])\n"
        f"run_child(partial(hold_the_lock, work / 'mark'), what='x', work=work, torch={torch})"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    child = _written(tmp_path / "mark")
    parent.kill()
    parent.wait()
    _wait_for_the_end_of(child)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("torch", [False, FORKED])
def test_an_interrupt_ends_what_the_child_has_started(tmp_path: Path, torch: bool):
    mark = tmp_path / "mark"

    def interrupt() -> None:
        _written(mark)
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        _run(partial(misbehaving.start_another, mark), tmp_path, torch=torch)
    _wait_for_the_end_of(int(mark.read_text()))
    assert _run(partial(int, "3"), tmp_path, torch=torch) == 3


def _written(mark: Path) -> int:
    while not mark.exists() or not mark.read_text():
        time.sleep(0.02)
    return int(mark.read_text())
