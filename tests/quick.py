"""`quantize` in the tests' own process, in a third of the time: its children are forked of one that
has imported what they need, and speeds are those of short samples. A build in a process of its own
does neither."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quantize import children
from quantize.manifest import FileSpeeds
from quantize.quality import built_child
from runtimes.machine.processes import child_environment

_IMPORTED = (
    *("quantize.quality.built_child", "quantize.gguf.weights", "quantize.gguf.imatrix"),
    *("llama_cpp", "onnxruntime"),
)
_SERVE = (
    f"import sys; from quantize import children; children._MODULES = {_IMPORTED};"
    " children.serve(int(sys.argv[1]))"
)
_speed = built_child.speed


def speed(path: Path) -> FileSpeeds:
    """Runs in a child process."""
    from runtimes.planner import measure

    built_child._SAMPLE_S = 0.1
    short = partial(measure.Workload, prompt_tokens=32, decode_tokens=8)
    measure.Workload = short  # type: ignore[misc, assignment]
    return _speed(path)


class _Server(children.ForkServer):
    def _start(self, environment: children.Environment) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(children, "_SERVE", _SERVE)
            # OpenMP reads it when it is loaded, and Ingot takes it for what OpenMP has read.
            super()._start({**environment, **children.PATIENT})


@contextmanager
def quantize() -> Iterator[None]:
    """Within it ``quantize`` does so; children are forked on Linux alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(built_child, "speed", speed)
        if sys.platform != "linux":
            yield
            return
        server, begin = _Server(), children.Child

        def child(*words: Any, environment: children.Environment | None = None, **more: Any) -> Any:
            if words[1] == children._BEGIN:
                assert server.fork(words[3], child_environment(environment))
                return server
            return begin(*words, environment=environment, **more)

        patch.setattr(children, "Child", child)
        yield
        server.close()


def main() -> None:
    """`quantize` in a process of its own, with its children forked and short samples."""
    from quantize.cli import main as run

    with quantize():
        code = run()
    sys.exit(code)
