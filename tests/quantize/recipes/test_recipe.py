from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from quantize.errors import UsageError
from quantize.recipes import (
    PRESETS,
    RECIPES,
    Bound,
    choose_recipes,
    find_recipe,
    limits_for,
    named_target,
    print_listing,
    recipe_for,
    require_matrix,
    target_of,
)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Q4_K_M", "q4_k_m"),
        ("q6-k", "q6_k"),
        ("onnx-int4", "onnx-int4"),
        ("Q5_K", "q5_k_m"),
        ("fp16", "f16"),
    ],
)
def test_names_are_forgiving(name: str, found: str):
    assert find_recipe(name).name == found


@pytest.mark.parametrize(
    ("wrong", "near"), [("q4_km", "q4_k_m"), ("q8", "q8_0"), ("onnx_int4", "onnx-int4")]
)
def test_unknown_names_suggest_near_ones(wrong: str, near: str):
    with pytest.raises(UsageError, match=near):
        find_recipe(wrong)


@pytest.mark.parametrize("choice", [{"bits": [5]}, {"formats": ["mlx"]}, {"bits": []}])
def test_presets_that_do_not_exist(choice: dict[str, list[object]]):
    with pytest.raises(UsageError):
        choose_recipes(**choice)  # type: ignore[arg-type]


def test_every_type_of_the_installed_llama_cpp_has_a_recipe():
    from llama_cpp import llama_cpp

    names = {
        name.removeprefix("LLAMA_FTYPE_").removeprefix("MOSTLY_").removeprefix("ALL_").lower(): name
        for name in dir(llama_cpp)
        if name.startswith("LLAMA_FTYPE_")
    }
    del names["guessed"]
    del names["nvfp4"]  # llama.cpp reads it and does not write it
    numbers = {name: getattr(llama_cpp, constant) for name, constant in names.items()}
    ours = {recipe.name: recipe.ftype for recipe in RECIPES.values() if recipe.format == "gguf"}
    assert ours == numbers


def test_a_matrix_is_asked_for_where_it_is_needed():
    needy = [find_recipe("q4_0"), find_recipe("iq2_xs")]
    with pytest.raises(UsageError, match=r"iq2_xs cannot .* give --imatrix TEXT\.txt"):
        require_matrix(needy, None)
    require_matrix(needy, Path("matrix.gguf"))
    require_matrix(needy[:1], None)


def test_limits_order_the_presets_as_their_losses():
    kls = [limits.kl_mean for name in PRESETS if (limits := RECIPES[name].limits) is not None]
    assert len(kls) == len(PRESETS)
    gguf = ["q8_0", "q6_k", "q5_k_m", "q4_k_m", "iq4_xs", "q4_0"]
    limits = [RECIPES[name].limits for name in gguf]
    assert all(a.kl_mean < b.kl_mean for a, b in itertools.pairwise(limits))  # type: ignore[union-attr]
    assert all(a.same_top > b.same_top for a, b in itertools.pairwise(limits))  # type: ignore[union-attr]
    # Llama-3-8B itself passes: its published figures.
    assert limits_for(0.001355).same_top < 0.97674
    assert limits_for(0.445132).same_top < 0.71138


def test_the_list_in_a_pipe_is_plain_text(capsys: pytest.CaptureFixture[str]):
    print_listing()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("\t") == ["recipe", "format", "nominal bits", "advice"]
    rows = {line.split("\t")[0]: line.split("\t") for line in lines[1:]}
    assert list(rows) == [*PRESETS, *(name for name in rows if name not in PRESETS)]
    assert rows.keys() == RECIPES.keys()
    assert all(len(row) == 4 and row[3] for row in rows.values())
    assert rows["iq2_xs"][3].endswith("needs --imatrix")


KEPT = target_of("memory", "8GB", 8192).losing(target_of("kl", "0.02"))


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
        (KEPT, "fits-8gb-8192-kl0.02", 8e9),
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
