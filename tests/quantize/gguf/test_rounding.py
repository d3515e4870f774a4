"""What a type makes of weights is what llama.cpp's quantizer writes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from quantize.children import run_child
from quantize.gguf.quantize import TYPES, quantize_gguf
from quantize.recipes import find_recipe
from runtimes.models.gguf import TENSOR_TYPES, TensorInfo, read_header
from tests.quantize.gguf import rounding_child

KINDS = (
    *("q8_0", "q6_k", "q5_1", "q5_k", "q4_0", "q4_k", "iq4_nl", "iq4_xs"),
    *("q3_k", "iq3_s", "q2_k"),
)


def test_every_type_is_rounded_as_in_the_file(pebble_f16: Path, tmp_path: Path):
    """A tensor in each: the bytes, and the floats that they stand for."""
    names = [f"blk.{i % 6}.ffn_{'gate' if i < 6 else 'up'}.weight" for i in range(len(KINDS))]
    tensors = dict(zip(names, KINDS, strict=True))
    rows = {
        name: _data(pebble_f16, name).view(np.float16).reshape(_shape(pebble_f16, name))
        for name in names
    }
    floats = {name: found.astype(np.float32) for name, found in rows.items()}
    call = partial(rounding_child.stored, floats, tensors)
    ours = run_child(call, "rounding", tmp_path)
    out, overrides = tmp_path / "out.gguf", {f"^{name}$": kind for name, kind in tensors.items()}
    quantize_gguf(pebble_f16, out, find_recipe("q8_0"), tmp_path, overrides=overrides)
    types = {tensor.name: tensor.type_name.lower() for tensor in read_header(out).tensors}
    for name, kind in tensors.items():
        assert types[name] == kind
        packed, stored = ours[name]
        assert (packed == _data(out, name)).all(), kind
        # Finer types are nearer, and none is far off.
        _, weights, size = TENSOR_TYPES[TYPES[kind]]
        error = np.square(stored - floats[name]).mean() / np.square(floats[name]).mean()
        assert error == pytest.approx(2.0 ** (-2 * size * 8 / weights), rel=20)


def _info(path: Path, name: str) -> TensorInfo:
    return next(tensor for tensor in read_header(path).tensors if tensor.name == name)


def _shape(path: Path, name: str) -> tuple[int, ...]:
    return _info(path, name).shape[::-1]


def _data(path: Path, name: str) -> npt.NDArray[np.uint8]:
    info, begin = _info(path, name), read_header(path).data_begins
    return np.fromfile(path, np.uint8, info.nbytes, offset=begin + info.offset)


def test_floats_are_the_same_every_time(tmp_path: Path):
    rows = np.random.default_rng(1).standard_normal((333, 512), np.float32)
    call = partial(rounding_child.many_times, rows, ("q4_1", "iq3_s", "q5_1"), 20)
    assert run_child(call, "rounding", tmp_path) == 0.0
