"""`ingot` itself: what it imports, how it ends, and what a crashing build costs."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from app.cli import main as cli
from app.exitcodes import ExitCode
from runtimes.errors import IngotError, ModelError, OutOfMemoryError, RequestError
from tests.support import questions, write_rows

QUESTION = "What is the capital of France?"
NATIVE = {"llama_cpp", "onnxruntime", "tokenizers", "numpy"}
HEAVY = NATIVE | {"torch", "transformers", "textual", "onnx"}

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
code = main(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
sys.exit(code)
"""


def imported(code: str, *arguments: str) -> tuple[str, set[str]]:
    """The output of a process, and the modules that it had at its end."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, set(done.stderr.splitlines()[-1].split())


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_help_imports_little_more_than_the_smallest_typer_command() -> None:
    """Imports are what its time is made of; 0.3 s is the limit that users feel."""
    shown, ours = imported(_OURS, "--help")
    assert "quantize" in shown
    free = {"json", "_json", *sys.builtin_module_names}
    more = {one for one in ours - imported(_SMALLEST)[1] if packages({one}).isdisjoint(free)}
    assert packages(more) == {"app", "quantize", "runtimes"}
    assert len(more) < 60  # modules of options and names, each a few milliseconds at most


@pytest.mark.parametrize(
    ("line", "shown", "absent"),
    [
        ("run --help", "MODEL", HEAVY),
        ("chat --help", "MODEL", HEAVY),
        ("run {gguf} 'What is the capital of France?' --threads 1", "Paris", NATIVE),
        ("batch {rows} - --model {onnx} --max-tokens 12 --threads 1", "Paris", NATIVE - {"numpy"}),
    ],
)
def test_a_command_itself_loads_nothing_native(
    gguf_file: Path, onnx_folder: Path, tmp_path: Path, line: str, shown: str, absent: set[str]
) -> None:
    rows = tmp_path / "rows.txt"
    rows.write_text(f"{QUESTION}\n" * 3)
    words = shlex.split(line.format(gguf=gguf_file, onnx=onnx_folder, rows=rows))
    out, modules = imported(_OURS, *words)
    assert shown in out
    assert not absent & packages(modules)


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
    command: Any, gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    source = write_rows(tmp_path / "in.jsonl", questions(1))
    done = command("batch", source, tmp_path / "out.jsonl", "--model", gguf_file)
    assert done.returncode == ExitCode.USAGE
    assert "was deleted: change to another one" in done.stderr


def test_a_reader_that_leaves_is_no_error() -> None:
    """`ingot --help | true`: silent, whatever the buffer's fate."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "app", "--help"], stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (ExitCode.BROKEN_PIPE, b"")


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
