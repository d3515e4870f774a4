"""Sources: folders, files and pickles, and folders that do not agree with themselves."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from quantize.errors import SourceError, ToolError, UsageError
from quantize.manifest import load_manifest
from quantize.options import SourceOptions
from quantize.source import open_source
from runtimes.errors import ModelError
from runtimes.models.gguf import read_header
from tests.quantize.conftest import run_quantize
from tests.quantize.entries import entry_in, manifest_of
from tests.quantize.hub.hubs import Notes, files_of, small_model
from tests.runtimes.models.split_gguf import split_gguf


@pytest.fixture(scope="module")
def small(pebble: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(pebble, tmp_path_factory.mktemp("small") / "tiny")


@pytest.fixture
def folder(small: Path, home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small, tmp_path / "tiny"))


def change(folder: Path, name: str = "config.json", **settings: Any) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def test_a_float_gguf_file(pebble_f16: Path, pebble: Path, tmp_path: Path):
    source = open_source(str(pebble_f16))
    assert (source.kind, source.name) == ("gguf", "pebble")
    assert source.weights == (pebble_f16,)
    assert source.bytes == pebble_f16.stat().st_size
    original = open_source(str(pebble))
    assert 0.9 * original.parameters < source.parameters < 1.1 * original.parameters
    # The file's content counts, whatever it is called.
    other = Path(shutil.copyfile(pebble_f16, tmp_path / "renamed.gguf"))
    assert open_source(str(other)).fingerprint().hash == source.fingerprint().hash
    with other.open("r+b") as file:
        file.truncate(other.stat().st_size - 100)
    with pytest.raises(SourceError, match="truncated"):
        open_source(str(other))
    with pytest.raises(UsageError, match="revision belongs to a model on the hub"):
        open_source(SourceOptions(str(pebble_f16), revision="v1"))


@pytest.mark.parametrize("first", [0, 10])
def test_a_part_of_a_gguf_file_is_refused_with_the_way_out(
    pebble_built: Path, tmp_path: Path, first: int
):
    """Also the first part without a tensor, and the others, which do not name an architecture."""
    parts = split_gguf(pebble_built / "pebble-q8_0.gguf", tmp_path, [first, 10])
    for part in parts:
        with pytest.raises(UsageError, match="one of the 3 parts of a split model") as raised:
            open_source(str(part))
        assert f"--merge {parts[0]} " in str(raised.value)
    with pytest.raises(UsageError, match=f"name the file, such as {parts[0]}"):
        open_source(str(tmp_path))


def test_a_quantized_gguf_file_is_refused_unless_that_is_allowed(
    pebble_built: Path, pebble_f16: Path
):
    from quantize.resolve import resolve

    path = resolve(pebble_built, recipe="q4_k_m")
    kinds = [tensor.type_name for tensor in read_header(path).tensors]
    with pytest.raises(UsageError, match=r"quantized already: .* Give the f16") as error:
        open_source(str(path))
    for kind in set(kinds):  # each with its own number
        assert re.search(rf"\b{kinds.count(kind)} {kind}\b", str(error.value))
    allowed = open_source(SourceOptions(str(path), allow_requantize=True))
    assert f"{kinds.count('Q4_K')} Q4_K" in allowed.quantized
    assert not open_source(SourceOptions(str(pebble_f16), allow_requantize=True)).quantized


@pytest.mark.parametrize("shards", [1, 2])
def test_pickled_weights(folder: Path, shards: int):
    import torch
    from safetensors.torch import load_file

    expected = load_file(folder / "model.safetensors")
    plain = open_source(str(folder))
    (folder / "model.safetensors").unlink()
    parts = [dict(list(expected.items())[i::shards]) for i in range(shards)]
    # Tied weights share their memory, and slices look into more than they show.
    parts[0]["lm_head.weight"] = next(iter(parts[0].values()))
    names = [f"pytorch_model-{i + 1:05d}-of-{shards:05d}.bin" for i in range(shards)]
    names = names if shards > 1 else ["pytorch_model.bin"]
    for name, part in zip(names, parts, strict=True):
        torch.save(part, folder / name)
    if shards > 1:
        places = {key: name for name, part in zip(names, parts, strict=True) for key in part}
        index = {"weight_map": places}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(SourceError, match="--allow-pickle"):
        open_source(str(folder))
    notes = Notes()
    folder = folder.rename(folder.with_name("weights"))  # as what is made of it in the cache
    asked = SourceOptions(str(folder), allow_pickle=True)
    source = open_source(asked, notes)
    assert (source.name, source.parameters) == ("weights", plain.parameters)
    assert source.default_out == folder.with_name("weights-built")
    got = {key: value for path in source.weights for key, value in load_file(path).items()}
    assert set(got) == set(expected)
    assert all(torch.equal(got[key], expected[key]) for key in got)
    assert not list(source.folder.glob("*.bin*"))
    assert notes.stages == ["converting pickled weights to safetensors"]
    notes = Notes()
    assert open_source(asked, notes).fingerprint() == source.fingerprint()
    assert notes.stages == []  # once


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("ran"),))


def test_a_pickle_that_would_run_code(folder: Path, monkeypatch: pytest.MonkeyPatch):
    import torch

    monkeypatch.chdir(folder)
    (folder / "model.safetensors").unlink()
    torch.save({"x": Evil()}, folder / "pytorch_model.bin")
    with pytest.raises(ToolError, match="holds more than tensors"):
        open_source(SourceOptions(str(folder), allow_pickle=True))
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"hidden_size": 640}, r"says hidden size 640, the embedding's columns are 512"),
        ({"vocab_size": 999}, r"says vocabulary 999, the embedding's rows are 1,024"),
        ({"num_hidden_layers": 3}, r"says 3 layers, the weights have 1; layer 1 is not there"),
        ({"num_hidden_layers": 10**18}, "layer 1 is not there"),  # without an end, and no work
        ({"quantization_config": {"quant_method": "awq"}}, r"quantized already \(awq\)"),
        ({"architectures": []}, r"config\.json names no architecture"),
    ],
)
def test_a_configuration_of_another_model(folder: Path, settings: dict[str, Any], words: str):
    change(folder, **settings)
    with pytest.raises(SourceError, match=words):
        open_source(str(folder))


def test_a_whole_folder_and_what_may_be_wrong_with_its_files(folder: Path):
    with safe_open(folder / "model.safetensors", "numpy") as file:
        counted = sum(file.get_tensor(name).size for name in file.keys())  # noqa: SIM118
    source = open_source(str(folder))
    assert (source.name, source.architecture) == ("tiny", "Qwen2ForCausalLM")
    assert source.parameters == counted
    weights, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    whole, before = weights.read_bytes(), source.fingerprint()
    assert open_source(str(folder)).fingerprint() == before
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert open_source(str(folder)).fingerprint().hash != before.hash
    damaged = (*(whole[:n] for n in (0, 4, 100, len(whole) // 2, -1)), b"\n" + bytes(7) + b"{" * 10)
    for data in damaged:
        weights.write_bytes(data)
        with pytest.raises(SourceError, match=r"truncated|damaged"):
            open_source(str(folder))
    weights.write_bytes(whole)
    second = "model-00002-of-00002.safetensors"
    for places, words in (
        ({"blk.7": weights.name}, r"lists blk\.7.*in none of its weight files"),
        ({"a": weights.name, "b": second}, f"lacks 1 of 2 .* {second}"),
        ({"a": "../../etc/passwd"}, "outside"),
    ):
        index.write_text(json.dumps({"weight_map": places}))
        with pytest.raises(SourceError, match=words):
            open_source(str(folder))
    index.unlink()
    weights.rename(folder / "pytorch_model.bin")
    with pytest.raises(SourceError, match=r"pytorch_model\.bin is in pickle form"):
        open_source(str(folder))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(SourceError, match="no tokenizer"):
        open_source(str(folder))


@pytest.mark.parametrize(
    ("name", "words"),
    [("a-bare-word", "written ORG/NAME"), ("config.json", "is a file"), ("none", "no folder")],
)
def test_what_is_no_folder(folder: Path, name: str, words: str):
    with pytest.raises(UsageError, match=words):
        open_source(name if "-" in name else str(folder / name))


def test_integer_weights(folder: Path):
    import numpy as np
    from safetensors.numpy import save_file

    tensors = {"model.layers.0.mlp.up_proj.weight": np.zeros((8, 8), np.int8)}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(SourceError, match="of type I8"):
        open_source(str(folder))


def test_code_of_the_models_own(folder: Path):
    change(folder, auto_map={"AutoModelForCausalLM": "modeling_own.OwnLM"})
    notes = Notes()
    open_source(SourceOptions(str(folder)), notes)  # Qwen2 is built in, and no code is there
    assert "built-in" in notes.notes[0]
    (folder / "modeling_own.py").write_text("raise SystemExit")
    with pytest.raises(UsageError, match=r"modeling_own\.py.*--trust-remote-code"):
        open_source(str(folder))
    assert open_source(SourceOptions(str(folder), trust_remote_code=True)).trust_remote_code
    (folder / "modeling_own.py").unlink()
    change(folder, architectures=["OwnForCausalLM"])
    with pytest.raises(UsageError, match=r"needs Python code .* in config\.json.*--trust"):
        open_source(str(folder))
    change(folder, architectures=["Qwen2ForCausalLM"], auto_map=None)
    change(folder, "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Tokenizer", None]})
    with pytest.raises(UsageError, match=r"auto_map in tokenizer_config\.json"):
        open_source(str(folder))


def test_the_fingerprint_follows_every_file_that_counts(folder: Path):
    before = open_source(str(folder)).fingerprint().hash
    for name in files_of(folder):
        if name.endswith((".json", ".jinja")):
            kept = (folder / name).read_bytes()
            (folder / name).write_bytes(kept + b"\n")
            assert open_source(str(folder)).fingerprint().hash != before, name
            (folder / name).write_bytes(kept)
    (folder / "README.md").write_text("words")
    assert open_source(str(folder)).fingerprint().hash == before


def test_a_tokenizer_with_code_of_its_own_is_used(sources: dict[str, Path], tmp_path: Path):
    """Where the user trusts it: the token gate, the builder and what measures load it alike."""
    model = Path(shutil.copytree(sources["llama"], tmp_path / "own"))
    (model / "tokenization_own.py").write_text(
        "from transformers import PreTrainedTokenizerFast\n"
        "class OwnTokenizer(PreTrainedTokenizerFast):\n"
        "    pass\n"
    )
    own = {"AutoTokenizer": [None, "tokenization_own.OwnTokenizer"]}
    change(model, "tokenizer_config.json", auto_map=own, tokenizer_class="OwnTokenizer")
    question = {"messages": [{"role": "user", "content": "one"}], "max_tokens": 2}
    graded = json.dumps({"task": "t", "answer": "x", **question})
    (model / "graded.jsonl").write_text(graded + "\n")
    # The model is random, and 32 tokens say nothing on quality.
    command = (model, "--recipe", "onnx-int8", "--limit", 32, "--no-gates")
    assert run_quantize(*command, check=False).returncode == 2
    run_quantize(*command, "--trust-remote-code")
    manifest = load_manifest(tmp_path / "own-built")
    (entry,) = manifest.files
    assert manifest.model.quality is not None
    assert (entry.recipe, entry.token_parity.differences) == ("onnx-int8", 0)


@pytest.mark.parametrize("allow", [False, True])
@pytest.mark.parametrize("name", ["../theirs", "/etc/hostname", "a/b", "..", "", "x\x1b", "\ud800"])
def test_an_index_that_names_files_elsewhere(folder: Path, name: str, allow: bool):
    (folder.parent / "theirs").write_bytes((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors").unlink()
    index = "pytorch_model.bin.index.json" if allow else "model.safetensors.index.json"
    (folder / index).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(SourceError):
        open_source(SourceOptions(str(folder), allow_pickle=allow))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        "7",
        "[" * 100_000,
        '{"a":' * 500 + "}" * 500,
        '{"weight_map": {"a": ["x"]}}',
    ],
)
def test_json_that_is_nested_or_of_another_kind(folder: Path, name: str, text: str):
    (folder / name).write_text(text)
    with pytest.raises(SourceError):
        open_source(str(folder))


def test_a_folder_of_huggingface_hubs_cache(folder: Path, tmp_path: Path):
    """All of its files are links to blobs elsewhere in the cache."""
    from quantize.manifest import is_whole, write_manifest
    from quantize.resolve import resolve

    cache = tmp_path / "models--org--tiny"
    snapshot = cache / "snapshots" / ("c" * 40)
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    (folder / "tiny.gguf").write_bytes(b"GGUF")
    entry = entry_in(folder, "q8_0", "tiny.gguf")
    write_manifest(folder, manifest_of(entry))
    for number, path in enumerate(folder.iterdir()):
        path.rename(cache / "blobs" / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    assert open_source(str(snapshot)).parameters > 0
    assert resolve(snapshot) == snapshot / "tiny.gguf"
    assert is_whole(snapshot, entry)
    assert resolve(snapshot / "tiny.gguf") == snapshot / "tiny.gguf"
    # The cache of somebody who would have the rest of the disk read.
    (cache / "blobs").rename(tmp_path / "elsewhere")
    (cache / "blobs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match="outside"):
        resolve(snapshot)


_ODD = ("x", [1], {"a": 1}, True, None, -5, 0, 10**30, 1e300, "9" * 50)
_NUMBERS = (
    *("vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size"),
    *("partial_rotary_factor", "intermediate_size", "num_experts", "max_position_embeddings"),
    *("sliding_window", "text_config", "rope_parameters", "layer_types", "num_hidden_layers"),
    *("quantization_config", "tie_word_embeddings", "auto_map", "model_type"),
)


@pytest.mark.parametrize("name", _NUMBERS)
def test_settings_of_any_type(folder: Path, name: str):
    """Sizes are told beforehand, or the configuration is refused: nothing else is raised."""
    from quantize.build.preflight import _vocabulary
    from quantize.gguf.converter import _lost_window
    from quantize.gguf.quantize import _write_shapes
    from quantize.onnx.builder import _positions
    from quantize.source.shapes import shapes_of

    for value in _ODD:
        change(folder, **{"sliding_window": 10, name: value})
        try:
            source = open_source(str(folder))
        except (SourceError, UsageError):
            continue
        assert _vocabulary(source) > 0
        shapes = shapes_of(source)
        assert _positions(shapes) >= 0
        assert _write_shapes(folder.parent / "shapes", shapes) > 0
        if name in ("sliding_window", "layer_types", "max_position_embeddings"):
            change(folder, max_position_embeddings=1)
            assert _lost_window(folder, folder / "none") == []


@pytest.mark.parametrize("name", ["x" * 5000, "model.layers.0." + ".lora_" * 9000])
def test_tensors_with_names_without_an_end(folder: Path, name: str):
    import numpy as np
    from safetensors.numpy import save_file

    save_file({name: np.zeros((2, 2), np.float32)}, folder / "model.safetensors")
    with pytest.raises(SourceError, match="more than 1024 characters"):
        open_source(str(folder))
