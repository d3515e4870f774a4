"""`quantize` in the tests' own process, in a third of the time: its children are forked of one that
has imported what they need, and speeds are those of short samples. A build in a process of its own
does neither."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from quantize import children
from quantize.manifest import FileSpeeds
from quantize.quality import built_child
from quantize.report import write
from runtimes.machine.processes import child_environment
from runtimes.planner.measure import SpeedFigures, Workload, measure_depths

_IMPORTED = (
    *("quantize.quality.built_child", "quantize.gguf.weights", "quantize.gguf.imatrix"),
    *("llama_cpp", "onnxruntime"),
)
_SERVE = (
    f"import sys; from quantize import children; children._MODULES = {_IMPORTED};"
    " children.serve(int(sys.argv[1]))"
)
_WITH_TORCH = (*children._MODULES, "onnx", "onnx_ir", "onnxruntime")
_SERVE_TORCH = _SERVE.replace(repr(_IMPORTED), repr(_WITH_TORCH))
_speed = built_child.speed


def _once(path: Path, work: Workload, *, repeats: int, **more: Any) -> dict[int, SpeedFigures]:
    return measure_depths(path, work, repeats=1, **more)


def speed(path: Path) -> FileSpeeds:
    """Runs in a child process."""
    from runtimes.planner import measure

    built_child._SAMPLE_S = 0.1
    short = partial(measure.Workload, prompt_tokens=32, decode_tokens=8)
    measure.Workload = short  # type: ignore[misc, assignment]
    measure.measure_depths = _once
    return _speed(path)


class _Server(children.ForkServer):
    def __init__(self) -> None:
        super().__init__()
        self.busy = threading.Lock()  # until its child has been waited for

    def wait(self, timeout: float | None = None) -> int:
        code = super().wait(timeout)
        self.busy.release()
        return code

    def _start(self, environment: children.Environment) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(children, "_SERVE", _SERVE)
            # OpenMP reads it when it is loaded, and Ingot takes it for what OpenMP has read.
            super()._start({**environment, **children.PATIENT})


@contextmanager
def no_pictures() -> Iterator[None]:
    """Reports without drawings, which take longer than what most builds of tests do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "draw_svg", lambda _chart: "<svg/>")
        patch.setattr(write, "draw_picture", lambda _manifest, path: path.touch())
        yield


@contextmanager
def quantize() -> Iterator[None]:
    """Within it ``quantize`` does so; children are forked on Linux alone."""
    with (
        TemporaryDirectory(prefix="ingot-modules-") as modules,
        pytest.MonkeyPatch.context() as patch,
    ):
        # Of models' own code, for servers: transformers reads it when it is imported.
        patch.setenv("HF_MODULES_CACHE", modules)
        patch.setattr(built_child, "speed", speed)
        if sys.platform != "linux":
            yield
            return
        server, begin = _Server(), children.Child

        def child(*words: Any, environment: children.Environment | None = None, **more: Any) -> Any:
            # While one thread has its child, another thread's is begun as everywhere.
            if words[1] == children._BEGIN and server.busy.acquire(blocking=False):
                assert server.fork(words[3], child_environment(environment))
                return server
            return begin(*words, environment=environment, **more)

        patch.setattr(children, "Child", child)
        patch.setattr(children, "_SERVE", _SERVE_TORCH)
        yield
        server.close()


def main() -> None:
    """`quantize` in a process of its own, with its children forked and short samples."""
    from quantize.cli import main as run

    with quantize():
        code = run()
    sys.exit(code)
