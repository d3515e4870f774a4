"""Measure what a loaded model takes, in a process of its own (Linux).

    python -m runtimes.planner.memory_child MODEL SETTINGS

SETTINGS is the JSON of a RunnerSettings. Answers with one line of bytes: ``resident``, how much the
resident size has grown over that of the same process after it had imported the runtime, when every
slot is full, all have decoded and a full batch has gone in; and ``used``, to be compared with
``MemoryEstimate.total``, without the pages of the model's files that steps do not read. Those are
the originals of the tensors that llama.cpp says it has repacked, and all of what ONNX Runtime maps.

Which pages steps read cannot be asked of the kernel: it keeps files in pieces of up to 2 MiB, and
reading one page marks, or maps again, the whole piece.
"""

import importlib
import json
import logging
import re
import sys
from typing import Any

from runtimes import own
from runtimes.engine.loading import load_runner
from runtimes.machine.linechild import exchange
from runtimes.models.registry import backend_of, read_model
from runtimes.planner.trial_child import prefill, prompt_tokens
from runtimes.runner import Runner, StepRow
from runtimes.settings import RunnerSettings

_MODEL_FILES = (".gguf", ".onnx", ".data")
_BUFFER = re.compile(r"(\S+) model buffer size = +([\d.]+) MiB")


def main(path: str, settings: str) -> int:
    """Command line of this module."""
    _, answer = exchange()
    model = read_model(path)
    importlib.import_module("tokenizers")
    backend_of(model).import_library()
    before, _ = _resident()
    repacked = _Repacked()
    log = logging.getLogger(own("runtimes.llamacpp.native"))
    log.addHandler(repacked)
    log.setLevel(logging.DEBUG)
    runner = load_runner(model, RunnerSettings(**json.loads(settings)))
    length = _fill(runner)
    for _ in range(2):
        _steps(runner, length)
    after, mapped = _resident()
    unread = mapped if backend_of(model).copies_weights else repacked.nbytes
    answer({"used": after - before - unread, "resident": after - before})
    runner.close()
    return 0


class _Repacked(logging.Handler):
    """Adds up the weights that llama.cpp says it keeps in a layout of its own."""

    nbytes = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Every line of llama.cpp's log passes here."""
        found = _BUFFER.search(record.getMessage())
        if found and found[1] not in ("CPU", "CPU_Mapped"):
            self.nbytes += int(float(found[2]) * 2**20)


def _fill(runner: Runner) -> int:
    """Put a prompt into every slot that leaves room for the token to be decoded; its length.

    Where each slot has a cache of its own, computing is spared: the first one is copied.
    """
    caps = runner.capabilities
    room = min(caps.context, (caps.kv_tokens or caps.slots * caps.context) // caps.slots)
    length = room - 1
    prefill(runner, 0, length)
    for slot in range(1, caps.slots):
        if caps.mixed_batch:  # copies would share cells
            prefill(runner, slot, length)
        else:
            runner.kv.copy(0, slot, length)
    return length


def _steps(runner: Runner, length: int) -> None:
    """All slots decode a token; then the ends of prompts go in again, a batch of them."""
    caps, prompt = runner.capabilities, prompt_tokens(runner, length)
    for slot in range(caps.slots):
        _cut(runner, slot, length)
    rows = [StepRow(slot, length, [5], 1) for slot in range(caps.slots)]
    runner.execute(rows)
    budget, again = caps.batch, []
    for slot in range(caps.slots if caps.mixed_batch else 1):
        if not (count := min(budget, length)):
            break
        _cut(runner, slot, length - count)
        again.append(StepRow(slot, length - count, prompt[length - count :], 1))
        budget -= count
    runner.execute(again)


def _cut(runner: Runner, slot: int, length: int) -> None:
    """Leave the first ``length`` tokens; a slot that cannot lose its tail gets them anew."""
    if runner.capabilities.can_trim:
        runner.kv.trim(slot, length)
    else:
        runner.kv.trim(slot, 0)
        prefill(runner, slot, length)


def _resident() -> tuple[int, int]:
    """Resident bytes of this process, and those of them that are pages of the model's files."""
    import psutil

    # Linux and Windows have it; what calls this runs on Linux only.
    maps: list[Any] = getattr(psutil.Process(), "memory_maps")()  # noqa: B009
    model = sum(one.rss for one in maps if one.path.endswith(_MODEL_FILES))
    return sum(one.rss for one in maps), model


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
