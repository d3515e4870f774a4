"""What users see, as text files beside the tests: they hold while the code behind it is moved.

``pytest tests/golden --snapshot-update`` writes them anew; their diff is what changed for users.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from tests.conftest import ROOT

# Of the user's own environment only what starting a process takes: no width, colour or language.
_KEPT = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR")
# Panels and their wrapping are Typer's; another one draws other details.
_TYPER = "0.29.2"

Commands = Callable[..., list[dict[str, Any]]]


class _Text(SingleFileSnapshotExtension):
    _write_mode = WriteMode.TEXT
    _file_extension = "txt"


@pytest.fixture
def golden(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    """Compares a text with the file of this test's name."""
    return snapshot.use_extension(_Text)


@pytest.fixture
def drawn() -> None:
    """For texts with Typer's panels in them."""
    if version("typer") != _TYPER:
        pytest.skip(f"the panels are of Typer {_TYPER}, this is {version('typer')}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where commands run; their home is in it."""
    return tmp_path_factory.mktemp("golden")


@pytest.fixture(scope="module")
def commands(folder: Path, pebble_built: Path) -> Commands:
    """Runs command lines one after another. BUILT in them is Pebble's folder, and what they wrote
    tells of no other place of this machine."""

    def run(*lines: str) -> list[dict[str, Any]]:
        words = [
            [word.replace("BUILT", str(pebble_built)) for word in shlex.split(one)] for one in lines
        ]
        home = str(folder / "home")
        done = subprocess.run(
            [sys.executable, "-P", Path(__file__).with_name("commands.py")],
            input=json.dumps(words).encode(),
            capture_output=True,
            check=False,
            cwd=folder,
            env={
                **{name: os.environ[name] for name in _KEPT if name in os.environ},
                "COLUMNS": "100",
                "PYTHONUTF8": "1",
                "HOME": home,
                "INGOT_HOME": home,
                "PYTHONPATH": str(ROOT),  # not the package that is installed, should it be another
            },
            timeout=300,
        )
        assert done.returncode == 0, done.stderr.decode()
        *_, text = done.stdout.decode().splitlines()  # before it what a library may have said
        for name, place in {"BUILT": pebble_built, "FOLDER": folder}.items():
            text = text.replace(json.dumps(str(place))[1:-1], name)
        text = re.sub(r"FOLDER[\w\\.]+", lambda path: path[0].replace("\\\\", "/"), text)
        return [{**said, "line": line} for said, line in zip(json.loads(text), lines, strict=True)]

    return run
