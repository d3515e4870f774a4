"""Children that run Python: what is on their path, and what is said of those that do not begin."""

from __future__ import annotations

import ast
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimes.machine.processes import (
    Child,
    birth,
    child_environment,
    ending,
    import_failure,
    is_alive,
    run,
)

ROOT = Path(__file__).resolve().parents[3]
PATH = "import sys; print(*sys.path, sep='\\n')"
HOME = "runtimes/machine/processes.py"
# Start programs that are not Python.
OTHERS = {
    "app/bench/frame.py",
    "app/bench/server.py",
    "runtimes/machine/cpu.py",
    "runtimes/llamacpp/build.py",
    "runtimes/llamacpp/source.py",
    "quantize/children.py",  # forks itself
    "app/tools/transport.py",  # whatever the user's settings name
}
STARTERS = {
    *("subprocess.Popen", "subprocess.run", "subprocess.call", "subprocess.check_call"),
    *("subprocess.check_output", "os.system", "os.popen", "os.fork", "os.forkpty", "pty.fork"),
    *("pty.spawn", "os.posix_spawn", "os.posix_spawnp", "asyncio.create_subprocess_exec"),
    *("asyncio.create_subprocess_shell", "concurrent.futures.ProcessPoolExecutor"),
    *(f"os.{name}" for name in dir(os) if name.startswith(("exec", "spawn"))),
}
# Files without any of these words need not be parsed.
MAY_START = re.compile(
    r"process|pty|executable|(os\.|from os import .*)(system|popen|fork|exec|spawn|posix)"
)


def test_the_current_folder_is_not_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = os.pathsep.join(["", "theirs", str(ROOT), "theirs"])
    for words in (("-c", PATH), ("-m", "site")):
        done = run(*words, capture_output=True, environment={"PYTHONPATH": given})
        assert done.returncode == 0
        assert not {"", str(tmp_path)} & {line.strip(" ',") for line in done.stdout.splitlines()}
    lines = run("-c", PATH, capture_output=True, environment={"PYTHONPATH": given}).stdout.split()
    # What runs here, then what was asked for, wherever the child's folder is.
    assert lines[:2] == [str(ROOT), str(tmp_path / "theirs")]
    assert len(lines) == len(set(lines))


def test_what_is_installed_does_not_come_before_pythons_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert child_environment()["PYTHONPATH"] == str(ROOT)
    monkeypatch.setattr("site.getsitepackages", lambda: [str(ROOT)])
    assert child_environment()["PYTHONPATH"] == ""


BROKEN = {
    "missing": "import no_such_package",
    "deep": "def f():\n    from json import no_such_name\nf()",
    "unfinished": "def f(",
    "older": "import json\njson.no_such_name",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_module_that_cannot_be_imported_is_told_with_its_place(name: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN[name])
    said = _said("import broken", tmp_path)
    found = import_failure(said)
    assert found is not None
    last = said.strip().splitlines()[-1]
    assert found.startswith(f"could not import a module: {last} (")
    assert "json/__init__" in found or "broken.py, line " in found
    assert "install its package again" in found


def test_what_python_itself_cannot_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/a/folder")
    done = run("-m", "runtimes.no_such_child", capture_output=True)
    found = import_failure(done.stderr)
    assert "No module named runtimes.no_such_child" in str(found)
    assert "off PYTHONPATH (/a/folder)" in str(found)


@pytest.mark.parametrize("code", ["print()", "def f(): 1 / 0\nf()", "raise SystemExit('no')"])
def test_other_ends_are_no_failed_import(code: str, tmp_path: Path) -> None:
    (tmp_path / "whole.py").write_text(f"def main():\n    exec({code!r})")
    assert import_failure(_said("import whole; whole.main()", tmp_path)) is None


def _said(code: str, folder: Path) -> str:
    environment = {"PYTHONPATH": str(folder)}
    return run("-c", code, capture_output=True, environment=environment).stderr


def test_ends_in_words() -> None:
    assert ending(3) == "exit code 3"
    assert ending(-signal.SIGSEGV) == "SIGSEGV"
    assert ending(-signal.SIGRTMIN - 3) == f"signal {signal.SIGRTMIN + 3}"


@pytest.mark.skipif(sys.platform != "linux", reason="a matter of Linux")
@pytest.mark.parametrize("outlives", [False, True])
def test_a_stopped_child_ends_with_its_parent_unless_it_is_to_outlive_it(outlives: bool) -> None:
    code = (
        "import os, signal, sys; from runtimes.machine.processes import Child\n"
        f"child = Child('-c', 'import time; time.sleep(600)', outlives={outlives})\n"
        "child.send_signal(signal.SIGSTOP)\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with Child("-c", code, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        left = os.pidfd_open(pid)
        parent.stdin.close()
    try:
        if outlives:
            while "(stopped)" not in Path(f"/proc/{pid}/status").read_text():
                time.sleep(0.01)  # it is told at once, and obeys when it is its turn
            signal.pidfd_send_signal(left, signal.SIGKILL)
        assert select.select([left], [], [], 60)[0], "the child is still there"
    finally:
        os.close(left)


@pytest.mark.skipif(sys.platform != "linux", reason="a matter of Linux")
def test_a_child_that_cannot_be_started_leaves_nothing_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError) as caught:
        Child("-c", "", cwd=tmp_path / "none")
    assert os.listdir("/proc/self/fd") == before, caught  # while its error is there


def test_python_is_started_in_one_place() -> None:
    found = [f"{path}: {what}" for path, what in _starts() if path != HOME]
    assert [line for line in found if "sys.executable" in line] == []
    assert sorted({line.partition(":")[0] for line in found}) == sorted(OTHERS)


def _starts() -> Iterator[tuple[str, str]]:
    """Whatever may start a process, and every use of this Python's name that is no text."""
    for package in ("app", "quantize", "runtimes"):
        for path in (ROOT / package).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            if not MAY_START.search(source):
                continue
            nodes = list(ast.walk(ast.parse(source)))
            texts = [node for node in nodes if isinstance(node, ast.JoinedStr)]
            text = {id(part) for node in texts for part in ast.walk(node)}
            for node in nodes:
                names = [ast.unparse(node)] if isinstance(node, ast.Attribute) else []
                if isinstance(node, ast.ImportFrom):
                    names = [f"{node.module}.{name.name}" for name in node.names]
                elif isinstance(node, ast.Import):
                    names = [f"import {name.name}" for name in node.names]
                for name in names:
                    started = name in STARTERS or "multiprocessing" in name
                    if started or (name == "sys.executable" and id(node) not in text):
                        yield path.relative_to(ROOT).as_posix(), name


def test_a_process_is_known_by_its_start_too() -> None:
    pid = os.getpid()
    born = birth(pid)
    assert born is not None
    assert is_alive(pid, born)
    assert not is_alive(pid, born - 60)  # its number, used again
    for pair in ((str(pid), born), (pid, str(born)), (pid, [born]), (2**70, born), (True, born)):
        assert not is_alive(*pair)  # as a damaged file says
    assert not is_alive(pid, 10**400)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended_born = birth(ended.pid)
    assert ended_born is not None
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(ended.pid, ended_born)  # not yet waited for
    ended.wait()
    assert not is_alive(ended.pid, ended_born)
