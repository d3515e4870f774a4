from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from quantize.errors import SourceError, ToolError, UsageError
from quantize.lora import merge_lora, open_adapter, require_match
from quantize.source import SourceModel, open_source
from tests.quantize.hub.fakehub import FakeHub
from tests.quantize.hub.hubs import Notes, files_of

TOKENS = [[1, 5, 9, 33, 70, 2]]


@pytest.fixture(scope="module")
def base(sources: dict[str, Path]) -> SourceModel:
    return open_source(str(sources["qwen2"]))


@pytest.fixture(scope="module")
def adapter(base: SourceModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter as training leaves it, B no longer zero, and peft's own logits beside it."""
    return make_adapter(base.folder, tmp_path_factory.mktemp("lora") / "adapter")


def make_adapter(base: Path, folder: Path, **settings: object) -> Path:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_pretrained(base)
    asked = {"r": 4, "target_modules": ["q_proj", "up_proj"], "lora_alpha": 16, **settings}
    combined = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **asked))
    with torch.no_grad():
        for name, weight in combined.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.05)
    combined.eval()
    combined.save_pretrained(folder)
    with torch.no_grad():
        logits = combined(torch.tensor(TOKENS)).logits
    torch.save(logits, folder.with_suffix(".pt"))
    return folder


def merge(base: SourceModel, adapter: Path, folder: Path) -> SourceModel:
    opened = open_adapter(str(adapter), Notes())
    return merge_lora(base, opened, folder / "merged", folder, Notes())


def logits_of(folder: Path):
    import torch
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder)(torch.tensor(TOKENS)).logits


def test_the_merged_model_is_what_peft_computes(base: SourceModel, adapter: Path, tmp_path: Path):
    import torch

    merged = merge(base, adapter, tmp_path)
    expected = torch.load(adapter.with_suffix(".pt"), weights_only=True)
    got = logits_of(merged.folder)
    assert (got - expected).abs().max() < 1e-4
    assert (logits_of(base.folder) - expected).abs().max() > 0.1  # the adapter does something
    assert (merged.name, merged.lora, merged.architecture) == (
        "qwen2",
        "adapter",
        base.architecture,
    )
    assert merged.parameters == base.parameters
    assert merged.default_out == base.default_out
    assert merged.fingerprint().hash != base.fingerprint().hash
    assert merged.fingerprint().lora == "adapter"
    tokenizer = "tokenizer.json"
    assert (merged.folder / tokenizer).read_bytes() == (base.folder / tokenizer).read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["merged"]


def test_an_adapter_of_another_model(
    base: SourceModel, sources: dict[str, Path], adapter: Path, tmp_path: Path
):
    other = Path(shutil.copytree(adapter, tmp_path / "other"))
    config = json.loads((other / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "org/quite-another-7b"
    (other / "adapter_config.json").write_text(json.dumps(config))
    gemma = open_source(str(sources["gemma3"]))
    tensors = {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (4, 512)}
    write_tensors(other, tensors)
    for model in (base, gemma):
        with pytest.raises(SourceError, match=r"does not fit .* has 512; .* org/quite-another-7b"):
            require_match(open_adapter(str(other), Notes()), model)
    write_tensors(
        other, {"base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight": (4, 256)}
    )
    with pytest.raises(SourceError, match=r"has no model\.layers\.9\.self_attn\.q_proj"):
        require_match(open_adapter(str(other), Notes()), base)


def test_weights_that_would_find_no_place(base: SourceModel, adapter: Path, tmp_path: Path):
    """peft leaves them out silently."""
    from safetensors.numpy import load_file, save_file

    odd = Path(shutil.copytree(adapter, tmp_path / "odd"))
    tensors = load_file(odd / "adapter_model.safetensors")
    name = next(name for name in tensors if "layers.1." in name)
    tensors[name.replace("self_attn", "cross_attn").replace("mlp", "mlp2")] = tensors.pop(name)
    save_file(tensors, odd / "adapter_model.safetensors")
    with pytest.raises(ToolError, match="which has no model"):
        merge(base, odd, tmp_path)


def test_what_is_no_adapter(base: SourceModel, adapter: Path, tmp_path: Path):
    with pytest.raises(SourceError, match="adapter_config"):
        open_adapter(str(base.folder), Notes())
    with pytest.raises(UsageError, match="not a folder"):
        open_adapter(str(tmp_path / "nothing"), Notes())
    pickled = Path(shutil.copytree(adapter, tmp_path / "pickled"))
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    with pytest.raises(SourceError, match="pickle"):
        open_adapter(str(pickled), Notes())


def test_an_adapter_with_a_larger_vocabulary(base: SourceModel, tmp_path: Path):
    """Trained with new tokens: embedding and tokenizer are the adapter's."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    grown = tmp_path / "grown"
    model = AutoModelForCausalLM.from_pretrained(base.folder)
    tokenizer = AutoTokenizer.from_pretrained(base.folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|new|>"]})
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(grown)
    folder = make_adapter(
        grown, tmp_path / "adapter", modules_to_save=["embed_tokens"], ensure_weight_tying=True
    )
    tokenizer.save_pretrained(folder)
    merged = merge(base, folder, tmp_path)
    expected = torch.load(folder.with_suffix(".pt"), weights_only=True)
    assert (logits_of(merged.folder) - expected).abs().max() < 1e-4
    assert "<|new|>" in (merged.folder / "tokenizer.json").read_text()
    assert json.loads((merged.folder / "config.json").read_text())["vocab_size"] == len(tokenizer)


def test_an_adapter_from_the_hub(hub: FakeHub, base: SourceModel, adapter: Path):
    hub.add("org/style", {**files_of(adapter), "optimizer.pt": b"never fetched" * 20})
    opened = open_adapter("org/style", Notes())
    require_match(opened, base)
    assert not (opened.folder / "optimizer.pt").exists()


def write_tensors(folder: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    save_file(tensors, folder / "adapter_model.safetensors")
