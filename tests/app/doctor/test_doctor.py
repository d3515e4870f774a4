"""`ingot doctor`: the machine, and checksums of model files."""

from __future__ import annotations

import json
import os
import pty
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.doctor import report
from runtimes.backend import Device
from runtimes.machine.gpus import Gpu
from runtimes.machine.hardware import Hardware
from runtimes.machine.selftest import Health
from runtimes.worker.recovery import FORGET
from tests.app.models.kept import keep

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
NO_GPU = replace(MACHINE, gpus=())
DEVICES = (Device("GPU0", "some", 2 << 30, 1 << 30), Device("GPU1", "other"))
SLOW = Health(
    *("llamacpp", True, False, "0.3.36", ("AVX2",), "llama.cpp is slow; do this"),
    devices=DEVICES,
    attention=1.5,
)
MISSING = Health("onnx", False, False, None, (), "ONNX Runtime is not installed; do that")


def test_this_machine(command: Any, home: Path) -> None:
    done = command("doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["usable"], found["problems"]) == (True, [])
    assert {r["runtime"]: r["usable"] for r in found["runtimes"]} == {
        "llamacpp": True, "onnx": True
    }  # fmt: skip
    assert found["memory_bandwidth_bytes_per_s"] > 0
    assert {"llama-cpp-python", "onnxruntime", "ingot"} <= set(found["libraries"])
    assert found["hardware"]["cpu"]


def findings(*runtimes: Health) -> report.Report:
    problems = tuple(str(health.warning) for health in runtimes)
    bounds = ("pebble: one slot",)
    return report.Report(MACHINE, 34e9, {"numpy": "2"}, runtimes, problems, bounds)


def test_what_is_slow_and_what_is_missing(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain lines where nobody looks, a table on a terminal."""
    monkeypatch.setattr(report, "examine", lambda: findings(SLOW, MISSING))
    done = command("doctor")
    rows = [[part.strip() for part in line.split("  ", 1)] for line in done.stdout.splitlines()]
    for row in (
        ("cores", "4 cores, 8 threads, 2 usable here"),
        ("memory bandwidth", "34.0 GB/s read, measured now"),
        (
            "llama.cpp",
            "0.3.36, self-test passed, repacked weights off (slower), flash attention on"
            " (1.5 times as fast behind 2,048 tokens)",
        ),
        ("llama.cpp device", "GPU0: some, 1.0 of 2.0 GiB free"),
        ("llama.cpp device", "GPU1: other"),
        ("llama.cpp kernels", "AVX2"),
        ("ONNX Runtime", "not installed"),
        ("after a crash", f"pebble: one slot; undo: {FORGET}"),
        ("GPU 0", "H200, 140.0 of 141.0 GiB free, compute 9.0, driver 999.1"),
    ):
        assert [*row] in rows
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        report.show(findings(SLOW, MISSING))
        terminal.flush()
        text = os.read(master, 1 << 16).decode()
    os.close(master)
    assert "Some Xeon [v4]" in text  # square brackets are no markup
    assert "llama.cpp is slow; do this" in text.replace("\r\n", " ")
    crashed = replace(SLOW, usable=False, warning="it crashed")
    monkeypatch.setattr(report, "examine", lambda: replace(findings(crashed), hardware=NO_GPU))
    done = command("doctor")
    assert done.returncode == 3
    assert "no runtime works here; it crashed" in done.stderr
    assert "0.3.36, self-test failed" in done.stdout
    assert "none found" in done.stdout


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


def test_checksums(command: Any, tmp_path: Path, pebble_built: Path, home: Path) -> None:
    folder = Path(shutil.copytree(pebble_built, tmp_path / "built"))
    done = command("doctor", "--checksums", folder)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert {line.split()[0] for line in lines} == {"ok"}
    assert any(line.endswith("onnx-int4/model.onnx.data") for line in lines)
    data = bytearray((folder / "pebble-q8_0.gguf").read_bytes())
    data[-1] ^= 1
    (folder / "pebble-q8_0.gguf").write_bytes(data)
    done = command("doctor", "--checksums", folder, "--json")
    assert done.returncode == 3
    found = json.loads(done.stdout)
    (bad,) = [file for file in found["files"] if file["problem"]]
    assert bad["path"].endswith("pebble-q8_0.gguf")
    assert f"1 of {len(found['files'])} files are damaged" in done.stderr
    # The library
    assert command("doctor", "--checksums").stdout == ""
    model = keep("org/name", {"Q8_0": {"m.gguf": b"abc"}})
    assert command("doctor", "--checksums", "name").stdout.startswith("ok ")
    (model.folder / "m.gguf").write_bytes(b"abd")
    done = command("doctor", "--checksums")
    assert done.returncode == 3
    assert done.stdout.startswith("damaged ")
