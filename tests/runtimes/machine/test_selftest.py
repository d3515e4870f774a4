"""The self-test against a real llama.cpp that is made to die, hang or err."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from runtimes.errors import RuntimeMissingError
from runtimes.machine import selftest
from runtimes.machine.installed import Installed, find_installed, library_identity
from runtimes.machine.selftest_child import compare
from runtimes.machine.state_file import load_state, save_state

Fault = Callable[[str], None]

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="uses LD_PRELOAD")


@pytest.fixture(autouse=True)
def fresh_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "home"))


def forbid_children(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise AssertionError("a remembered finding was tested again")

    monkeypatch.setattr(selftest, "LineChild", refuse)


@pytest.mark.parametrize("runtime", ["llamacpp", "onnx"])
def test_a_healthy_runtime_is_tested_once(
    runtime: selftest.RuntimeName, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = selftest.ensure(runtime)
    assert first.usable
    assert first.extra_buffers
    assert first.kernels
    assert first.version
    forbid_children(monkeypatch)
    assert selftest.ensure(runtime) == first
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_only_the_child_imports_engines() -> None:
    code = (
        "import sys; from runtimes.machine import selftest; selftest.ensure('onnx'); "
        "assert not {'numpy', 'llama_cpp', 'onnxruntime'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@linux_only
def test_fast_kernels_that_die_of_a_signal_are_switched_off(
    fault: Fault, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fault("SIGILL")
    health = selftest.ensure("llamacpp")
    assert health.usable
    assert not health.extra_buffers
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert warnings == [health.warning]
    assert "SIGILL" in warnings[0]
    assert "python -P -m runtimes.llamacpp.build --force" in warnings[0]
    assert "\n" not in warnings[0]

    caplog.clear()
    forbid_children(monkeypatch)
    assert selftest.ensure("llamacpp") == health
    assert selftest.require("llamacpp") == health
    assert not caplog.records


@linux_only
def test_wrong_results_are_noticed(fault: Fault) -> None:
    fault("garbage")
    health = selftest.ensure("llamacpp")
    assert health.usable
    assert not health.extra_buffers
    assert "wrong results" in (health.warning or "")


@linux_only
def test_a_build_that_dies_with_safe_settings_too_is_not_used(fault: Fault) -> None:
    fault("always")
    with pytest.raises(RuntimeMissingError, match=r"SIGSEGV.*runtimes.llamacpp.build") as raised:
        selftest.require("llamacpp")
    assert raised.value.exit_code == 3
    assert not selftest.ensure("llamacpp").usable


@linux_only
def test_a_hang_counts_as_a_failure(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast kernels never answer; the safe ones have all the time that a busy machine takes."""
    fault("hang")
    run_child = selftest._run_child

    def patient(runtime: selftest.RuntimeName, *, safe: bool) -> dict[str, object]:
        monkeypatch.setattr(selftest, "_TIMEOUT_S", 120 if safe else 1)
        return run_child(runtime, safe=safe)

    monkeypatch.setattr(selftest, "_run_child", patient)
    health = selftest.ensure("llamacpp")
    assert health.usable
    assert not health.extra_buffers
    assert "no answer within 1 s" in (health.warning or "")


@linux_only
def test_what_the_system_killed_is_tested_again(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault("SIGKILL")
    assert not selftest.ensure("llamacpp").extra_buffers
    assert load_state("selftest") == {}
    monkeypatch.delenv("LD_PRELOAD")
    assert selftest.ensure("llamacpp").extra_buffers


@pytest.mark.parametrize("runtime", ["llamacpp", "onnx"])
def test_a_module_that_cannot_be_imported_is_no_failure_of_the_library(
    runtime: selftest.RuntimeName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text("ndarray = None\nimport no_such_package")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    health = selftest.ensure(runtime)
    assert not health.usable
    told = str(health.warning)
    assert "could not be tested: the self-test could not import a module" in told
    assert f"No module named 'no_such_package' ({tmp_path}/numpy.py, line 2)" in told
    assert f"off PYTHONPATH ({tmp_path})" in told
    assert "kernels" not in told
    assert "does not work" not in told
    assert load_state("selftest") == {}
    monkeypatch.delenv("PYTHONPATH")
    assert selftest.ensure(runtime).usable


def test_what_an_older_version_found_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = find_installed("onnx")
    assert installed is not None
    with monkeypatch.context() as older:
        older.setattr(selftest, "_REVISION", selftest._REVISION - 1)
        failed = selftest.Health("onnx", False, False, installed.version, (), "it failed")
        save_state("selftest", {selftest._key(installed): asdict(failed)})
        assert not selftest.ensure("onnx").usable
    assert selftest.ensure("onnx").usable


def test_a_rebuilt_library_is_tested_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libx.so").write_bytes(b"one")
    before = library_identity(tmp_path)
    (tmp_path / "libx.so").write_bytes(b"longer")
    assert library_identity(tmp_path) != before
    selftest.ensure("onnx")
    (known,) = load_state("selftest")
    real = find_installed("onnx")
    assert real is not None
    rebuilt = Installed(real.runtime, real.version, "other files", real.distributions, real.package)
    monkeypatch.setattr(selftest, "find_installed", lambda _runtime: rebuilt)
    assert selftest.ensure("onnx").usable
    assert len(load_state("selftest")) == 2
    assert known in load_state("selftest")


@pytest.mark.parametrize(
    ("runtime", "said"), [("llamacpp", "runtimes.llamacpp.build"), ("onnx", "pip install onnx")]
)
def test_without_a_runtime_the_error_says_what_to_install(
    runtime: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "find_installed", lambda _runtime: None)
    with pytest.raises(RuntimeMissingError, match=said):
        selftest.require(runtime)


def test_compare_refuses_what_is_not_finite() -> None:
    right = np.ones((2, 8), np.float32)
    assert compare(right, right) == pytest.approx(1)
    assert compare(right * np.nan, right) == -1
    assert compare(right[:1], right) == -1
    assert compare(np.stack([right[0], -right[1]]), right) == pytest.approx(-1)
