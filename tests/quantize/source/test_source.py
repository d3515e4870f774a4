from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from quantize.errors import SourceError, UsageError
from quantize.source import open_source


@pytest.fixture
def folder(sources: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(sources["qwen2"], tmp_path / "model"))


def test_a_whole_folder(folder: Path):
    import safetensors

    source = open_source(str(folder))
    with safetensors.safe_open(folder / "model.safetensors", "numpy") as file:
        counted = sum(file.get_tensor(name).size for name in file.keys())  # noqa: SIM118
    assert (source.name, source.architecture) == ("model", "Qwen2ForCausalLM")
    assert source.parameters == counted


def test_the_fingerprint_follows_the_weights(folder: Path):
    before = open_source(str(folder)).fingerprint()
    assert open_source(str(folder)).fingerprint() == before
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([last ^ 1]))
    assert open_source(str(folder)).fingerprint().hash != before.hash


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, -1])
def test_truncated_weights(folder: Path, keep: float):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)] if keep == 0.5 else data[: int(keep)])
    with pytest.raises(SourceError, match=r"truncated|damaged"):
        open_source(str(folder))


def test_a_header_that_is_not_json(folder: Path):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 10) + b"{" * 10)
    with pytest.raises(SourceError, match=r"damaged .*header"):
        open_source(str(folder))


def test_a_missing_shard_is_named(folder: Path):
    weights = folder / "model.safetensors"
    weights.rename(folder / "model-00001-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    with pytest.raises(SourceError, match=r"lacks 1 of 2 .* model-00002-of-00002"):
        open_source(str(folder))
    index.write_text(json.dumps({"weight_map": {"a": "../../etc/passwd"}}))
    with pytest.raises(SourceError, match="outside"):
        open_source(str(folder))


def test_a_missing_tokenizer(folder: Path):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(SourceError, match="no tokenizer"):
        open_source(str(folder))


def test_weights_in_pickle_form_only(folder: Path):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(SourceError, match=r"pytorch_model\.bin is in pickle form"):
        open_source(str(folder))


@pytest.mark.parametrize("text", [None, "{", "[]", "{}"])
def test_a_bad_configuration(folder: Path, text: str | None):
    (folder / "config.json").unlink()
    if text is not None:
        (folder / "config.json").write_text(text)
    with pytest.raises(SourceError, match=r"config\.json"):
        open_source(str(folder))


def test_what_is_no_folder(folder: Path):
    with pytest.raises(UsageError, match="written ORG/NAME"):
        open_source("a-bare-word")
    with pytest.raises(UsageError, match="is a file"):
        open_source(str(folder / "config.json"))
    with pytest.raises(UsageError, match="no folder"):
        open_source(str(folder / "nothing"))
