"""What a weight takes in a built file, counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantize.recipes import bits_per_weight
from quantize.source import open_source


def test_tables_of_positions_are_no_weights(pebble: Path, pebble_built: Path) -> None:
    """Of Pebble's 4.9 million weights 3,328 are norms; the others are codes of 8 bits in blocks of
    32 with a scale of 16 bits."""
    weights, norms = open_source(str(pebble)).parameters, 3328
    bits = 8.5 * (weights - norms) + 32 * norms
    found = bits_per_weight(pebble_built / "onnx-int8", weights)
    assert found == pytest.approx(bits / weights, abs=1e-3)
