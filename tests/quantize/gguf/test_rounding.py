"""What a type makes of weights is what llama.cpp's quantizer writes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from quantize.children import run_child
from quantize.gguf.quantize import TYPES, quantize_gguf
from quantize.recipes import find_recipe
from runtimes.models.gguf import TENSOR_TYPES, read_header
from tests.quantize.gguf import rounding_child

TENSOR = "blk.2.ffn_up.weight"
KINDS = (
    *("q8_0", "q6_k", "q5_1", "q5_k", "q4_0", "q4_k", "iq4_nl", "iq4_xs"),
    *("q3_k", "iq3_s", "q2_k"),
)


def test_every_type_is_rounded_as_in_the_file(pebble_f16: Path, tmp_path: Path):
    """All in one child: the bytes, and the floats that they stand for."""
    header = read_header(pebble_f16)
    info = next(tensor for tensor in header.tensors if tensor.name == TENSOR)
    begin = header.data_bytes_expected - max(t.offset + t.nbytes for t in header.tensors)
    half = np.fromfile(pebble_f16, np.float16, info.nbytes // 2, offset=begin + info.offset)
    rows = half.reshape(info.shape[::-1]).astype(np.float32)
    ours = run_child(partial(rounding_child.stored, rows, KINDS), "rounding", tmp_path)
    for kind in KINDS:
        out = tmp_path / f"{kind}.gguf"
        quantize_gguf(
            pebble_f16, out, find_recipe("q8_0"), tmp_path, overrides={f"^{TENSOR}$": kind}
        )
        made = read_header(out)
        written = next(tensor for tensor in made.tensors if tensor.name == TENSOR)
        assert written.type_name.lower() == kind
        begin = made.data_bytes_expected - max(t.offset + t.nbytes for t in made.tensors)
        theirs = np.fromfile(out, np.uint8, written.nbytes, offset=begin + written.offset)
        packed, floats = ours[kind]
        assert (packed == theirs).all(), kind
        # Finer types are nearer, and none is far off.
        _, weights, size = TENSOR_TYPES[TYPES[kind]]
        error = np.square(floats - rows).mean() / np.square(rows).mean()
        assert error == pytest.approx(2.0 ** (-2 * size * 8 / weights), rel=20)


def test_floats_are_the_same_every_time(tmp_path: Path):
    rows = np.random.default_rng(1).standard_normal((333, 512), np.float32)
    call = partial(rounding_child.many_times, rows, ("q4_1", "iq3_s", "q5_1"), 20)
    assert run_child(call, "rounding", tmp_path) == 0.0
