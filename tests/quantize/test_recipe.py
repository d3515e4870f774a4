from __future__ import annotations

import pytest

from quantize.errors import UsageError
from quantize.pipeline import space_needed
from quantize.recipe import RECIPES, choose_recipes, find_recipe


def test_presets_are_the_four_files():
    assert [r.name for r in choose_recipes()] == ["q4_k_m", "q8_0", "onnx-int4", "onnx-int8"]


def test_formats_and_bits_select():
    assert [r.name for r in choose_recipes(formats=["onnx"], bits=[8])] == ["onnx-int8"]
    assert [r.name for r in choose_recipes(formats=["gguf"])] == ["q4_k_m", "q8_0"]


@pytest.mark.parametrize(
    ("name", "found"), [("Q4_K_M", "q4_k_m"), ("q6-k", "q6_k"), ("onnx-int4", "onnx-int4")]
)
def test_names_are_forgiving(name: str, found: str):
    assert find_recipe(name).name == found


@pytest.mark.parametrize(
    ("wrong", "near"), [("q4_km", "q4_k_m"), ("q8", "q8_0"), ("onnx_int4", "onnx-int4")]
)
def test_unknown_names_suggest_near_ones(wrong: str, near: str):
    with pytest.raises(UsageError, match=near):
        find_recipe(wrong)


def test_a_name_like_no_other_lists_all():
    with pytest.raises(UsageError, match="known: q4_k_m"):
        find_recipe("zzzzzz")


@pytest.mark.parametrize("choice", [{"bits": [5]}, {"formats": ["mlx"]}, {"bits": []}])
def test_presets_that_do_not_exist(choice: dict[str, list[object]]):
    with pytest.raises(UsageError):
        choose_recipes(**choice)  # type: ignore[arg-type]


def test_space_counts_the_export_and_every_output():
    billion = 1_000_000_000
    q4 = space_needed(billion, [RECIPES["q4_k_m"]])
    assert 2.6e9 < q4 < 3.0e9  # 2 GB export, 0.6 GB file
    assert space_needed(billion, [RECIPES["q4_k_m"], RECIPES["q8_0"]]) - q4 > 1e9
    assert space_needed(billion, [RECIPES["onnx-int4"]]) < q4
