"""Weights of GGUF files against the original's: what is found, and what is not mistaken for it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from quantize.children import run_child
from quantize.gguf.imatrix import compute
from quantize.gguf.imatrixfile import read_matrix, write_matrix
from quantize.gguf.weights import WeightComparison, other_settings
from quantize.quality.text import BUNDLED
from runtimes.models.gguf import read_header
from tests.quantize.gguf import rounding_child
from tests.quantize.planted import PLANTED, plant

_PLAIN = ("bf16", "q4_0", "q2_k")


@pytest.fixture(scope="module")
def matrix(pebble_f16: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the original's weights are needed for, over text that files are measured on."""
    work = tmp_path_factory.mktemp("matrix")
    text = work / "text.txt"
    text.write_text(BUNDLED.read_text(encoding="utf-8")[:4000], encoding="utf-8")
    run_child(partial(compute, pebble_f16, text, work / "m.gguf", 256), what="", work=work)
    return work / "m.gguf"


def _built(floats: Path, folder: Path, jobs: Sequence[tuple[str, Path | None]]) -> list[Path]:
    """Files by their recipes and matrices, in one child."""
    files = [folder / f"{recipe}{'-' + by.stem if by else ''}.gguf" for recipe, by in jobs]
    named = [(path, *job) for path, job in zip(files, jobs, strict=True)]
    run_child(partial(rounding_child.quantized, floats, named), "", folder)
    return files


def _compared(
    files: Sequence[Path], floats: Path, matrices: Sequence[Path]
) -> list[WeightComparison]:
    """Every file by its matrix, in one child."""
    call = partial(rounding_child.compared, files, floats, matrices)
    return run_child(call, "", files[0].parent)


def test_good_files_have_no_fault(pebble_f16: Path, matrix: Path, tmp_path: Path):
    files = _built(pebble_f16, tmp_path, [(recipe, None) for recipe in _PLAIN])
    found = _compared(files, pebble_f16, [matrix] * len(files))
    assert dict(zip(_PLAIN, found, strict=True)) == dict.fromkeys(_PLAIN, WeightComparison(56, ()))


def test_a_matrix_of_another_text_is_no_fault_and_one_that_does_not_fit_is(
    pebble_f16: Path, pebble_matrix: Path, matrix: Path, tmp_path: Path
):
    """One of chats where prose is measured on, and the other way round; and one of dice."""
    chats = tmp_path / "chats.gguf"
    chats.write_bytes(pebble_matrix.read_bytes())
    given, dice = read_matrix(matrix), np.random.default_rng(0)
    entries = {
        name: replace(entry, sums=dice.permutation(entry.sums, axis=1))
        for name, entry in given.entries.items()
    }
    write_matrix(tmp_path / "old.gguf", replace(given, entries=entries))
    pairs = (chats, matrix), (matrix, chats), (tmp_path / "old.gguf", matrix)
    files = _built(pebble_f16, tmp_path, [("q4_k_m", by) for by, _ in pairs])
    found = _compared(files, pebble_f16, [measured for _, measured in pairs])
    for path, one in zip(files, found, strict=True):
        assert len(one.faults) == ("old" in path.name), (path.name, one)
        assert all("importance matrix that does not fit" in fault for fault in one.faults)


@pytest.mark.parametrize("recipe", ["q4_k_m", "q8_0"])
def test_what_is_planted_is_found(
    recipe: str, pebble_built: Path, pebble_f16: Path, matrix: Path, tmp_path: Path
):
    chosen = PLANTED if recipe == "q8_0" else dict([*PLANTED.items()][:4])  # those of weights
    files = [plant(name, pebble_built / f"pebble-{recipe}.gguf", tmp_path) for name in chosen]
    weights = _compared(files, pebble_f16, [matrix] * len(files))
    for path, (_, begins), one in zip(files, chosen.values(), weights, strict=True):
        settings = other_settings(read_header(path), read_header(pebble_f16))
        found = [*(f"settings: {text}" for text in settings), *one.faults]
        if begins.startswith(("weights", "settings")):
            assert [text[: len(begins)] for text in found] == [begins], (path.name, found)
        else:  # another gate's: `test_measure.py` has them
            assert one.faults == (), path.name


def test_another_vocabulary_is_found(pebble_built: Path, tmp_path: Path):
    good = pebble_built / "pebble-q8_0.gguf"
    data = good.read_bytes()
    start, end = (data.index(name) for name in (b"tokenizer.ggml.tokens", b"tokenizer.ggml.scores"))
    at = data.index(b"The", start)
    assert at < end
    (tmp_path / "other.gguf").write_bytes(data[:at] + b"Thy" + data[at + 3 :])
    (found,) = _compared([tmp_path / "other.gguf"], good, [])
    (fault,) = found.faults
    assert fault.startswith("vocabulary: ")
    assert "Thy" in fault
