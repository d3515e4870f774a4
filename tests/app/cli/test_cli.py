from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from app.cli import main as cli
from app.exitcodes import ExitCode, exit_code_for
from runtimes.errors import IngotError, ModelError, OutOfMemoryError, RequestError
from tests.runtimes.worker.faults import build_fault_library
from tests.support import questions, write_rows

HEAVY = {"llama_cpp", "onnxruntime", "torch", "transformers", "textual", "numpy", "onnx"}


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["run", "--help"], ["chat", "--help"]]
)
def test_help_imports_no_engine(arguments: list[str]) -> None:
    code = (
        "import sys; from app.cli.main import main; code = main(sys.argv[1:]); "
        "sys.stderr.write(' '.join({m.partition('.')[0] for m in sys.modules})); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    assert not HEAVY & set(done.stderr.split())
    assert done.stdout


_SMALLEST = """
import sys, typer
app = typer.Typer()
@app.command()
def main(x: int = 3) -> None: ...
try:
    app(["--help"])
finally:
    print(*sys.modules, file=sys.stderr)
"""
_OURS = """
import sys
from app.cli.main import main
code = main(["--help"])
print(*sys.modules, file=sys.stderr)
sys.exit(code)
"""


def test_help_imports_little_more_than_the_smallest_typer_command() -> None:
    """Imports are what its time is made of; 0.3 s is the limit that users feel."""
    ours, smallest = (
        set(_run([sys.executable, "-c", code]).stderr.split()) for code in (_OURS, _SMALLEST)
    )
    free = {"json", "_json", *sys.builtin_module_names}
    more = {name for name in ours - smallest if name.partition(".")[0] not in free}
    assert {name.partition(".")[0] for name in more} == {"app", "quantize", "runtimes"}
    assert len(more) < 60  # modules of options and names, each a few milliseconds at most


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestError("x"), 2),
        (ModelError("x"), 3),
        (OutOfMemoryError("x"), 4),
        (MemoryError(), 4),
        (OSError(errno.ENOSPC, "full"), 4),
        (FileNotFoundError(errno.ENOENT, "gone"), 2),
        (IngotError("x"), 1),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
        (ZeroDivisionError(), 70),
    ],
)
def test_every_error_has_its_code(
    error: BaseException,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code_for(error) == code
    broken = typer.Typer(pretty_exceptions_enable=False)
    broken.callback()(cli._root)

    @broken.command()
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "_commands", lambda _: broken)
    assert cli.main(["fail"]) == code
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    assert len(printed.splitlines()) == (0 if code in (130, 141) else 1)
    if code not in (130, 141):
        assert cli.main(["-v", "fail"]) == code
        assert "Traceback" in capsys.readouterr().err


def test_a_folder_that_was_deleted_is_told(
    gguf_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    source = write_rows(tmp_path / "in.jsonl", questions(1))
    asked = ["batch", source, tmp_path / "out.jsonl", "--model", gguf_file]
    assert cli.main(list(map(str, asked))) == ExitCode.USAGE
    assert "was deleted: change to another one" in capsys.readouterr().err


def test_usage_errors_end_with_2(ingot: Any) -> None:
    for arguments in (["nope"], ["run"], ["--nope"], ["doctor", "extra"]):
        done = ingot(*arguments)
        assert done.returncode == ExitCode.USAGE, arguments
        assert done.stdout == ""


def test_a_missing_model_ends_with_3(ingot: Any, tmp_path: Path) -> None:
    done = ingot("run", tmp_path / "none.gguf", "hello")
    assert done.returncode == ExitCode.MODEL
    assert "none.gguf" in done.stderr


def test_a_reader_that_leaves_is_no_error() -> None:
    """`ingot --help | true`: silent, whatever the buffer's fate."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "app", "--help"], stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert done.stderr == b""
    assert done.returncode == ExitCode.BROKEN_PIPE


def test_the_version_is_the_packages(ingot: Any) -> None:
    assert re.fullmatch(r"ingot \d+\.\d+\.\d+\n", ingot("--version").stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="uses LD_PRELOAD")
def test_run_answers_on_a_build_whose_fast_kernels_crash(
    ingot: Any, gguf_file: Path, tmp_path: Path
) -> None:
    environment = {
        "LD_PRELOAD": str(build_fault_library(tmp_path)),
        "INGOT_TEST_FAULT": "SIGILL",
        "INGOT_HOME": str(tmp_path / "home"),
    }
    arguments = ("run", gguf_file, "What is the capital of France?", "--max-tokens", "8")
    first = ingot(*arguments, env=environment)
    assert first.returncode == 0, first.stderr
    assert first.stdout.strip()
    warnings = [line for line in first.stderr.splitlines() if "SIGILL" in line]
    assert len(warnings) == 1
    assert "python -P -m runtimes.llamacpp.build --force" in warnings[0]

    second = ingot(*arguments, env=environment)
    assert second.returncode == 0, second.stderr
    assert second.stdout == first.stdout
    assert "SIGILL" not in second.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="uses LD_PRELOAD")
def test_run_says_what_to_install_when_llamacpp_is_broken(
    ingot: Any, gguf_file: Path, tmp_path: Path
) -> None:
    environment = {
        "LD_PRELOAD": str(build_fault_library(tmp_path)),
        "INGOT_TEST_FAULT": "always",
        "INGOT_HOME": str(tmp_path / "home"),
    }
    done = ingot("run", gguf_file, "hello", env=environment)
    assert done.returncode == ExitCode.MODEL
    assert done.stdout == ""
    assert "python -P -m runtimes.llamacpp.build" in done.stderr


@pytest.mark.parametrize("package", ["app", "quantize"])
def test_ctrl_c_while_the_command_is_imported(package: str) -> None:
    code = (
        "import sys, importlib\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == '{package}.cli': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        f"from {package}.__main__ import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")
