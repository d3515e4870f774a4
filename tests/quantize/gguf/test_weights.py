"""Weights of GGUF files against the original's: what is found, and what is not mistaken for it."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from quantize.children import run_child
from quantize.gguf.imatrix import compute
from quantize.gguf.imatrixfile import read_matrix, write_matrix
from quantize.gguf.quantize import quantize_gguf
from quantize.gguf.weights import WeightComparison, compare_weights, other_settings, other_tokens
from quantize.quality.text import BUNDLED
from quantize.recipes import find_recipe
from runtimes.models.gguf import read_header
from tests.quantize.planted import PLANTED, plant

_PLAIN = ("f16", "bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0", "q3_k_m", "q2_k", "iq4_xs")


@pytest.fixture(scope="module")
def matrix(pebble_f16: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the original's weights are needed for, over the text that files are measured on."""
    work = tmp_path_factory.mktemp("matrix")
    run_child(partial(compute, pebble_f16, BUNDLED, work / "m.gguf", 256), what="", work=work)
    return work / "m.gguf"


def _built(floats: Path, recipe: str, folder: Path, matrix: Path | None = None) -> Path:
    out = folder / f"{recipe}.gguf"
    quantize_gguf(floats, out, find_recipe(recipe), folder, matrix)
    return out


def _compared(path: Path, floats: Path, matrix: Path) -> WeightComparison:
    return run_child(partial(compare_weights, path, floats, matrix), "", path.parent)


@pytest.mark.parametrize("recipe", _PLAIN)
def test_good_files_have_no_fault(recipe: str, pebble_f16: Path, matrix: Path, tmp_path: Path):
    found = _compared(_built(pebble_f16, recipe, tmp_path), pebble_f16, matrix)
    assert found == WeightComparison(56, ())


@pytest.mark.parametrize("recipe", ["q4_k_m", "q3_k_m", "q4_0", "iq4_xs"])
def test_a_matrix_of_another_text_is_no_fault(
    recipe: str, pebble_f16: Path, pebble_matrix: Path, matrix: Path, tmp_path: Path
):
    """One of chats where prose is measured on, and the other way round."""
    built = _built(pebble_f16, recipe, tmp_path, pebble_matrix)
    assert _compared(built, pebble_f16, matrix).faults == ()
    built = _built(pebble_f16, recipe, tmp_path, matrix)
    assert _compared(built, pebble_f16, pebble_matrix).faults == ()


@pytest.mark.parametrize("recipe", ["q4_k_m", "q3_k_m", "q6_k", "q4_0", "iq4_xs"])
def test_a_matrix_that_does_not_fit_is_found(
    recipe: str, pebble_f16: Path, matrix: Path, tmp_path: Path
):
    given, dice = read_matrix(matrix), np.random.default_rng(0)
    entries = {
        name: replace(entry, sums=dice.permutation(entry.sums, axis=1))
        for name, entry in given.entries.items()
    }
    write_matrix(tmp_path / "old.gguf", replace(given, entries=entries))
    built = _built(pebble_f16, recipe, tmp_path, tmp_path / "old.gguf")
    (fault,) = _compared(built, pebble_f16, matrix).faults
    assert "importance matrix that does not fit" in fault


@pytest.mark.parametrize("name", list(PLANTED))
@pytest.mark.parametrize("recipe", ["q4_k_m", "q8_0"])
def test_what_is_planted_is_found(
    name: str, recipe: str, pebble_built: Path, pebble_f16: Path, matrix: Path, tmp_path: Path
):
    path = plant(name, pebble_built / f"pebble-{recipe}.gguf", tmp_path)
    settings = other_settings(read_header(path), read_header(pebble_f16))
    weights = _compared(path, pebble_f16, matrix).faults
    found = [*(f"settings: {one}" for one in settings), *(f"weights: {one}" for one in weights)]
    _, begins = PLANTED[name]
    if begins.startswith(("weights", "settings")):
        assert len(found) == 1
        assert found[0].startswith(begins)
    else:  # another gate's: `test_measure.py` has them
        assert weights == ()


def test_another_vocabulary_is_found(pebble_built: Path, tmp_path: Path):
    good = pebble_built / "pebble-q8_0.gguf"
    data = good.read_bytes()
    start, end = (data.index(name) for name in (b"tokenizer.ggml.tokens", b"tokenizer.ggml.scores"))
    at = data.index(b"The", start)
    assert at < end
    (tmp_path / "other.gguf").write_bytes(data[:at] + b"Thy" + data[at + 3 :])
    (fault,) = run_child(partial(other_tokens, tmp_path / "other.gguf", good), "", tmp_path)
    assert "Thy" in fault
    assert run_child(partial(other_tokens, good, good), "", tmp_path) == []
