"""The wheel: all of it lies in one package, and works beside other packages called `app`."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

_NAMES = ("app", "quantize", "runtimes")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the wheel's content comes behind packages that end whoever imports
    them."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("ingot-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder / "site")
    for name in _NAMES:
        (folder / "others" / name).mkdir(parents=True)
        (folder / "others" / name / "__init__.py").write_text(f"raise SystemExit('their {name}')")
    paths = [str(folder / "others"), str(folder / "site")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SITE": str(folder / "site")}


def _run(installed: dict[str, str], *arguments: object, cwd: Path) -> str:
    command = [sys.executable, "-P", *map(str, arguments)]
    done = subprocess.run(command, env=installed, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_has_one_package_with_everything_in_it(installed: dict[str, str]):
    site = Path(installed["SITE"])
    assert {path.name.split("-")[0] for path in site.iterdir()} == {"ingot"}
    assert (site / "ingot" / "py.typed").is_file()
    tracked = subprocess.run(
        ["git", "ls-files", "ingot", *_NAMES], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    there = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    assert {n if n.startswith("ingot/") else f"ingot/{n}" for n in tracked} <= there


def test_no_import_is_of_a_package_beside_it(installed: dict[str, str]):
    told = re.compile(rf"^\s*from ({'|'.join(_NAMES)})\b.* import ", re.MULTILINE)
    for path in Path(installed["SITE"], "ingot").rglob("*.py"):
        assert not told.search(path.read_text(encoding="utf-8")), path


def test_commands_and_their_processes_are_its_own(
    installed: dict[str, str], pebble: Path, pebble_built: Path, tmp_path: Path
):
    rows = tmp_path / "rows.txt"
    rows.write_text("What is 1 plus 1?\nWhat is 3 plus 3?\n")
    batch = ("-m", "ingot", "batch", rows, tmp_path / "out.csv", "--model", pebble_built)
    _run(installed, *batch, cwd=tmp_path)
    assert (tmp_path / "out.csv").read_text().count(" = ") == 2
    made = ("--recipe", "q8_0", "--no-measure", "--out", tmp_path / "made")
    entry = "import sys; from ingot.__main__ import quantize; sys.exit(quantize())"
    _run(installed, "-c", entry, pebble, *made, cwd=tmp_path)
    assert (tmp_path / "made" / "manifest.json").is_file()
    schema = ("--json-schema", '{"enum": [5]}')  # compiled in a process of its own
    asked = ("-m", "ingot", "run", pebble_built, "Five?", *schema)
    assert _run(installed, *asked, cwd=tmp_path) == "5\n"


def test_modules_that_are_named_in_texts_are_found(installed: dict[str, str], tmp_path: Path):
    program = (
        "from ingot.app.tui.keys import declared\n"
        "from ingot.app.tui.modes import MODES\n"
        "from ingot.runtimes import own\n"
        "from ingot.runtimes.models.registry import backends\n"
        "from importlib import import_module\n"
        "for mode in MODES:\n"
        "    assert hasattr(import_module(own(mode.module)), mode.screen)\n"
        "assert len(backends()) == 2 and len(list(declared())) > 10\n"
        "print(own('app'))\n"
    )
    assert _run(installed, "-c", program, cwd=tmp_path) == "ingot.app\n"
