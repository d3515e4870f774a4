"""llama.cpp's quantizer: types, matrices, and types for single tensors."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from quantize.children import run_child
from quantize.errors import ToolError, UsageError
from quantize.gguf.converter import export_f16
from quantize.gguf.imatrix import check_fit, compute
from quantize.gguf.imatrixfile import ImportanceMatrix, read_matrix, write_matrix
from quantize.gguf.quantize import TYPES, quantize_gguf
from quantize.quality.tokens import Reference
from quantize.recipes import RECIPES, find_recipe
from runtimes.models.gguf import TENSOR_TYPES, TensorInfo, read_header
from tests.quantize.gguf import rounding_child
from tests.quantize.logits import divergence, scored
from tests.quantize.shapes import SHAPES, make_random_model
from tests.runtimes.models.sparse_gguf import write_sparse_gguf

_PIECE = 256  # tokens scored at a time


def types(path: Path) -> dict[str, str]:
    return {info.name: info.type_name for info in read_header(path).tensors}


def make(
    source: Path,
    name: str,
    folder: Path,
    matrix: Path | None = None,
    overrides: dict[str, str] | None = None,
) -> tuple[Path, list[str]]:
    out = folder / f"{name}{'-m' if matrix else ''}.gguf"
    notes = quantize_gguf(source, out, find_recipe(name), folder, matrix, overrides or {})
    return out, notes


# Asks llama.cpp, without quantizing, which of the numbered types need a matrix.
_DRY_RUNS = """
import ctypes, json, sys
from llama_cpp import llama_cpp as lib
said = []
log = lib.llama_log_callback(lambda level, text, _: said.append(text))
lib.llama_log_set(log, ctypes.c_void_p(0))
params = lib.llama_model_quantize_default_params()
params.dry_run = True
needy = []
for number in json.loads(sys.argv[2]):
    said.clear()
    params.ftype = number
    assert lib.llama_model_quantize(sys.argv[1].encode(), b"unused", ctypes.byref(params)) == 0
    if any(b"will require an imatrix" in text for text in said):
        needy.append(number)
print(json.dumps(needy))
"""


def test_llama_cpp_refuses_exactly_the_types_that_need_a_matrix(pebble_f16: Path, tmp_path: Path):
    """Were the table wrong, users would learn it late, or be asked for nothing."""
    gguf = [recipe for recipe in RECIPES.values() if recipe.format == "gguf"]
    numbers = json.dumps([recipe.ftype for recipe in gguf])
    done = subprocess.run(
        [sys.executable, "-c", _DRY_RUNS, pebble_f16, numbers],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [r.ftype for r in gguf if r.needs_imatrix]
    with pytest.raises(UsageError, match="iq1_m cannot be made without an importance matrix"):
        make(pebble_f16, "iq1_m", tmp_path)


def test_with_a_matrix_they_are_made_and_one_that_lacks_a_tensor_is_told(
    pebble_f16: Path, pebble_matrix: Path, tmp_path: Path
):
    made, _ = make(pebble_f16, "q2_k_s", tmp_path, pebble_matrix)
    assert types(made)["blk.3.attn_q.weight"] == "Q2_K"
    entries = dict(read_matrix(pebble_matrix).entries)
    del entries["blk.2.ffn_up.weight"]
    write_matrix(tmp_path / "some.gguf", ImportanceMatrix(entries))
    with pytest.raises(ToolError, match=r"Missing importance matrix for tensor blk\.2\.ffn_up"):
        make(pebble_f16, "q2_k_s", tmp_path, tmp_path / "some.gguf")


def test_fallback_types_are_told(tmp_path: Path):
    """Rows of 96 weights fit no K-quant; those of 256 do."""
    shape = {"layers": 1, "heads": 3, "kv_heads": 1, "head_dim": 32, "vocab": 512}
    odd = write_sparse_gguf(
        tmp_path / "odd.gguf", "llama", hidden=96, feed_forward=256, floats=True, **shape
    )
    made, notes = make(odd, "q4_k_m", tmp_path)
    assert len(notes) == 1
    kinds = types(made)
    assert list(kinds.values()).count("Q5_0") == 5
    assert notes[0].startswith(
        "6 of 11 tensors have rows that are not a multiple of 256 weights, as the type wanted for"
        " them needs, and were stored in a larger one: 5 as Q5_0 instead of Q4_K, 1 as Q8_0 instead"
        " of Q6_K; the file has "
    )
    bits = sum(t.nbytes for t in read_header(made).tensors) * 8
    weights = sum(math.prod(t.shape) for t in read_header(made).tensors)
    assert notes[0].endswith(f"; the file has {bits / weights:.1f} bits a weight")
    assert kinds["blk.0.ffn_down.weight"] in ("Q4_K", "Q6_K")
    assert kinds["blk.0.ffn_up.weight"] not in ("Q4_K", "Q6_K")

    # Blocks of q4_0 have 32 weights and fit these rows; its output layer is wanted in Q6_K.
    _, (note,) = make(odd, "q4_0", tmp_path)
    assert note.startswith("1 of 11 tensors have rows that are not a multiple of 256 weights")
    assert "1 as Q8_0 instead of Q6_K" in note


def test_overrides_change_these_tensors_and_no_others(pebble_f16: Path, tmp_path: Path):
    plain, _ = make(pebble_f16, "q4_0", tmp_path)
    before = types(plain)
    overrides = {r"blk\.[01]\.ffn_down": "Q6_K", "ffn_down": "q8_0", "^token_embd": "f16"}
    changed, notes = make(pebble_f16, "q4_0", tmp_path, overrides=overrides)
    after = types(changed)
    assert notes == []
    assert {name: kind for name, kind in after.items() if kind != before[name]} == {
        **{f"blk.{i}.ffn_down.weight": "Q6_K" if i < 2 else "Q8_0" for i in range(6)},
        "token_embd.weight": "F16",
    }


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"blk[": "q8_0"}, r"'blk\[' is not a regular expression"),
        ({"ffn": "q9_0"}, r"unknown tensor type 'q9_0' .* did you mean"),
        ({"ffn": "q4_k_m"}, "did you mean q4_k"),
        ({"fnn_down": "q8_0"}, r"'fnn_down' fits no tensor .* called .*\.weight"),
        ({"attn_norm": "q8_0"}, "fits no tensor"),
        ({"ffn_up": "iq2_xs"}, r"blk\.0\.ffn_up\.weight cannot be made iq2_xs without"),
    ],
)
def test_overrides_that_cannot_be_carried_out(
    overrides: dict[str, str], why: str, pebble_f16: Path, tmp_path: Path
):
    with pytest.raises(UsageError, match=why):
        make(pebble_f16, "q4_0", tmp_path, overrides=overrides)
    assert not list(tmp_path.iterdir())


def test_half_precision_is_the_export_itself_and_a_copy_of_anything_else(
    pebble_f16: Path, tmp_path: Path
):
    work = tmp_path / "job" / "work"
    work.mkdir(parents=True)
    foreign, _ = make(pebble_f16, "f16", work)
    assert foreign.read_bytes() == pebble_f16.read_bytes()
    assert foreign.stat().st_nlink == 1
    own = work.parent / "export.gguf"
    foreign.rename(own)
    make(own, "f16", work)
    assert own.stat().st_nlink == 2


def test_losses_on_pebble_come_in_order_and_the_matrix_lessens_them(
    pebble: Path,
    pebble_f16: Path,
    pebble_matrix: Path,
    pebble_texts: tuple[Path, Path],
    tmp_path: Path,
):
    """KL divergence from the half-precision file, on other questions than the matrix is from."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(pebble / "tokenizer.json"))
    ids = tokenizer.encode(pebble_texts[1].read_text(), add_special_tokens=False).ids
    pieces = [ids[i : i + _PIECE] for i in range(0, len(ids) - _PIECE, _PIECE)][:12]
    settings = {"context": _PIECE, "gpu_layers": 0}
    reference = scored(pebble_f16, *pieces, **settings)

    def lost(name: str, matrix: Path | None = None) -> float:
        made, _ = make(pebble_f16, name, tmp_path, matrix)
        return divergence(reference, scored(made, *pieces, **settings))

    order = ["q8_0", "q4_k_m", "q4_0"]
    losses = {name: lost(name) for name in order}
    assert sorted(losses, key=losses.__getitem__) == order, losses
    for name, loss in losses.items():
        limits = find_recipe(name).limits
        assert loss < limits.kl_mean
    assert lost("q4_0", pebble_matrix) < losses["q4_0"]


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
    call = partial(rounding_child.many_times, rows, ("q4_1", "iq3_s", "q5_1"), 3)
    assert run_child(call, "rounding", tmp_path) == 0.0


_USED = 2  # experts for each token


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixtral")
    model = make_random_model(folder / "model", SHAPES["mixtral"])
    export_f16(model, folder / "f16.gguf", Reference([], [], []), folder)
    return folder / "f16.gguf"


def test_each_expert_has_the_inputs_that_were_sent_to_it(mixtral: Path, tmp_path: Path):
    """The router, a matrix like others, sees every token that the experts share out."""
    text, out = tmp_path / "words.txt", tmp_path / "m.gguf"
    text.write_text("The quick brown fox jumps over the lazy dog. 12 + 30 = 42\n" * 30)
    run_child(partial(compute, mixtral, text, out, 1), what="", work=tmp_path)
    matrix = read_matrix(out)
    router = matrix.entries["blk.0.ffn_gate_inp.weight"]
    for name in ("gate", "up"):
        experts = matrix.entries[f"blk.0.ffn_{name}_exps.weight"]
        assert experts.sums.shape == (4, 256)
        assert experts.counts.sum() == _USED * router.counts[0]
        np.testing.assert_allclose(experts.sums.sum(axis=0), _USED * router.sums[0], rtol=1e-5)
    down = matrix.entries["blk.0.ffn_down_exps.weight"]
    assert down.sums.shape == (4, 192)
    assert down.counts.tolist() == matrix.entries["blk.0.ffn_up_exps.weight"].counts.tolist()
    assert check_fit(matrix, mixtral, out) == []
    quantize_gguf(mixtral, tmp_path / "small.gguf", find_recipe("q2_k_s"), tmp_path, out)
    types = {info.name: info.type_name for info in read_header(tmp_path / "small.gguf").tensors}
    assert types["blk.0.ffn_up_exps.weight"] == "Q2_K"


def test_tensors_whose_rows_do_not_fit_the_asked_type_are_named(mixtral: Path, tmp_path: Path):
    out = tmp_path / "out.gguf"
    overrides = {"ffn_.*_exps": "q4_k"}
    notes = quantize_gguf(mixtral, out, find_recipe("q8_0"), tmp_path, overrides=overrides)
    types = {info.name: info.type_name for info in read_header(out).tensors}
    assert types["blk.0.ffn_up_exps.weight"] == "Q4_K"
    assert types["blk.0.ffn_down_exps.weight"] == "Q5_0"
    assert notes[-1].startswith(
        "1 of 3 tensors with a type of their own did not get it, such as"
        " blk.0.ffn_down_exps.weight: q5_0 instead of q4_k"
    )
