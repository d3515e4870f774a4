"""`ingot doctor --verify` as a user runs it: its report, its budget, its ends."""

from __future__ import annotations

import getpass
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app import demo
from app.doctor.checks import CheckLine, CheckResult, skipped
from app.doctor.verify import (
    Cleaner,
    ReportFiles,
    Verification,
    as_json,
    build_pebble,
    pebble,
    read,
    shown,
)
from runtimes.errors import IngotError
from runtimes.machine import processes
from tests.runtimes.worker.faults import build_fault_library


def run_of(minutes: float = 10.0) -> Verification:
    return Verification(minutes, lambda _line: None, lambda _run: None)


def report_in(folder: Path) -> tuple[dict[str, Any], str]:
    """The only report there: its JSON, and the text of both files."""
    (found,) = folder.glob("*.json")
    return json.loads(found.read_text()), found.read_text() + found.with_suffix(".md").read_text()


def test_without_time_everything_is_skipped_and_told(
    command: Any, tmp_path: Path, gguf_file: Path
) -> None:
    asked = ("doctor", "--verify", gguf_file, "--minutes", "0", "--out")
    done = command(*asked, tmp_path / "new")
    assert done.returncode == 0
    data, _ = report_in(tmp_path / "new")
    assert data["verdicts"] == {"passed": 0, "failed": 0, "skipped": len(data["lines"])}
    assert {line["found"] for line in data["lines"]} == {"the 0 minutes were over"}
    assert len(done.stdout.splitlines()) == len(data["lines"])
    assert "to send: " in done.stderr
    for_programs = command(*asked, tmp_path / "json", "--json")
    assert json.loads(for_programs.stdout)["verdicts"] == data["verdicts"]


def test_names_that_no_encoding_has_end_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for silent in (True, False):
        with shown(silent=silent) as (begins, ends):
            begins(CheckLine("run", file="a\udc80.gguf"))
            ends(CheckLine("run", file="a\udc80.gguf", verdict="passed", found="it runs"))
    assert capsys.readouterr().out == "passed  run  a\\udc80.gguf  it runs\n"


def test_what_a_check_may_end_with() -> None:
    def fails(error: Exception) -> CheckResult:
        raise error

    run, short = run_of(), run_of(minutes=0.001)
    for error in (OSError(5, "no disk"), ValueError("a defect")):
        run.check(CheckLine("some"), partial(fails, error))
    short.check(CheckLine("endless"), lambda: threading.Event().wait(600) and skipped(""))
    assert [(line.verdict, line.found) for line in (*run.lines, *short.lines)] == [
        ("failed", "[Errno 5] no disk"),
        ("failed", "internal error: ValueError: a defect"),
        ("skipped", "it did not fit the 0.001 minutes"),
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="uses LD_PRELOAD")
def test_broken_runtimes_fail_and_the_report_says_no_path(
    ingot: Any, tmp_path: Path, gguf_file: Path
) -> None:
    # A package that cannot be imported stands in front of the installed one.
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "__init__.py").write_text("raise ImportError('no such provider')")
    environment = {
        "INGOT_HOME": str(tmp_path / "home"),
        "LD_PRELOAD": str(build_fault_library(tmp_path)),
        "INGOT_TEST_FAULT": "always",
        "PYTHONPATH": str(tmp_path),
    }
    out = tmp_path / "out"
    done = ingot("doctor", "--verify", gguf_file, "--out", out, env=environment)
    assert done.returncode == 1
    data, text = report_in(out)
    tests = [line for line in data["lines"] if line["check"] == "self-test"]
    assert [line["verdict"] for line in tests] == ["failed", "failed"]
    assert "no such provider" in tests[1]["found"]
    assert data["lines"][-1]["found"] == "llama.cpp does not work"
    for private in (tmp_path, gguf_file.parent, Path.home(), Path.cwd()):
        assert f"{private}/" not in text
    assert gguf_file.name in text


def test_the_demo_model_is_built_once_and_else_told_how(
    home: Path, tmp_path: Path, pebble_built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "BUILT", Path("assets/no-such-folder"))
    (tmp_path / "torch.py").write_text("raise ImportError('torch is not here')")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(IngotError, match=r"torch is not here.*ingot\[quantize\]"):
            build_pebble()
    assert not pebble().exists()

    def built(*command: str | Path, **_: int) -> subprocess.CompletedProcess[str]:
        """The command that ``pebble_built`` comes of."""
        *words, out, last = command
        assert [*words, last] == ["-m", "quantize", demo.ROOT / demo.MODEL, "--out", "--no-measure"]
        shutil.copytree(pebble_built, out)
        return subprocess.CompletedProcess([], 0)

    with monkeypatch.context() as patch:
        patch.setattr(processes, "run", built)
        assert build_pebble().said == "built from the demo model"
    assert pebble().is_relative_to(home)
    assert read(str(pebble()), []).verdict == "passed"
    assert build_pebble().said == "there already"
    monkeypatch.setattr(demo, "ROOT", tmp_path)
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "other"))
    assert "name a MODEL" in build_pebble().said


def test_ctrl_c_leaves_what_is_done(ingot: Any, tmp_path: Path, gguf_file: Path) -> None:
    process = ingot.start("doctor", "--verify", gguf_file, "--out", tmp_path)
    for line in process.stdout:
        if line.startswith(b"passed  files"):
            break
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said.decode()
    assert b"Traceback" not in said
    data, text = report_in(tmp_path)
    assert data["interrupted"] is True
    assert "it was interrupted" in text
    assert [line["verdict"] for line in data["lines"] if line["check"] == "files"] == ["passed"]
    assert data["lines"][-1]["check"] != "planner"


def test_reports_do_not_overwrite_each_other(tmp_path: Path) -> None:
    (tmp_path / "ingot-verify-2026-01-02.md").write_text("kept")
    first, second = (ReportFiles(tmp_path, "2026-01-02") for _ in range(2))
    assert first.json.name == "ingot-verify-2026-01-02-2.json"
    assert second.json.name == "ingot-verify-2026-01-02-3.json"
    first.write(run_of())
    assert (tmp_path / "ingot-verify-2026-01-02.md").read_text() == "kept"


def test_who_and_where_is_taken_out() -> None:
    run = run_of()
    run.asked = ["/my own/things/d.gguf"]
    said = (
        f"{Path.home()}/models/a.gguf on {socket.gethostname()} of {getpass.getuser()}:"
        f" '/srv/some where/b.gguf', {run.asked[0]} in {Path.home()}:"
        " C:\\Users\\Jo\\c.gguf, 403/403, 12 tok/s, n/a"
    )
    run.lines.append(CheckLine("x", found=said, figures={"deep": [said]}))
    (line,) = as_json(run)["lines"]
    for text in (line["found"], line["figures"]["deep"][0]):
        for private in (str(Path.home()), "models", "Users", "Jo", "srv", "some", "own"):
            assert private not in text
        assert text.startswith(".../a.gguf on ... of ...: '.../b.gguf', .../d.gguf in ...: ")
        assert text.endswith(".../c.gguf, 403/403, 12 tok/s, n/a")
    assert Cleaner().clean(f"x {getpass.getuser()} y") == "x ... y"
