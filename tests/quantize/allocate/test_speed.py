"""Times of a step: what products take, what a step takes beside them, and both once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quantize.allocate.solve import TypeChoice, TypeTable, Unit
from quantize.allocate.speed import Timed, step_times
from quantize.gguf.ggml import products
from quantize.progress import Reporter
from runtimes.models.gguf import read_header
from tests.support import own_home


def _never() -> Path:
    raise AssertionError("what is known is not timed again")


def test_a_step_is_its_products_and_what_the_reference_takes_beside_them(
    pebble_built: Path, tmp_path: Path
):
    path = pebble_built / "pebble-q8_0.gguf"
    layer = [tensor for tensor in read_header(path).tensors if tensor.name.startswith("blk.0.")]
    tensors = [tensor for tensor in layer if len(tensor.shape) > 1][:3]
    choices = tuple(TypeChoice(kind, 1, 0.0) for kind in ("q8_0", "q4_0"))
    units = tuple(Unit(t.name, 1, t.shape[1], t.shape[0], choices) for t in tensors)
    table, whole = TypeTable(units, 1, ""), {unit.name: "q8_0" for unit in units}
    with own_home(tmp_path / "home"):
        timed, where = (
            Timed("llama-cpp-python", products, lambda: path, whole),
            (tmp_path, Reporter()),
        )
        times = step_times(table, 1, timed, *where)
        assert step_times(table, 1, replace(timed, reference=_never), *where) == times
    assert times.rest >= 0
    for kind in ("q8_0", "q4_0"):
        seconds = [times.of(unit, unit.choice(kind)) for unit in units]
        assert min(s for s in seconds if s) > 0
        step = times.step(table, dict.fromkeys(whole, kind))
        assert step == pytest.approx(times.rest + sum(seconds))
