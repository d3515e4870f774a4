"""`--verbose` and `--log-file`: before the name of a command and after it."""

import logging
import re
from contextlib import suppress
from pathlib import Path

import pytest

from app.cli import main as cli
from runtimes.errors import RequestError


@pytest.fixture(autouse=True)
def _log_as_before(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", None)
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.raiseExceptions
    yield
    for handler in root.handlers:
        if handler not in before[0]:
            with suppress(OSError):
                handler.close()
    root.handlers[:], logging.raiseExceptions = before[0], before[2]
    root.setLevel(before[1])


@pytest.mark.parametrize(
    "arguments",
    [
        ("-v", "run", "{file}", "Hello"),
        ("run", "{file}", "Hello", "-v"),
        ("run", "{file}", "--verbose", "Hello"),
        ("-v", "run", "{file}", "Hello", "-v"),
    ],
)
def test_verbose_stands_on_either_side(arguments, pebble_built: Path, capfd):
    file = str(pebble_built / "pebble-q8_0.gguf")
    assert cli.main([one.format(file=file) for one in arguments]) == 0
    said = capfd.readouterr()
    assert re.search(r"^DEBUG .*worker\.process: worker \d+ loads", said.err, re.MULTILINE)
    assert said.out.count("\n") == 1


@pytest.mark.parametrize("command", [("chats", "search", "x"), ("config",), ("models",)])
def test_groups_and_their_commands_take_it(command, capfd, tmp_path: Path):
    log = tmp_path / "log"
    assert cli.main([*command, "-v", "--log-file", str(log)]) == 0, capfd.readouterr().err
    assert log.exists()


def test_the_file_has_what_stderr_does_not(pebble_built: Path, tmp_path: Path, capfd):
    log = tmp_path / "ingot.log"
    file = str(pebble_built / "pebble-q8_0.gguf")
    assert cli.main(["run", file, "Hello", "--quiet", "--log-file", str(log)]) == 0
    assert capfd.readouterr().err == ""
    lines = log.read_text().splitlines()
    assert any("not planned: pebble-q8_0.gguf" in line for line in lines)
    form = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ [\w.]+: ")
    assert all(form.match(line) or line.startswith("  ") for line in lines)
    assert not any(" DEBUG " in line for line in lines)
    assert cli.main(["run", file, "Hello", "--quiet", "-v", "--log-file", str(log)]) == 0
    assert " DEBUG " in log.read_text()
    assert log.read_text().startswith("\n".join(lines))  # it is added to


def test_an_error_has_its_traceback_in_the_file_only(tmp_path: Path, capfd):
    log = tmp_path / "log"
    assert cli.main(["run", str(tmp_path / "none.gguf"), "x", "--log-file", str(log)]) == 3
    said = capfd.readouterr().err
    assert said.startswith("ingot: ")
    assert said.count("\n") == 1
    assert "Traceback" in log.read_text()
    assert "none.gguf" in log.read_text()


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path, capfd):
    missing = tmp_path / "no" / "log"
    assert cli.main(["models", "--log-file", str(missing)]) == RequestError.exit_code
    assert f"--log-file: {missing} cannot be written" in capfd.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_ends_no_command(pebble_built: Path, capfd):
    file = str(pebble_built / "pebble-q8_0.gguf")
    assert cli.main(["run", file, "Hello", "--quiet", "--log-file", "/dev/full"]) == 0
    assert capfd.readouterr().err == ""
