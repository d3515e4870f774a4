"""The part of the self-test that may die: runs one native runtime, in a process of its own.

    python -m runtimes.machine.selftest_child RUNTIME [--safe] [--record]

Answers with one JSON line: the kernels that ran, and how far the logits are from the recorded ones.
"""

import argparse
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from runtimes.load import MODULES, backend
from runtimes.machine import exercise
from runtimes.machine.linechild import exchange
from runtimes.models.modelfile import ModelFile


def compare(logits: exercise.Result, recorded: npt.NDArray[Any]) -> float:
    """Cosine similarity of the checkpoint that differs most; -1 for logits that are not finite."""
    if logits.shape != recorded.shape or not np.isfinite(logits).all():
        return -1.0
    expected = recorded.astype(np.float32)
    norms = np.linalg.norm(logits, axis=1) * np.linalg.norm(expected, axis=1)
    similarity = (logits * expected).sum(axis=1) / np.maximum(norms, 1e-9)
    return float(similarity.min())


def main() -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m runtimes.machine.selftest_child")
    parser.add_argument("runtime", choices=sorted(MODULES))
    parser.add_argument("--safe", action="store_true", help="without llama.cpp's extra buffers")
    parser.add_argument("--record", action="store_true", help="store the logits as the right ones")
    options = parser.parse_args()
    _, answer = exchange()
    tested = backend(options.runtime)
    model = ModelFile.read(tested.selftest)
    runner, _ = tested.open(model, exercise.settings(extra_buffers=not options.safe))
    logits = exercise.run(runner, model.vocab_size)
    runner.close()
    recorded = tested.selftest.with_name("logits.npy")
    if options.record:
        np.save(recorded, logits.astype(np.float16))
    answer({"kernels": tested.kernels(), "similarity": compare(logits, np.load(recorded))})
    return 0


if __name__ == "__main__":
    sys.exit(main())
