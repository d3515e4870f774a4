"""Optimum's exporter in a folder of its own.

It needs transformers below 4.58, the rest of Ingot a newer one. So its packages are installed into
a folder of Ingot's cache, once per machine, and only the child process that exports has that folder
on its path, in front of everything else; torch and onnx are shared.
"""

import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from quantize.children.process import last_lines
from quantize.disk import sha256_of
from quantize.errors import DiskFullError, ToolError
from quantize.progress.console import Reporter
from runtimes.errors import IngotError, RuntimeMissingError
from runtimes.machine.locks import Lock, another_run
from runtimes.machine.processes import Child
from runtimes.paths import cache_dir

logger = logging.getLogger(__name__)

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
_RECORD = "ingot-overlay.json"
_NO_NETWORK = ("connection", "resolve", "timed out", "retries", "no matching distribution", "proxy")


def optimum_overlay(progress: Reporter) -> Path:
    """The folder to put in front of the exporter's path, installed now where it is not there whole.

    Raises RuntimeMissingError when pip cannot fetch the packages, DiskFullError or ToolError when
    it cannot install them.
    """
    root = cache_dir() / "optimum"
    target = root / overlay_key()
    if is_whole(target):
        return target
    root.mkdir(parents=True, exist_ok=True)
    with _alone(root, progress):
        if not is_whole(target):  # another run was not faster
            for stale in root.glob(".install-*"):  # we hold the lock: whoever made it is dead
                shutil.rmtree(stale, ignore_errors=True)
            if target.exists():
                progress.note(f"optimum's exporter in {target} is damaged: installing it again")
                shutil.rmtree(target)
            with progress.stage("installing optimum's exporter, once per machine"):
                _install(root, target, progress)
    return target


def _alone(root: Path, progress: Reporter) -> Lock:
    """Wait for other runs that install."""
    try:
        return Lock(root)
    except BlockingIOError:
        with progress.stage(f"waiting for {another_run(root)} that installs optimum's exporter"):
            return Lock(root, wait=True)


def overlay_key() -> str:
    """A name for what is installed: it changes with the pins, the Python and the platform."""
    parts = (REQUIREMENTS.read_bytes(), sys.version_info[:2], sysconfig.get_platform())
    digest = hashlib.sha256(b"".join(repr(part).encode() for part in parts)).hexdigest()
    return digest[:16]


def is_whole(folder: Path) -> bool:
    """Whether every file is as it was when the folder was installed."""
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        return bool(record["sha256"] == _tree_hash(folder))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _tree_hash(folder: Path) -> str:
    """sha256 over names and contents, without the bytecode that Python adds."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".pyc" or path.name == _RECORD or not path.is_file():
            continue
        digest.update(f"{path.relative_to(folder)}\0".encode() + bytes.fromhex(sha256_of(path)))
    return digest.hexdigest()


def _install(root: Path, target: Path, progress: Reporter) -> None:
    """The pinned wheels and nothing that they ask for: that is pinned too, or shared."""
    requirements = REQUIREMENTS.read_text()
    with tempfile.TemporaryDirectory(prefix=".install-", dir=root) as scratch:
        made = Path(scratch) / "packages"
        command = [
            *("-m", "pip", "install", "--disable-pip-version-check", "--no-input"),
            *("--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-compile"),
            *("--progress-bar", "off", "--target", str(made), "-r", str(REQUIREMENTS)),
        ]
        environment = {"TMPDIR": scratch, "PYTHONUNBUFFERED": "1"}
        lines: list[str] = []
        with Child(
            *command, environment=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    lines.append(line.decode(errors="replace").rstrip())
                    logger.debug("pip: %s", lines[-1])
                    seen = sum(line.startswith("Collecting") for line in lines)
                    progress.advance(max(0, seen - 1), requirements.count("=="), "packages")
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            raise _failure(lines)
        record = {"sha256": _tree_hash(made), "requirements": requirements}
        (made / _RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        os.replace(made, target)


def _failure(lines: list[str]) -> Exception:
    text = "\n".join(lines)
    if "No space left on device" in text or "Disk quota exceeded" in text:
        return DiskFullError(f"the disk of {cache_dir()} is full: optimum's exporter takes 80 MB")
    if "No module named pip" in text:
        return RuntimeMissingError(
            "optimum's exporter is installed with pip, which this Python has not: run"
            f" {sys.executable} -m ensurepip, or use --to gguf"
        )
    kind: type[IngotError] = ToolError
    why = "optimum's exporter could not be installed"
    if "DO NOT MATCH THE HASHES" in text:
        why = (
            "a package of optimum's exporter is not the one that was tested, so it was not"
            " installed. Check the package index that pip uses, or use --to gguf"
        )
    elif any(sign in text.lower() for sign in _NO_NETWORK):
        kind = RuntimeMissingError
        why = (
            "optimum's exporter could not be downloaded. It is needed once per machine: connect it"
            " to a package index and run this again, or use --to gguf"
        )
    return kind(f"{why}\n{last_lines(text)}")
