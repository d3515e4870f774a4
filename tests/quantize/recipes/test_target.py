"""Targets by flag and by name."""

from __future__ import annotations

import pytest

from quantize.errors import UsageError
from quantize.recipes import (
    Bound,
    find_recipe,
    named_target,
    recipe_for,
    target_of,
)


@pytest.mark.parametrize(
    ("target", "name", "value"),
    [
        (target_of("kl", "0.02"), "kl0.02", 0.02),
        (target_of("kl", " 1e-3 "), "kl1e-3", 0.001),
        (target_of("bits", "4.5"), "4.5bpw", 4.5),
        (target_of("bytes", "1.2GB"), "1.2gb", 1.2e9),
        (target_of("bytes", "900 MiB"), "900mib", 900 * 2**20),
        (target_of("memory", "8GB", 8192), "fits-8gb-8192", 8e9),
        (target_of("kl", "0.02").fastest(1), "kl0.02-fast1", 0.02),
        (target_of("memory", "8GB", 8192).fastest(16), "fits-8gb-8192-fast16", 8e9),
    ],
)
def test_a_target_is_found_by_its_name(target, name: str, value: float):
    assert target.name == name
    assert target.value == pytest.approx(value)
    assert named_target(name) == target
    assert find_recipe(name.upper()) == recipe_for(target)
    in_onnx = find_recipe(f"onnx-{name}")
    assert in_onnx == recipe_for(target, "onnx")
    assert in_onnx.output_name("pebble") == f"onnx-{name}"


@pytest.mark.parametrize("name", ["q4_0", "kl", "bpw", "fits-8gb", "4.5", "gb", "onnx-int4", ""])
def test_other_names_are_no_targets(name: str):
    assert named_target(name) is None


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        ("kl", "0"),
        ("kl", "-1"),
        ("kl", "small"),
        ("kl", "nan"),
        ("bits", "inf"),
        ("bytes", "12"),
        ("bytes", "0GB"),
        ("bytes", "1.2.3GB"),
        ("bytes", "many GB"),
    ],
)
def test_what_is_no_number_is_refused(bound: Bound, text: str):
    with pytest.raises(UsageError, match=r"--(max-kl|bits-per-weight|max-size) takes"):
        target_of(bound, text)
