"""Install llama-cpp-python, compiled so that this processor's fastest kernels are correct.

    python -m runtimes.llamacpp.build [--force]

Works before anything is installed (standard library only, besides pip and a C++ compiler). A
finished wheel is kept in Ingot's cache under a key made of everything that went into it, so that a
second checkout on the same machine installs in seconds. pip's own wheel cache is not used: its key
leaves out compiler flags, so that a plain build, whose AMX kernels crash, would come back from it.
"""

import os
import sys

# Python puts the current folder first for -m: what lies there is not ours, unless this does.
if __name__ == "__main__" and not (
    sys.flags.safe_path or __file__.startswith(os.path.join(sys.path[0], "runtimes", ""))
):
    del sys.path[0]

import argparse
import importlib
import json
import logging
import tempfile
import time
from pathlib import Path

from runtimes.errors import IngotError
from runtimes.llamacpp.source import TESTED_VERSION, sdist_path
from runtimes.llamacpp.toolchain import BuildPlan, plan_build
from runtimes.machine import processes
from runtimes.machine.installed import find_installed, library_identity
from runtimes.paths import cache_dir

log = logging.getLogger(__name__)

_STAMP = "ingot-build.json"


class BuildError(IngotError):
    """llama-cpp-python did not compile or install."""

    exit_code = 3


def install(version: str = TESTED_VERSION, *, force: bool = False) -> BuildPlan:
    """Make the running interpreter's environment hold the right build, if it does not."""
    plan = plan_build(version)
    if not force and installed_key() == plan.key:
        log.info("llama-cpp-python %s is installed in the right build (%s)", version, plan.key)
        return plan
    wheel = wheel_for(plan, force=force)
    # --force-reinstall, since pip takes another build of the same version for the same thing.
    _pip("install", "--force-reinstall", "--no-deps", str(wheel))
    constraints = Path("constraints.txt")
    pins = ["-c", str(constraints)] if constraints.is_file() else []
    _pip("install", *pins, f"llama-cpp-python=={version}")  # what it requires
    _write_stamp(plan)
    log.info("installed llama-cpp-python %s (build %s)", version, plan.key)
    return plan


def wheel_for(plan: BuildPlan, *, force: bool = False) -> Path:
    """The wheel of this plan, from the cache or compiled now."""
    folder = cache_dir() / "wheels" / plan.key
    if not force and (found := sorted(folder.glob("llama_cpp_python-*.whl"))):
        log.info("using the wheel built earlier: %s", found[0])
        return found[0]
    source = sdist_path(plan.version)
    folder.mkdir(parents=True, exist_ok=True)
    log.info(
        "compiling llama-cpp-python %s with %s; this takes some minutes, once per machine",
        plan.version,
        plan.cxx_flags or "the compiler's own flags",
    )
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as work:
        environment = {
            "CXXFLAGS": plan.cxx_flags,
            "CMAKE_ARGS": plan.cmake_args,
            "TMPDIR": work,  # pip compiles below it
        }
        _pip(
            "wheel", "--no-cache-dir", "--no-deps", "-w", work, str(source), environment=environment
        )
        built = sorted(Path(work).glob("llama_cpp_python-*.whl"))
        if len(built) != 1:
            raise BuildError(f"pip built {len(built)} wheels instead of one")
        target = folder / built[0].name
        os.replace(built[0], target)
    log.info("compiled in %.0f s", time.monotonic() - started)
    return target


def installed_key() -> str | None:
    """The key of the installed build; None when there is none, or when it is not one of ours."""
    package = _package_dir()
    if package is None:
        return None
    try:
        stamp = json.loads((package / _STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    # pip leaves the stamp behind when it replaces the package: it must name these very libraries.
    fits = isinstance(stamp, dict) and stamp.get("libraries") == library_identity(package / "lib")
    return stamp.get("key") if fits else None


def _write_stamp(plan: BuildPlan) -> None:
    package = _package_dir()
    if package is None:
        raise BuildError("llama-cpp-python was installed, but cannot be found")
    stamp = {
        "key": plan.key,
        "libraries": library_identity(package / "lib"),
        "cxx_flags": plan.cxx_flags,
        "cmake_args": plan.cmake_args,
        "compiler": plan.compiler,
    }
    (package / _STAMP).write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")


def _package_dir() -> Path | None:
    """Where llama_cpp is installed, found without importing it."""
    importlib.invalidate_caches()
    installed = find_installed("llamacpp")
    return installed.package if installed else None


def _pip(*arguments: str, environment: dict[str, str] | None = None) -> None:
    command = ("-m", "pip", "--disable-pip-version-check", *arguments)
    done = processes.run(*command, environment=environment, capture_output=True)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-40:])
        raise BuildError(f"`pip {arguments[0]}` failed:\n{tail}")


def main(arguments: list[str] | None = None) -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(
        prog="python -m runtimes.llamacpp.build", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--version", default=TESTED_VERSION, help="version of llama-cpp-python")
    parser.add_argument("--force", action="store_true", help="compile and install again")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        install(options.version, force=options.force)
    except IngotError as error:
        log.error("%s", error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
