"""Installed packages: where they are, their versions and what their native libraries are. Standard
library only: the build of llama.cpp imports it before anything is installed."""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from runtimes.models.modelfile import RuntimeName
from runtimes.models.registry import backend


@dataclass(frozen=True, slots=True)
class Installed:
    """A native library on disk."""

    runtime: RuntimeName
    version: str
    identity: str  # another one with every rebuild, also of the same version
    # All that claim to have installed it: more than one means that they overwrote each other.
    distributions: tuple[str, ...]
    package: Path


def find_installed(runtime: RuntimeName) -> Installed | None:
    """The installed library; None when it is not there."""
    known = backend(runtime)
    spec = importlib.util.find_spec(known.package)
    if spec is None or not spec.origin:
        return None
    package = Path(spec.origin).parent
    found: dict[str, str] = {}
    for candidate in known.distributions:
        # Dashes are underscores in the folder's name, so that no prefix matches another package.
        for info in package.parent.glob(f"{candidate}-*.dist-info"):
            found[candidate] = info.name.removesuffix(".dist-info").rpartition("-")[2]
    return Installed(
        runtime=runtime,
        version=next(iter(found.values()), "unknown"),
        identity=library_identity(package / known.libraries),
        distributions=tuple(found),
        package=package,
    )


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """The versions of those that are installed."""
    found = {}
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def library_identity(folder: Path) -> str:
    """Hash of the name, size and modification time of every file in a folder of libraries."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*")):
        if path.is_file():
            status = path.stat()
            digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
