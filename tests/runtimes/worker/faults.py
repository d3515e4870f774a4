"""Build the library of fault.c."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("fault.c")


def build_fault_library(folder: Path) -> Path:
    """The shared object for LD_PRELOAD; a C compiler is there wherever llama.cpp was compiled."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or "clang"
    library = folder / "fault.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", library, SOURCE, "-ldl"], check=True
    )
    return library
