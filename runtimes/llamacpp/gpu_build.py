"""What llama.cpp is built with for each kind of GPU. Standard library only, as ``build``."""

import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runtimes.llamacpp.source import BuildError

NONE = "none"


@dataclass(frozen=True, slots=True)
class Kit:
    """One kind of GPU."""

    program: str  # that the build calls: without it there is no kit
    install: str  # what has it
    environment: Mapping[str, str] = field(default_factory=dict)


KITS = {
    "cuda": Kit(
        "nvcc",
        "NVIDIA's CUDA toolkit (Debian and Ubuntu: apt install nvidia-cuda-toolkit), and put its"
        " bin folder on the path",
    ),
    "hip": Kit(
        "hipconfig",
        "AMD's ROCm with its HIP development files, and put its bin folder on the path",
    ),
    "metal": Kit("xcrun", "Xcode's tools (xcode-select --install)"),
    "sycl": Kit(
        "icpx",
        "Intel's oneAPI base toolkit, and run its setvars.sh in this shell",
        {"CC": "icx", "CXX": "icpx"},
    ),
    "vulkan": Kit(
        "glslc",
        "the Vulkan SDK (Debian and Ubuntu: apt install libvulkan-dev glslc spirv-headers, and"
        " mesa-vulkan-drivers or the vendor's driver)",
    ),
}


def flag(gpu: str) -> str:
    """CMake's option for a kind of GPU; llama.cpp's docs/build.md lists them."""
    return f"-DGGML_{gpu.upper()}=ON"


def require_built(gpu: str, wheel: Path) -> None:
    """Raise BuildError for a wheel without the library of this kind: CMake takes options that it
    does not know, and says nothing."""
    names = zipfile.ZipFile(wheel).namelist()
    if not any(Path(name).name.startswith((f"libggml-{gpu}.", f"ggml-{gpu}.")) for name in names):
        raise BuildError(f"llama.cpp was built without {gpu}: CMake left {flag(gpu)} out")


def kit_for(gpu: str, environment: Mapping[str, str]) -> Kit:
    """Raises BuildError for a name that is none, and for a kit that is not installed."""
    kit = KITS.get(gpu)
    if kit is None:
        raise BuildError(f"--gpu must be one of {', '.join(KITS)} or {NONE}, not {gpu!r}")
    if shutil.which(kit.program, path=environment.get("PATH")) is None:
        raise BuildError(f"{kit.program} is not on the path: install {kit.install}")
    return kit


def gpu_of(cmake_args: str) -> str:
    """The kind that a build was made for by ``--gpu``; empty for another one."""
    return next((name for name in KITS if flag(name) in cmake_args.split()), "")


def compilers(gpu: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What the build's environment needs beside CMake's flag; the user's own choice stays."""
    found = dict(KITS[gpu].environment)
    if gpu == "hip":
        program = shutil.which("hipconfig", path=environment.get("PATH")) or "hipconfig"
        folder = subprocess.run(
            [program, "-l"], capture_output=True, text=True, check=False
        ).stdout.strip()
        found["HIPCXX"] = f"{folder}/clang" if folder else "clang"
    return {name: value for name, value in found.items() if name not in environment}
