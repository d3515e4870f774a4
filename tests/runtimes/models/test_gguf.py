"""The header reader against llama.cpp's own view of the same file."""

from __future__ import annotations

import pytest

from runtimes.errors import ModelError
from runtimes.models.gguf import read_header
from runtimes.models.registry import backend_of, read_model


def test_header_promises_exactly_the_file(gguf):
    header = read_header(gguf)
    end = header.data_begins + max(one.offset + one.nbytes for one in header.tensors)
    padding = gguf.stat().st_size - end  # after the last tensor
    assert 0 <= padding < 64
    assert header.metadata["general.architecture"] == "llama"
    assert {t.type_name for t in header.tensors} >= {"Q8_0", "F32"}


def test_model_file_agrees_with_the_config(gguf, pebble, pebble_built):
    import json

    config = json.loads((pebble / "config.json").read_text())
    for model in (read_model(gguf), read_model(pebble_built / "onnx-int8")):
        assert model.layers == config["num_hidden_layers"]
        assert model.heads == config["num_attention_heads"]
        assert model.kv_heads == config["num_key_value_heads"]
        assert model.head_dim * model.heads == config["hidden_size"]
        assert model.context_length == config["max_position_embeddings"]
        assert model.vocab_size == config["vocab_size"]
        assert model.sliding_window is None
        assert model.chat_template


def test_any_cut_is_noticed(gguf, tmp_path):
    data = gguf.read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in (0, 3, 4, 8, 24, 100, 5000, len(data) // 2, len(data) - 100):
        cut.write_bytes(data[:size])
        with pytest.raises(ModelError):
            read_model(cut)


def test_other_files_are_named_for_what_they_are(tmp_path):
    text = tmp_path / "notes.gguf"
    text.write_text("not a model, just a text that is long enough for a header")
    with pytest.raises(ModelError, match="not a GGUF file"):
        read_model(text)
    with pytest.raises(ModelError, match="not an ONNX model folder"):
        read_model(tmp_path)


def test_the_first_bytes_tell_what_the_whole_file_does(gguf):
    data, whole = gguf.read_bytes(), read_model(gguf)
    tokens = data.index(b"tokenizer.ggml.tokens") + 200
    for size in (tokens, len(data)):
        seen = backend_of(whole).peek(data[:size], gguf, len(data))
        assert seen is not None
        same = "architecture context_length layers heads kv_heads head_dim vocab_size kv_elements"
        for name in f"{same} hidden feed_forward nbytes".split():
            assert getattr(seen, name) == getattr(whole, name)
    assert seen.merges == whole.merges


def test_first_bytes_that_do_not_tell_or_are_damaged(gguf):
    data, backend = gguf.read_bytes(), backend_of(read_model(gguf))
    for size in (0, 3, 4, 24, 60):
        assert backend.peek(data[:size], gguf, len(data)) is None
    for byte in range(0, 400, 3):
        backend.peek(data[:byte] + b"\xff" * 8 + data[byte + 8 : 4000], gguf, len(data))
