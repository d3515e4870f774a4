"""The part of the self-test that may die: runs one native runtime, in a process of its own.

    python -m runtimes.machine.selftest_child {llamacpp,onnx} [--safe] [--record]

Answers with one JSON line: the kernels that ran, and how far the logits are from the recorded ones.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runtimes.machine import exercise
from runtimes.machine.linechild import exchange
from runtimes.models.modelfile import ModelFile

_HERE = Path(__file__).parents[1]
_RECORDED = {
    "llamacpp": _HERE / "llamacpp" / "selftest.npy",
    "onnx": _HERE / "onnx" / "selftest" / "logits.npy",
}


def compare(logits: exercise.Result, recorded: npt.NDArray[Any]) -> float:
    """Cosine similarity of the checkpoint that differs most; -1 for logits that are not finite."""
    if logits.shape != recorded.shape or not np.isfinite(logits).all():
        return -1.0
    expected = recorded.astype(np.float32)
    norms = np.linalg.norm(logits, axis=1) * np.linalg.norm(expected, axis=1)
    similarity = (logits * expected).sum(axis=1) / np.maximum(norms, 1e-9)
    return float(similarity.min())


def run_llamacpp(extra_buffers: bool) -> tuple[exercise.Result, list[str]]:
    """Logits and kernels of llama.cpp on the tiny model, which is written for the occasion."""
    from runtimes.llamacpp.native import library
    from runtimes.llamacpp.runner import LlamaRunner
    from runtimes.llamacpp.tinygguf import VOCABULARY, write_tiny_gguf

    with tempfile.TemporaryDirectory(prefix="ingot-selftest-") as folder:
        path = Path(folder) / "tiny.gguf"
        write_tiny_gguf(path)
        runner = LlamaRunner.open(ModelFile.read(path), exercise.settings(extra_buffers))
        logits = exercise.run(runner, VOCABULARY)
        runner.close()
    features = library().llama_print_system_info().decode().replace(":", "|").split("|")
    pairs = (feature.partition("=") for feature in features)
    kernels = [name.strip() for name, _, value in pairs if value.strip() == "1"]
    return logits, kernels


def run_onnx(extra_buffers: bool) -> tuple[exercise.Result, list[str]]:
    """Logits of ONNX Runtime on the graph in this package, and its execution providers."""
    from runtimes.onnx.kernels import execution_providers
    from runtimes.onnx.runner import OnnxRunner

    model = ModelFile.read(_RECORDED["onnx"].parent)
    runner = OnnxRunner.open(model, exercise.settings(extra_buffers))
    logits = exercise.run(runner, model.vocab_size)
    runner.close()
    return logits, execution_providers()


def main() -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m runtimes.machine.selftest_child")
    parser.add_argument("runtime", choices=sorted(_RECORDED))
    parser.add_argument("--safe", action="store_true", help="without llama.cpp's extra buffers")
    parser.add_argument("--record", action="store_true", help="store the logits as the right ones")
    options = parser.parse_args()
    _, answer = exchange()
    run = run_llamacpp if options.runtime == "llamacpp" else run_onnx
    logits, kernels = run(not options.safe)
    recorded = _RECORDED[options.runtime]
    if options.record:
        np.save(recorded, logits.astype(np.float16))
    answer({"kernels": kernels, "similarity": compare(logits, np.load(recorded))})
    return 0


if __name__ == "__main__":
    sys.exit(main())
