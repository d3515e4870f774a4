"""The adapters of a loaded model, as an engine loads and unloads them between two steps."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from runtimes.checks import check_adapter
from runtimes.engine.core import EngineCore
from runtimes.engine.sequence import RequestState
from runtimes.errors import RequestError
from runtimes.request import Request
from runtimes.runner import Runner


class LoadedAdapters:
    """Adapters of a runner by name. ``load`` and ``unload`` are for the engine's thread only."""

    def __init__(self, runner: Runner) -> None:
        self._slots = runner.adapters
        self._digests: dict[str, str] = {}  # checksums of their files

    @property
    def names(self) -> frozenset[str]:
        """Names that requests may ask for."""
        return frozenset(self._digests)

    def require(self, request: Request) -> None:
        """Raise RequestError for a request whose adapter is not loaded."""
        if request.adapter is not None and request.adapter not in self._digests:
            known = ", ".join(sorted(self._digests)) or "none"
            raise RequestError(f"no adapter {request.adapter!r} is loaded; there is: {known}")

    def load(self, name: str, path: Path) -> None:
        """See ``EngineApi.load_adapter``."""
        check_adapter(name, path, self._digests)
        if self._slots is None:
            raise RequestError(
                "this model takes no adapters: models that write texts do, ONNX graphs where"
                " onnxruntime-genai's builder made them, and not for reproducible answers. Others"
                " can be merged: quantize --lora"
            )
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self._slots.load(name, path)
        self._digests[name] = digest

    def digest(self, name: str | None) -> str:
        """The checksum of an adapter's file, nothing where there is to be none. Raises
        RequestError."""
        if name is None:
            return ""
        if name not in self._digests:
            raise RequestError(f"no adapter {name!r} is loaded")
        return self._digests[name]

    def unload(self, name: str, core: EngineCore, more: Iterable[RequestState]) -> None:
        """See ``EngineApi.unload_adapter``; ``more`` are requests that ``core`` does not have
        yet."""
        if self._slots is None or name not in self._digests:
            raise RequestError(f"there is no adapter {name!r} to unload")
        if used := sum(state.request.adapter == name for state in [*more, *core.requests]):
            raise RequestError(
                f"{used} requests still use the adapter {name!r}: unload it when they have ended"
            )
        # What is cached of it would be taken for that of another one of its name.
        core.kv.clear()
        self._slots.unload(name)
        del self._digests[name]
