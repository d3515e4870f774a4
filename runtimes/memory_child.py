"""Measure what a loaded model takes, in a process of its own (Linux).

    python -m runtimes.memory_child MODEL SETTINGS

SETTINGS is the JSON of a RunnerSettings. Prints one JSON line with bytes: ``used``, to be compared
with ``MemoryEstimate.total``, and ``resident``, the growth of the resident size.

The process is compared with itself after it has imported the runtime. Every slot is filled, a full
batch goes in and all slots decode; then the kernel's referenced bits are cleared
(/proc/self/clear_refs) and the steps run once more. Memory that the process allocated counts
wherever it is resident; of the model's mapped files, the pages that those last steps read.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from runtimes.load import load_runner
from runtimes.modelfile import ModelFile
from runtimes.runner import Runner, StepPlan, StepRow
from runtimes.settings import RunnerSettings

_SMAPS = Path("/proc/self/smaps")
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+\s*(.*)$")
_MODEL_FILES = (".gguf", ".onnx", ".data")


def main(path: str, settings: str) -> int:
    """Command line of this module."""
    model = ModelFile.read(path)
    asked = RunnerSettings(**json.loads(settings))
    _import_runtime(model)
    before = _mapped()
    runner, _ = load_runner(model, asked)
    lengths = _fill(runner, asked)
    _steps(runner, lengths)
    Path("/proc/self/clear_refs").write_text("1", encoding="ascii")
    _steps(runner, lengths)
    after = _mapped()
    resident = after.resident - before.resident
    used = resident - (after.model_resident - after.model_read)
    sys.stdout.write(json.dumps({"used": used, "resident": resident}) + "\n")
    runner.close()
    return 0


def _import_runtime(model: ModelFile) -> None:
    import psutil
    import tokenizers

    del psutil, tokenizers
    if model.runtime == "onnx":
        from runtimes.onnx import runner

        __import__("onnxruntime")
        del runner
    else:
        from runtimes.llamacpp.native import library
        from runtimes.llamacpp.runner import LlamaRunner

        del LlamaRunner
        library()


def _fill(runner: Runner, settings: RunnerSettings) -> list[int]:
    """Put a prompt into every slot that leaves room for the token to be decoded; their lengths.

    Where it makes no difference to memory, computing is spared: ONNX slots are copied, and
    llama.cpp's own caches (written whole when they are made) get a short prompt.
    """
    caps = runner.capabilities
    length = caps.context - 1
    _prefill(runner, 0, min(caps.batch, length))
    runner.trim(0, 0)
    _prefill(runner, 0, length)
    others = length if settings.unified_kv or caps.runtime == "onnx" else min(8, length)
    for slot in range(1, caps.slots):
        if caps.runtime == "onnx":
            runner.copy(0, slot, length)
        else:
            _prefill(runner, slot, others)
    return [length] + [others] * (caps.slots - 1)


def _steps(runner: Runner, lengths: list[int]) -> None:
    """All slots decode a token; then the last batch of slot 0's prompt goes in again."""
    caps = runner.capabilities
    for slot, length in enumerate(lengths):
        runner.trim(slot, length)
    rows = (StepRow(slot, length, [5], True) for slot, length in enumerate(lengths))
    runner.execute(StepPlan(tuple(rows)))
    last = max(0, lengths[0] - caps.batch)
    runner.trim(0, last)
    runner.execute(StepPlan((StepRow(0, last, _tokens(runner, lengths[0])[last:], True),)))


def _prefill(runner: Runner, slot: int, length: int) -> None:
    batch, tokens = runner.capabilities.batch, _tokens(runner, length)
    for at in range(0, length, batch):
        piece = tokens[at : at + batch]
        runner.execute(StepPlan((StepRow(slot, at, piece, at + len(piece) == length),)))


def _tokens(runner: Runner, count: int) -> list[int]:
    """Ids from all over the vocabulary: neighbours would share the pages of few embeddings."""
    return [(i * 7919 + 11) % runner.capabilities.vocab_size for i in range(count)]


class _Mapped:
    """Bytes of /proc/self/smaps: all that is resident, and what of it maps the model's files."""

    def __init__(self) -> None:
        self.resident = self.model_resident = self.model_read = 0


def _mapped() -> _Mapped:
    found = _Mapped()
    model = False
    for line in _SMAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        if mapping := _MAPPING.match(line):
            model = mapping[1].endswith(_MODEL_FILES)
            continue
        name, _, rest = line.partition(":")
        if name == "Rss":
            found.resident += int(rest.split()[0]) * 1024
            found.model_resident += int(rest.split()[0]) * 1024 if model else 0
        elif name == "Referenced" and model:
            found.model_read += int(rest.split()[0]) * 1024
    return found


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
