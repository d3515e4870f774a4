"""The importance matrix: computed, read back, kept, and of use."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from quantize.errors import UsageError
from quantize.gguf.imatrix import CHUNK, check_fit, chunked, prepare_imatrix
from quantize.gguf.imatrixfile import ImatrixEntry, ImportanceMatrix, read_matrix, write_matrix
from quantize.source import open_source
from tests.quantize.hub.hubs import Notes

# Channels of Hugging Face's Llama by the weight tensor that reads them.
_INPUTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def a_matrix(seed: int = 0) -> ImportanceMatrix:
    rng = np.random.default_rng(seed)
    entries = {
        f"blk.{i}.ffn_up.weight": ImatrixEntry(
            rng.random((matrices, 96), np.float32) * 100, np.full(matrices, 7, np.float32)
        )
        for i, matrices in enumerate((1, 1, 3))
    }
    return ImportanceMatrix(entries, "words.txt", 3, 512)


def test_a_file_read_back_equals_what_was_written(tmp_path: Path):
    matrix = a_matrix()
    write_matrix(tmp_path / "m.gguf", matrix)
    again = read_matrix(tmp_path / "m.gguf")
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "m.gguf").read_bytes()[:-200])
    with pytest.raises(UsageError, match="truncated"):
        read_matrix(tmp_path / "cut.gguf")
    assert (again.chunks, again.chunk_size) == (3, 512)
    assert again.entries.keys() == matrix.entries.keys()
    for name, entry in matrix.entries.items():
        np.testing.assert_array_equal(again.entries[name].sums, entry.sums)
        np.testing.assert_array_equal(again.entries[name].counts, entry.counts)


def test_an_expert_that_was_never_used_counts_as_one():
    entry = ImatrixEntry(np.array([[2, 4], [0, 0]], np.float32), np.array([2, 0], np.float32))
    assert entry.means.tolist() == [1, 2, 1, 1]


def legacy(*, cut: int = 0) -> bytes:
    """A file as llama-imatrix wrote it before GGUF: means times calls."""
    name = b"blk.0.ffn_up.weight"
    head = struct.pack("<ii", 1, len(name)) + name + struct.pack("<ii", 4, 3)
    body = struct.pack("<3f", 4.0, 8.0, 2.0) + struct.pack("<ii", 4, 9) + b"words.txt"
    data = head + body
    return data[: len(data) - cut]


@pytest.mark.parametrize("cut", [0, 17])  # the end may be missing
def test_the_older_format_is_read(tmp_path: Path, cut: int):
    (tmp_path / "m.dat").write_bytes(legacy(cut=cut))
    matrix = read_matrix(tmp_path / "m.dat")
    assert matrix.entries["blk.0.ffn_up.weight"].means.tolist() == [1.0, 2.0, 0.5]
    assert (matrix.text, matrix.chunks) == (("", 0) if cut else ("words.txt", 4))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (legacy(cut=20), "ends too early"),
        (bytes(8), "begins with 0 entries"),
        (b"GGUF" + bytes(8), "version 0"),
        (legacy().replace(struct.pack("<f", 8.0), struct.pack("<f", np.nan)), "not numbers"),
    ],
)
def test_damage_is_told(tmp_path: Path, data: bytes, why: str):
    (tmp_path / "m").write_bytes(data)
    with pytest.raises(UsageError, match=why):
        read_matrix(tmp_path / "m")


def test_it_equals_what_torch_sees(
    pebble_matrix: Path, pebble: Path, pebble_texts: tuple[Path, Path]
):
    """Computed again from the original model's layers, without llama.cpp: tokens, chunks, BOS and
    every channel of every tensor."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(pebble)
    network = AutoModelForCausalLM.from_pretrained(pebble, dtype=torch.float32).eval()
    ids = tokenizer(pebble_texts[0].read_text(), add_special_tokens=False)["input_ids"]
    chunks = chunked(ids, CHUNK, tokenizer.bos_token_id)
    sums: dict[str, torch.Tensor] = {}

    def watch(name: str) -> object:
        def hook(_module: object, inputs: tuple[torch.Tensor, ...]) -> None:
            squares = inputs[0].double().square().sum(dim=(0, 1))
            sums[name] = sums.get(name, 0) + squares

        return hook

    for i, layer in enumerate(network.model.layers):
        for name, path in _INPUTS.items():
            layer.get_submodule(path).register_forward_pre_hook(watch(f"blk.{i}.{name}.weight"))
    with torch.inference_mode():
        for chunk in chunks:
            network(torch.tensor([chunk]))

    found = read_matrix(pebble_matrix)
    assert found.entries.keys() == sums.keys()
    assert (found.chunks, found.chunk_size) == (len(chunks), CHUNK)
    count = sum(map(len, chunks))
    for name, entry in found.entries.items():
        assert entry.counts.tolist() == [count], name
        # llama.cpp rounds activations to half precision before each product.
        np.testing.assert_allclose(entry.means, sums[name].numpy() / count, rtol=0.01)


def test_a_computed_matrix_is_kept_and_used_again(
    pebble: Path,
    pebble_f16: Path,
    pebble_texts: tuple[Path, Path],
    home: Path,
    tmp_path: Path,
):
    text = tmp_path / "words.txt"
    text.write_text(pebble_texts[0].read_text()[:4000])
    first, second = Notes(), Notes()
    made = prepare_imatrix(text, open_source(str(pebble)), pebble_f16, tmp_path, first)
    (kept,) = (home / "cache" / "imatrix").iterdir()
    assert kept.read_bytes() == made.read_bytes()
    assert "tokens" in first.notes[0]  # so short a text is remarked upon
    made.unlink()
    # Recognisable: if it were computed again, this would be gone.
    marked = read_matrix(kept)
    write_matrix(kept, ImportanceMatrix(marked.entries, "marked", 1, 2))
    again = prepare_imatrix(text, open_source(str(pebble)), pebble_f16, tmp_path, second)
    assert read_matrix(again).chunk_size == 2
    assert second.notes == ["the importance matrix of words.txt is the one computed before"]
    kept.write_bytes(kept.read_bytes()[:-100])
    whole = prepare_imatrix(text, open_source(str(pebble)), pebble_f16, tmp_path, Notes())
    assert read_matrix(whole).chunk_size != 2


def test_a_cache_that_cannot_be_written_costs_only_the_next_run(
    pebble: Path,
    pebble_f16: Path,
    pebble_texts: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    (tmp_path / "home").write_text("a file where the folder should be")
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "home"))
    notes = Notes()
    text = tmp_path / "words.txt"
    text.write_text(pebble_texts[0].read_text()[:4000])
    made = prepare_imatrix(text, open_source(str(pebble)), pebble_f16, tmp_path, notes)
    assert read_matrix(made).chunks > 0
    assert notes.notes[-1].startswith("the importance matrix is not kept")


def test_a_ready_file_is_checked_against_the_model(
    pebble_matrix: Path, pebble: Path, pebble_f16: Path, tmp_path: Path
):
    ready = prepare_imatrix(pebble_matrix, open_source(str(pebble)), pebble_f16, tmp_path, Notes())
    found, made = read_matrix(pebble_matrix), read_matrix(ready)
    for name, entry in found.entries.items():
        np.testing.assert_array_equal(made.entries[name].means, entry.means)
    with pytest.raises(UsageError, match=r"blk\.0\.ffn_up\.weight has 96 values there, and 256"):
        check_fit(a_matrix(), pebble_f16, pebble_matrix)
    other = ImportanceMatrix({"blk.99.x.weight": next(iter(found.entries.values()))})
    with pytest.raises(UsageError, match="names no tensor of this one"):
        check_fit(other, pebble_f16, pebble_matrix)
    some = {n: e for n, e in found.entries.items() if "ffn" not in n}
    (note,) = check_fit(ImportanceMatrix(some), pebble_f16, pebble_matrix)
    assert "says nothing on 18 of 42 tensors" in note


def test_texts_that_will_not_do(pebble: Path, pebble_f16: Path, tmp_path: Path):
    short = tmp_path / "short.txt"
    short.write_text("too short")
    for given, why in (
        (tmp_path / "missing.txt", r"missing\.txt cannot be read"),
        (short, r"short\.txt has \d+ tokens, too few"),
        (pebble_f16, "a GGUF file of another kind"),
    ):
        with pytest.raises(UsageError, match=why):
            prepare_imatrix(given, open_source(str(pebble)), pebble_f16, tmp_path, Notes())
