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


def test_the_file_has_what_stderr_does_not(gguf_file: Path, tmp_path: Path, capfd):
    log = tmp_path / "ingot.log"
    asked = ["run", str(gguf_file), "Hello", "--log-file", str(log)]
    assert cli.main([*asked, "--quiet"]) == 0
    assert capfd.readouterr().err == ""
    lines = log.read_text().splitlines()
    assert any("not planned: pebble-q8_0.gguf" in line for line in lines)
    form = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ [\w.]+: ")
    assert all(form.match(line) or line.startswith("  ") for line in lines)
    assert not any(" DEBUG " in line for line in lines)
    assert cli.main([*asked, "-v"]) == 0
    said = capfd.readouterr()
    assert re.search(r"^DEBUG .*worker\.process: worker \d+ loads", said.err, re.MULTILINE)
    assert said.out.count("\n") == 1
    assert " DEBUG " in log.read_text()
    assert log.read_text().startswith("\n".join(lines))  # it is added to


def test_an_error_has_its_traceback_in_the_file_only(tmp_path: Path, capfd):
    log, missing = tmp_path / "log", tmp_path / "no" / "log"
    asked = ["run", str(tmp_path / "none.gguf"), "x", "--log-file"]
    assert cli.main([*asked, str(missing)]) == RequestError.exit_code
    assert f"--log-file: {missing} cannot be written" in capfd.readouterr().err
    full = [Path("/dev/full")] if Path("/dev/full").exists() else []
    for file in (log, *full):  # a full disk changes nothing
        assert cli.main([*asked, str(file)]) == 3
        said = capfd.readouterr().err
        assert said.startswith("ingot: ")
        assert said.count("\n") == 1
    assert "Traceback" in log.read_text()
    assert "none.gguf" in log.read_text()
