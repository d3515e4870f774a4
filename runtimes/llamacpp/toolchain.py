"""How llama.cpp has to be compiled on this machine. Standard library only (see build.py)."""

import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from runtimes.errors import IngotError
from runtimes.machine.cpu import all_flags, cpu_name

# GCC's intrinsic for `ldtilecfg` declares that it reads 8 of the 64 bytes that it does read. The
# dead-store pass on RTL therefore drops the stores that fill in the rows and row lengths of
# llama.cpp's AMX tile configuration, and the next tile instruction dies of SIGILL or SIGSEGV.
# -fno-dse switches that pass off. Disassembly of ggml-cpu/amx/mmq.cpp (GCC 11 and 12,
# -march=sapphirerapids) shows that this one flag restores every such store, and that the stores to
# the tile buffers are where a correctly declared intrinsic has them; -fno-tree-dse and
# -fno-tree-sra change nothing about either.
GCC_AMX_FLAGS = ("-fno-dse",)

# The vision library is not used here, and is a fifth of the compilation.
_NO_VISION = "-DLLAVA_BUILD=OFF"


class ToolchainError(IngotError):
    """There is no C++ compiler, so that llama.cpp cannot be built."""

    exit_code = 3


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

    @property
    def key(self) -> str:
        """Short hash: equal keys mean interchangeable wheels."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def find_compiler(environment: Mapping[str, str] = os.environ) -> Compiler:
    """The compiler that CMake takes: $CXX, else the first of c++, g++, clang++ on the path."""
    candidates = [environment["CXX"]] if environment.get("CXX") else ["c++", "g++", "clang++"]
    for candidate in candidates:
        words = shlex.split(candidate)
        path = shutil.which(words[0], path=environment.get("PATH")) if words else None
        if path is None:
            continue
        text = subprocess.run(
            [path, *words[1:], "--version"], capture_output=True, text=True, check=False
        ).stdout
        banner = text.splitlines()[0] if text else path
        is_gcc = "Free Software Foundation" in text and "clang" not in text.lower()
        return Compiler(path=path, banner=banner, is_gcc=is_gcc)
    wanted = f"{candidates[0]} ($CXX)" if environment.get("CXX") else "g++ or clang++"
    raise ToolchainError(
        f"no C++ compiler found: install {wanted} "
        "(Debian and Ubuntu: `apt install g++`; Fedora: `dnf install gcc-c++`; "
        "macOS: `xcode-select --install`)"
    )


def plan_build(version: str, environment: Mapping[str, str] = os.environ) -> BuildPlan:
    """What this compiler and machine need, added to what CXXFLAGS and CMAKE_ARGS ask for."""
    compiler = find_compiler(environment)
    extra = GCC_AMX_FLAGS if compiler.is_gcc and _is_x86() else ()
    cxx_flags = " ".join([*environment.get("CXXFLAGS", "").split(), *extra])
    return BuildPlan(
        version=version,
        cxx_flags=cxx_flags,
        cmake_args=_cmake_args(environment.get("CMAKE_ARGS", ""), extra),
        compiler=f"{compiler.path}: {compiler.banner}",
        machine=f"{platform.system()}-{platform.machine()}",
        cpu=f"{cpu_name()}: {all_flags()}",
    )


def _cmake_args(asked: str, extra: tuple[str, ...]) -> str:
    """The user's CMAKE_ARGS with our defaults; -DCMAKE_CXX_FLAGS there would hide $CXXFLAGS."""
    words = shlex.split(asked)
    words = [
        f"{word} {' '.join(extra)}" if extra and word.startswith("-DCMAKE_CXX_FLAGS") else word
        for word in words
    ]
    if not any(word.startswith(("-DLLAVA_BUILD=", "-DLLAVA_BUILD:")) for word in words):
        words.append(_NO_VISION)
    return shlex.join(words)


def _is_x86() -> bool:
    return platform.machine().lower() in {"x86_64", "amd64"}
