"""The registry of runtimes, the one place that names them all."""

import importlib
from typing import cast

from runtimes.backend import Backend, RuntimeName

# By name, and imported when they are asked for: what a backend imports may ask the registry.
MODULES: dict[RuntimeName, str] = {
    "llamacpp": "runtimes.llamacpp.backend",
    "onnx": "runtimes.onnx.backend",
}


def backend(name: RuntimeName) -> Backend:
    """The backend of this name."""
    return cast("Backend", importlib.import_module(MODULES[name]).BACKEND)


def backends() -> list[Backend]:
    """All of them, in the order in which people see them."""
    return [backend(name) for name in MODULES]
