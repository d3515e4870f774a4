"""The converter of exactly the llama.cpp that the installed llama-cpp-python was built from.

The wheel leaves it out and the registry's `gguf` package lags behind it, so both parts are taken
from that version's source distribution.
"""

import hashlib
import importlib.metadata
import shutil
import tarfile
import tempfile
from pathlib import Path

from quantize.errors import ToolError
from runtimes.errors import IngotError, RuntimeMissingError
from runtimes.llamacpp.source import sdist_path
from runtimes.paths import cache_dir

_SCRIPT = "convert_hf_to_gguf.py"
_PARTS = (_SCRIPT, "conversion", "gguf-py")


def converter_folder() -> Path:
    """The folder with the converter, unpacked once into Ingot's cache.

    Raises RuntimeMissingError without llama-cpp-python, ToolError when its source is unusable.
    """
    try:
        version = importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError as error:
        raise RuntimeMissingError(
            "GGUF files are made with llama-cpp-python, which is not installed; use --to onnx, or"
            " install it with: make native"
        ) from error
    archive = sdist_path(version)
    with archive.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    target = cache_dir() / "converter" / f"{version}-{digest[:16]}"
    if not (target / _SCRIPT).is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        _unpack(archive, target)
    return target


def _unpack(archive: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=target.parent) as scratch:
        try:
            with tarfile.open(archive) as tar:
                members = [m for m in tar if _is_wanted(m.name)]
                tar.extractall(scratch, members=members, filter="data")
        except (tarfile.TarError, OSError) as error:
            raise ToolError(f"{archive} is damaged ({error}); delete it and retry") from error
        found = next(Path(scratch).glob(f"*/vendor/llama.cpp/{_SCRIPT}"), None)
        if found is None:
            raise ToolError(f"{archive} does not contain llama.cpp's {_SCRIPT}")
        try:
            found.parent.rename(target)
        except OSError as error:
            if not (target / _SCRIPT).is_file():  # else another run was faster
                shutil.rmtree(target, ignore_errors=True)
                raise IngotError(f"cannot write {target}: {error.strerror}") from error


def _is_wanted(name: str) -> bool:
    parts = Path(name).parts
    return len(parts) > 3 and parts[1:3] == ("vendor", "llama.cpp") and parts[3] in _PARTS
