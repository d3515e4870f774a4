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

import json
import logging
import re
import sys
from pathlib import Path

from runtimes.engine.loading import load_runner
from runtimes.machine.linechild import exchange
from runtimes.models.modelfile import ModelFile
from runtimes.planner.trial_child import prefill, prompt_tokens
from runtimes.runner import Runner, StepPlan, StepRow
from runtimes.settings import RunnerSettings

_SMAPS = Path("/proc/self/smaps")
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+\s*(.*)$")
_MODEL_FILES = (".gguf", ".onnx", ".data")
_BUFFER = re.compile(r"(\S+) model buffer size = +([\d.]+) MiB")


def main(path: str, settings: str) -> int:
    """Command line of this module."""
    _, answer = exchange()
    model = ModelFile.read(path)
    asked = RunnerSettings(**json.loads(settings))
    _import_runtime(model)
    before, _ = _resident()
    repacked = _Repacked()
    logging.getLogger("runtimes.llamacpp.native").addHandler(repacked)
    runner, _ = load_runner(model, asked)
    lengths = _fill(runner, asked)
    for _ in range(2):
        _steps(runner, lengths)
    after, mapped = _resident()
    unread = mapped if model.backend.copies_weights else repacked.nbytes
    answer({"used": after - before - unread, "resident": after - before})
    runner.close()
    return 0


class _Repacked(logging.Handler):
    """Adds up the weights that llama.cpp says it keeps in a layout of its own."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.nbytes = 0
        logging.getLogger("runtimes.llamacpp.native").setLevel(logging.DEBUG)

    def emit(self, record: logging.LogRecord) -> None:
        """Every line of llama.cpp's log passes here."""
        found = _BUFFER.search(record.getMessage())
        if found and found[1] not in ("CPU", "CPU_Mapped"):
            self.nbytes += int(float(found[2]) * 2**20)


def _import_runtime(model: ModelFile) -> None:
    import psutil
    import tokenizers

    del psutil, tokenizers
    model.backend.import_library()


def _fill(runner: Runner, settings: RunnerSettings) -> list[int]:
    """Put a prompt into every slot that leaves room for the token to be decoded; their lengths.

    Where each slot has a cache of its own, computing is spared: the first one is copied.
    """
    caps = runner.capabilities
    room = min(caps.context, (caps.kv_tokens or caps.slots * caps.context) // caps.slots)
    length = room - 1
    _put(runner, 0, min(caps.batch, length))
    runner.kv.trim(0, 0)
    _put(runner, 0, length)
    for slot in range(1, caps.slots):
        if caps.mixed_batch:  # copies would share cells
            _put(runner, slot, length)
        else:
            runner.kv.copy(0, slot, length)
    return [length] * caps.slots


def _steps(runner: Runner, lengths: list[int]) -> None:
    """All slots decode a token; then the ends of prompts go in again, a batch of them."""
    caps = runner.capabilities
    for slot, length in enumerate(lengths):
        _cut(runner, slot, length)
    rows = (StepRow(slot, length, [5], 1) for slot, length in enumerate(lengths))
    runner.execute(StepPlan(tuple(rows)))
    budget, again = caps.batch, []
    for slot, length in enumerate(lengths if caps.mixed_batch else lengths[:1]):
        count = min(budget, length)
        if count == 0:
            break
        _cut(runner, slot, length - count)
        tokens = prompt_tokens(runner, length)[length - count :]
        again.append(StepRow(slot, length - count, tokens, 1))
        budget -= count
    runner.execute(StepPlan(tuple(again)))


def _cut(runner: Runner, slot: int, length: int) -> None:
    """Leave the first ``length`` tokens; a slot that cannot lose its tail gets them anew."""
    if runner.capabilities.can_trim:
        runner.kv.trim(slot, length)
        return
    runner.kv.trim(slot, 0)
    _put(runner, slot, length)


def _put(runner: Runner, slot: int, length: int) -> None:
    prefill(runner, slot, prompt_tokens(runner, length))


def _resident() -> tuple[int, int]:
    """Resident bytes of this process, and those of them that are pages of the model's files."""
    everything = model = 0
    inside = False
    for line in _SMAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        if mapping := _MAPPING.match(line):
            inside = mapping[1].endswith(_MODEL_FILES)
        elif line.startswith("Rss:"):
            size = int(line.split()[1]) * 1024
            everything += size
            model += size if inside else 0
    return everything, model


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
