"""The model files that a verification runs: those of MODEL, or Pebble's."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from app import demo
from app.doctor import checksums
from app.doctor.verify.lines import CheckResult, Skip
from app.models.planning import plan_files
from app.options import ModelOptions
from quantize.manifest import NAME
from runtimes.errors import IngotError
from runtimes.machine import processes
from runtimes.models.modelfile import ModelFile
from runtimes.paths import cache_dir

_EXTRA = "pip install 'ingot[quantize]'"


def pebble() -> Path:
    """The folder of the demo model's files: what `make demo` has built, or the cache's."""
    built = demo.ROOT / demo.BUILT
    return built if (built / NAME).is_file() else cache_dir() / "verify" / "pebble"


def build_pebble() -> CheckResult:
    """Make Pebble's files where they are not there. Raises Skip or IngotError saying what to do."""
    folder, source = pebble(), demo.ROOT / demo.MODEL
    if (folder / NAME).is_file():
        return CheckResult("passed", "there already")
    if not source.is_dir():
        raise Skip("the demo model comes with Ingot's source only; name a MODEL to verify with")
    # Under another name until it is whole.
    making = folder.with_name(f"{folder.name}-making")
    command = ("-m", "quantize", source, "--out", making, "--no-measure")
    done = processes.run(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [processes.ending(done.returncode)]
        raise IngotError(
            f"the demo model could not be built: {said[-1]}; {_EXTRA} brings what it needs,"
            " or name a MODEL"
        )
    shutil.rmtree(folder, ignore_errors=True)
    making.rename(folder)
    return CheckResult("passed", "built from the demo model")


def whole(model: str) -> CheckResult:
    """Whether the bytes of the files are those that were built or pulled.

    Raises Skip where nothing says what they should be, else as ``checksums.check``.
    """
    path = Path(model)
    if path.exists() and not (path / NAME).is_file():
        raise Skip("there are no checksums to compare with")
    found = list(checksums.check(model))
    damaged = [f"{one.path.name} {one.problem}" for one in found if one.problem]
    if damaged:
        return CheckResult(
            "failed", "; ".join(damaged), {"files": len(found), "damaged": len(damaged)}
        )
    return CheckResult("passed", f"{len(found)} files as they were built", {"files": len(found)})


def read(model: str) -> tuple[CheckResult, Sequence[ModelFile]]:
    """The files that can be read, of every width. Raises as ``plan_files``."""
    files = plan_files(model, ModelOptions(), "any")
    names = [one.path.name for one in files.models]
    if files.unreadable:
        said = "; ".join(f"{name}: {why}" for name, why in files.unreadable)
        return CheckResult("failed", said, {"files": names}), files.models
    return CheckResult("passed", ", ".join(names), {"files": names}), files.models
