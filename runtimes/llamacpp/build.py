"""Install llama-cpp-python, compiled so that this processor's fastest kernels are correct.

    python -m runtimes.llamacpp.build [--gpu cuda|hip|metal|sycl|vulkan|none] [--force]

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
import hashlib
import importlib
import importlib.util
import json
import logging
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runtimes.errors import IngotError
from runtimes.llamacpp.source import (
    KITS,
    NONE,
    TESTED_VERSION,
    BuildError,
    compilers,
    fingerprint,
    flag,
    gpu_of,
    prepared,
    require_built,
    require_kit,
    sdist_path,
)
from runtimes.machine import processes
from runtimes.machine.cpu import all_flags, cpu_name
from runtimes.machine.installed import find_installed, library_identity
from runtimes.paths import cache_dir

log = logging.getLogger(__name__)

_STAMP = "ingot-build.json"

# GCC's intrinsic for `ldtilecfg` declares that it reads 8 of the 64 bytes that it does read. The
# dead-store pass on RTL therefore drops the stores that fill in the rows and row lengths of
# llama.cpp's AMX tile configuration, and the next tile instruction dies of SIGILL or SIGSEGV.
# -fno-dse switches that pass off. Disassembly of ggml-cpu/amx/mmq.cpp (GCC 11 and 12,
# -march=sapphirerapids) shows that this one flag restores every such store, and that the stores to
# the tile buffers are where a correctly declared intrinsic has them; -fno-tree-dse and
# -fno-tree-sra change nothing about either.
GCC_AMX_FLAG = "-fno-dse"

_X86 = {"x86_64", "amd64"}
# The vision library is not used here, and is a fifth of the compilation.
_NO_VISION = "-DLLAVA_BUILD=OFF"


@dataclass(frozen=True, slots=True)
class Compiler:
    """The C++ compiler that CMake will pick."""

    path: str
    banner: str  # first line of --version
    is_gcc: bool


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """All that decides what the compiled library contains; its hash is the build's key."""

    version: str
    cxx_flags: str
    cmake_args: str
    compiler: str
    machine: str
    cpu: str
    changes: str  # to the source

    @property
    def key(self) -> str:
        """Short hash: equal keys mean interchangeable wheels."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def find_compiler(environment: Mapping[str, str] = os.environ) -> Compiler:
    """The compiler that CMake takes: $CXX, else the first of c++, g++, clang++ on the path."""
    asked = environment.get("CXX")
    for candidate in [asked] if asked else ["c++", "g++", "clang++"]:
        words = shlex.split(candidate)
        path = shutil.which(words[0], path=environment.get("PATH")) if words else None
        if path is None:
            continue
        text = subprocess.run(
            [path, *words[1:], "--version"], capture_output=True, text=True, check=False
        ).stdout
        banner = text.splitlines()[0] if text else path
        is_gcc = "Free Software Foundation" in text and "clang" not in text.lower()
        return Compiler(path, banner, is_gcc)
    wanted = f"{asked} ($CXX)" if asked else "g++ or clang++"
    raise BuildError(
        f"no C++ compiler found: install {wanted} "
        "(Debian and Ubuntu: `apt install g++`; Fedora: `dnf install gcc-c++`; "
        "macOS: `xcode-select --install`)"
    )


def plan_build(
    version: str, environment: Mapping[str, str] = os.environ, gpu: str = NONE
) -> BuildPlan:
    """Flags that this compiler, machine and ``gpu`` need, added to what CXXFLAGS and CMAKE_ARGS ask
    for.

    Raises BuildError when it cannot be built.
    """
    asked = environment.get("CMAKE_ARGS", "")
    if gpu != NONE:
        require_kit(gpu, environment)
        asked = f"{asked} {flag(gpu)}".strip()
        environment = {**environment, **compilers(gpu, environment)}
    compiler = find_compiler(environment)
    extra = GCC_AMX_FLAG if compiler.is_gcc and platform.machine().lower() in _X86 else ""
    cxx_flags = f"{environment.get('CXXFLAGS', '')} {extra}".strip()
    return BuildPlan(
        version=version,
        cxx_flags=cxx_flags,
        cmake_args=_cmake_args(asked, extra),
        compiler=f"{compiler.path}: {compiler.banner}",
        machine=f"{platform.system()}-{platform.machine()}",
        cpu=f"{cpu_name()}: {all_flags()}",
        changes=fingerprint(),
    )


def _cmake_args(asked: str, extra: str) -> str:
    """The user's CMAKE_ARGS with our defaults; -DCMAKE_CXX_FLAGS there would hide $CXXFLAGS."""
    words = [
        f"{word} {extra}".strip() if word.startswith("-DCMAKE_CXX_FLAGS") else word
        for word in shlex.split(asked)
    ]
    return shlex.join([_NO_VISION, *words])  # of two of a name, CMake takes the later


def install(version: str, gpu: str | None, *, force: bool) -> None:
    """Make the running interpreter's environment hold the right build, if it does not. Without a
    ``gpu`` it is for the same kind as before."""
    if importlib.util.find_spec("pip") is None:
        raise BuildError(
            f"this Python has no pip, which installs llama.cpp: run {sys.executable} -m ensurepip"
        )
    plan = plan_build(version, gpu=(gpu or gpu_of(_stamp().get("cmake_args", "")) or NONE))
    if not force and installed_key() == plan.key:
        log.info("llama-cpp-python %s is installed in the right build (%s)", version, plan.key)
        return
    wheel = wheel_for(plan, force=force)
    # --force-reinstall, since pip takes another build of the same version for the same thing.
    _pip("install", "--force-reinstall", "--no-deps", str(wheel))
    constraints = Path("constraints.txt")
    pins = ["-c", str(constraints)] if constraints.is_file() else []
    _pip("install", *pins, f"llama-cpp-python=={version}")  # what it requires
    _write_stamp(plan)
    log.info("installed llama-cpp-python %s (build %s)", version, plan.key)


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
        gpu = gpu_of(plan.cmake_args)
        environment = {
            "CXXFLAGS": plan.cxx_flags,
            "CMAKE_ARGS": plan.cmake_args,
            "TMPDIR": work,  # pip compiles below it
            **(compilers(gpu, os.environ) if gpu else {}),
        }
        unpacked = Path(work) / "source"
        unpacked.mkdir()
        source = prepared(source, gpu, unpacked)
        _pip(
            "wheel", "--no-cache-dir", "--no-deps", "-w", work, str(source), environment=environment
        )
        built = sorted(Path(work).glob("llama_cpp_python-*.whl"))
        if len(built) != 1:
            raise BuildError(f"pip built {len(built)} wheels instead of one")
        if gpu:
            require_built(gpu, built[0])
        target = folder / built[0].name
        os.replace(built[0], target)
    log.info("compiled in %.0f s", time.monotonic() - started)
    return target


def installed_key() -> str | None:
    """The key of the installed build; None when there is none, or when it is not one of ours."""
    return _stamp().get("key")


def _stamp() -> dict[str, Any]:
    """Read the record of the installed build; nothing for one that is not ours."""
    package = _package_dir()
    if package is None:
        return {}
    try:
        stamp = json.loads((package / _STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    # pip leaves the stamp behind when it replaces the package: it must name these very libraries.
    fits = isinstance(stamp, dict) and stamp.get("libraries") == library_identity(package / "lib")
    return stamp if fits else {}


def _write_stamp(plan: BuildPlan) -> None:
    package = _package_dir()
    if package is None:
        raise BuildError("llama-cpp-python was installed, but cannot be found")
    stamp = {"key": plan.key, "libraries": library_identity(package / "lib"), **asdict(plan)}
    (package / _STAMP).write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")


def _package_dir() -> Path | None:
    """Locate the installed llama_cpp without importing it."""
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
        prog=processes.advised("runtimes.llamacpp.build"),
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("--version", default=TESTED_VERSION, help="version of llama-cpp-python")
    parser.add_argument(
        "--gpu", metavar="KIND", help=f"{', '.join(KITS)}, or {NONE}; without it, as before"
    )
    parser.add_argument("--force", action="store_true", help="compile and install again")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        install(options.version, options.gpu, force=options.force)
    except IngotError as error:
        log.error("%s", error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
