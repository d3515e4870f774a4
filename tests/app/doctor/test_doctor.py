from __future__ import annotations

import hashlib
import json
import os
import pty
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from app.doctor import report
from runtimes.machine.gpus import Gpu
from runtimes.machine.hardware import Hardware
from runtimes.machine.selftest import Health
from tests.runtimes.worker.faults import build_fault_library

MACHINE = Hardware(
    cpu="Some Xeon [v4]",
    architecture="x86_64",
    physical_cores=4,
    logical_cores=8,
    usable_cores=2,
    instruction_sets=("avx2", "amx-int8"),
    ram_total=16 << 30,
    ram_available=8 << 30,
    gpus=(Gpu(0, "H200", 141 << 30, 140 << 30, "9.0", "999.1"),),
)
SLOW = Health("llamacpp", True, False, "0.3.36", ("AVX2",), "llama.cpp is slow; do this")
MISSING = Health("onnx", False, False, None, (), "ONNX Runtime is not installed; do that")


def test_this_machine_as_json(ingot: Any, tmp_path: Path) -> None:
    done = ingot("doctor", "--json", env={"INGOT_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["usable"] is True
    assert found["problems"] == []
    assert {r["runtime"]: r["usable"] for r in found["runtimes"]} == {
        "llamacpp": True,
        "onnx": True,
    }
    assert found["memory_bandwidth_bytes_per_s"] > 0
    assert {"llama-cpp-python", "onnxruntime", "ingot"} <= set(found["libraries"])
    assert found["hardware"]["cpu"]


def test_plain_lines_when_piped(ingot: Any, tmp_path: Path) -> None:
    done = ingot("doctor", env={"INGOT_HOME": str(tmp_path)})
    assert done.returncode == 0
    lines = dict(line.split("  ", 1) for line in done.stdout.splitlines())
    assert "self-test passed" in lines["llama.cpp"]
    assert "\x1b" not in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="uses LD_PRELOAD")
def test_without_a_usable_runtime_it_ends_with_3(ingot: Any, tmp_path: Path) -> None:
    # A package that cannot be imported stands in front of the installed one.
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "__init__.py").write_text("raise ImportError('no such provider')")
    environment = {
        "INGOT_HOME": str(tmp_path / "home"),
        "LD_PRELOAD": str(build_fault_library(tmp_path)),
        "INGOT_TEST_FAULT": "always",
        "PYTHONPATH": str(tmp_path),
    }
    done = ingot("doctor", "--json", env=environment)
    assert done.returncode == 3
    found = json.loads(done.stdout)
    assert found["usable"] is False
    assert "python -P -m runtimes.llamacpp.build" in done.stderr
    assert "pip install onnxruntime" in done.stderr


def findings() -> report.Report:
    problems = tuple(str(h.warning) for h in (SLOW, MISSING))
    return report.Report(MACHINE, 34e9, {"numpy": "2"}, (SLOW, MISSING), problems)


def test_rows_say_what_is_slow_and_what_is_missing() -> None:
    rows = dict(report.rows(findings()))
    assert rows["cores"] == "4 cores, 8 threads, 2 usable here"
    assert rows["memory bandwidth"].startswith("34.0 GB/s")
    assert rows["llama.cpp"] == "0.3.36, self-test passed, repacked weights off (slower)"
    assert rows["ONNX Runtime"] == "not installed"
    assert rows["GPU 0"].startswith("H200, 140.0 of 141.0 GiB free, compute 9.0")


def test_a_terminal_gets_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        report.show(findings())
        terminal.flush()
        text = os.read(master, 1 << 16).decode()
    os.close(master)
    assert "Some Xeon [v4]" in text  # square brackets are no markup
    assert "llama.cpp is slow; do this" in text.replace("\r\n", " ")


def test_two_onnx_runtimes_in_one_folder_are_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnxruntime" / "capi").mkdir(parents=True)
    (tmp_path / "onnxruntime" / "__init__.py").touch()
    (tmp_path / "onnxruntime-1.31.1.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    # A test before this one may have imported the real one, which would be found first.
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    assert report._conflicts() == []
    (tmp_path / "onnxruntime_gpu-1.31.1.dist-info").mkdir()
    (problem,) = report._conflicts()
    assert "uninstall both" in problem


def test_verify_reads_every_byte(ingot: Any, tmp_path: Path, pebble_built: Path) -> None:
    folder = Path(shutil.copytree(pebble_built, tmp_path / "built"))
    done = ingot("doctor", "--checksums", folder)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert {line.split()[0] for line in lines} == {"ok"}
    assert any(line.endswith("onnx-int4/model.onnx.data") for line in lines)
    data = bytearray((folder / "pebble-q8_0.gguf").read_bytes())
    data[-1] ^= 1
    (folder / "pebble-q8_0.gguf").write_bytes(data)
    done = ingot("doctor", "--checksums", folder, "--json")
    assert done.returncode == 3
    found = json.loads(done.stdout)
    (bad,) = [file for file in found["files"] if file["problem"]]
    assert bad["path"].endswith("pebble-q8_0.gguf")
    assert f"1 of {len(found['files'])} files are damaged" in done.stderr
    (folder / "pebble-q8_0.gguf").write_bytes(data[:-1])
    done = ingot("run", folder, "Hello", "--recipe", "q8_0")
    assert done.returncode == 3
    assert "cut off" in done.stderr


def test_verify_looks_at_the_library(ingot: Any, tmp_path: Path) -> None:
    home = {"INGOT_HOME": str(tmp_path)}
    assert ingot("doctor", "--checksums", env=home).stdout == ""
    folder = tmp_path / "data" / "models" / "org" / "name"
    folder.mkdir(parents=True)
    (folder / "m.gguf").write_bytes(b"abc")
    build = {"label": "Q8_0", "kind": "gguf", "main": "m.gguf", "commit": "0" * 40}
    build |= {"bytes": {"m.gguf": 3}, "sha256": {"m.gguf": hashlib.sha256(b"abc").hexdigest()}}
    (folder / "library.json").write_text(json.dumps({"builds": [build]}))
    assert ingot("doctor", "--checksums", "name", env=home).stdout.startswith("ok ")
    (folder / "m.gguf").write_bytes(b"abd")
    done = ingot("doctor", "--checksums", env=home)
    assert done.returncode == 3
    assert done.stdout.startswith("damaged ")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["model"], 2, "--checksums"),
        (["--checksums", "nothing"], 3, "not in the library"),
        (["--checksums", "."], 3, "no manifest.json"),
    ],
)
def test_what_verify_cannot_look_at(
    command: Any, arguments: list[str], code: int, says: str
) -> None:
    done = command("doctor", *arguments)
    assert done.returncode == code
    assert says in done.stderr
