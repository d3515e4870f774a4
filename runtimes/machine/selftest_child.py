"""The part of the self-test that may die: runs one native runtime, in a process of its own.

    python -m runtimes.machine.selftest_child RUNTIME [--safe] [--record]

Answers with one JSON line: the kernels that ran, and how far the logits are from the recorded ones.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from runtimes.load import MODULES, backend
from runtimes.machine.exercise import Result
from runtimes.machine.linechild import exchange


def compare(logits: Result, recorded: npt.NDArray[Any]) -> float:
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
    logits, kernels = tested.exercise(extra_buffers=not options.safe)
    if options.record:
        np.save(tested.recorded, logits.astype(np.float16))
    answer({"kernels": kernels, "similarity": compare(logits, np.load(tested.recorded))})
    return 0


if __name__ == "__main__":
    sys.exit(main())
