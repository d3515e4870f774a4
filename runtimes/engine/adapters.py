"""The adapters of a loaded model, as an engine loads and unloads them between two steps."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from runtimes.checks import check_adapter
from runtimes.engine.core import EngineCore
from runtimes.engine.sequence import RequestState
from runtimes.errors import RequestError
from runtimes.request import Request
from runtimes.runner import Runner


def names(runner: Runner) -> frozenset[str]:
    """Names of the adapters that requests may ask for."""
    return runner.adapters.names if runner.adapters else frozenset()


def require(runner: Runner, request: Request) -> None:
    """Raise RequestError for a request whose adapter is not loaded."""
    loaded = names(runner)
    if request.adapter is not None and request.adapter not in loaded:
        known = ", ".join(sorted(loaded)) or "none"
        raise RequestError(f"no adapter {request.adapter!r} is loaded; there is: {known}")


def load(runner: Runner, name: str, path: Path, digests: dict[str, str]) -> None:
    """See ``EngineApi.load_adapter``; ``digests`` have the checksums of the files by name."""
    check_adapter(name, path, names(runner))
    if runner.adapters is None:
        raise RequestError(
            "this model takes no adapters: models that write texts do, ONNX graphs where"
            " onnxruntime-genai's builder made them, and not for reproducible answers. Others can"
            " be merged: quantize --lora"
        )
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    runner.adapters.load(name, path)
    digests[name] = digest


def digest_of(runner: Runner, name: str | None, digests: Mapping[str, str]) -> str:
    """The checksum of a loaded adapter's file, nothing where there is to be none. Raises
    RequestError."""
    if name is None:
        return ""
    if name not in names(runner):
        raise RequestError(f"no adapter {name!r} is loaded")
    return digests[name]


def unload(runner: Runner, core: EngineCore, name: str, more: Iterable[RequestState]) -> None:
    """See ``EngineApi.unload_adapter``; ``more`` are requests that the core does not have yet."""
    if runner.adapters is None or name not in runner.adapters.names:
        raise RequestError(f"there is no adapter {name!r} to unload")
    if used := sum(state.request.adapter == name for state in [*more, *core.requests]):
        raise RequestError(
            f"{used} requests still use the adapter {name!r}: unload it when they have ended"
        )
    # What is cached of it would be taken for that of another one of its name.
    core.kv.clear()
    runner.adapters.unload(name)
