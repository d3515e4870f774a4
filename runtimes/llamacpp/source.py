"""The source distribution of llama-cpp-python: built from, and mined for llama.cpp's converter.

Standard library only: the native build uses it before anything is installed.
"""

import hashlib
import logging
import os
import subprocess
import tempfile
from pathlib import Path

from runtimes.errors import IngotError
from runtimes.machine import processes
from runtimes.paths import cache_dir

log = logging.getLogger(__name__)

TESTED_VERSION = "0.3.36"
_SHA256 = {
    "0.3.36": "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
}
_LONGEST_DOWNLOAD_S = 1800


class BuildError(IngotError):
    """llama-cpp-python cannot be downloaded, compiled or installed, or is not what was tested."""

    exit_code = 3


def sdist_path(version: str = TESTED_VERSION) -> Path:
    """The source distribution in Ingot's cache, downloaded by pip when it is not there."""
    folder = cache_dir() / "sdists"
    target = folder / f"llama_cpp_python-{version}.tar.gz"
    if target.is_file() and _is_tested(target, version):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as work:
        found = _download(version, Path(work))
        if not _is_tested(found, version):
            raise BuildError(
                f"llama-cpp-python {version} was downloaded, but is not the file that was tested "
                f"(sha256 {_sha256(found)}, expected {_SHA256[version]})"
            )
        os.replace(found, target)  # atomic: a reader sees the whole file or none
    return target


def _download(version: str, folder: Path) -> Path:
    log.info("downloading the source of llama-cpp-python %s", version)
    command = [
        *("-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--no-binary", "llama-cpp-python", "--dest", str(folder)),
        f"llama-cpp-python=={version}",
    ]
    # pip unpacks the source to read its metadata: in our folder, which is removed after.
    environment = {"TMPDIR": str(folder)}
    try:
        done = processes.run(
            *command, environment=environment, capture_output=True, timeout=_LONGEST_DOWNLOAD_S
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"downloading llama-cpp-python {version} took too long") from error
    found = sorted(folder.glob("llama_cpp_python-*.tar.gz"))
    if done.returncode != 0 or len(found) != 1:
        reason = "\n".join(done.stderr.strip().splitlines()[-5:]) or "no .tar.gz came"
        raise BuildError(f"cannot download llama-cpp-python {version}:\n{reason}")
    return found[0]


def _is_tested(path: Path, version: str) -> bool:
    """True when the file has the pinned checksum; versions without one are taken as they come."""
    return _SHA256.get(version) in (None, _sha256(path))


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
