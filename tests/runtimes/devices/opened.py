"""Small models on a device."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import runtimes.onnx.device
from runtimes.models.registry import read_model
from runtimes.onnx.device import Provider
from runtimes.onnx.runner import OnnxRunner
from runtimes.runner import Logits, StepRow, require_full_logits
from runtimes.settings import RunnerSettings

PROCESSOR = Provider("Processor", "CPUExecutionProvider", "cpu", "", addresses=True)
PROVIDERS = (*runtimes.onnx.device._PROVIDERS, PROCESSOR)


@contextlib.contextmanager
def opened(folder: Path, where: str, slots: int = 3, context: int = 60) -> Iterator[OnnxRunner]:
    settings = RunnerSettings(slots=slots, context=context, device=where)
    with contextlib.closing(OnnxRunner(read_model(folder), settings)) as runner:
        yield runner


def step(runner: OnnxRunner, *rows: StepRow) -> Logits:
    return require_full_logits(runner.execute(rows)).copy()


def halved(folder: Path, out: Path) -> None:
    """The model with floats of 16 bits."""
    import onnx
    from onnx import TensorProto, numpy_helper

    shutil.copytree(folder, out, dirs_exist_ok=True)
    model = onnx.load(out / "model.onnx")
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            halves = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(halves, tensor.name))
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
    onnx.save(model, out / "model.onnx")
