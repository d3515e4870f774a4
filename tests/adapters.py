"""LoRA adapters with random weights, as peft writes them, strong enough to change every answer."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

MODULES = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")
NAMES = {"self_attn.q_proj": "attn_q", "mlp.down_proj": "ffn_down"}


def make_adapter(
    base: Path, folder: Path, seed: int = 0, modules: tuple[str, ...] = MODULES, **settings: object
) -> Path:
    """An adapter of the model in ``base``; ``settings`` are further ones of peft's."""
    rng, rank = np.random.default_rng(seed), 4
    tensors = {}
    for name, weight in load_file(base / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module.endswith(modules):
            rows, columns = weight.shape
            for side, shape in (("A", (rank, columns)), ("B", (rows, rank))):
                matrix = rng.normal(0, 0.12, shape).astype(np.float32)
                tensors[f"base_model.model.{module}.lora_{side}.weight"] = matrix
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "pebble",
        "r": rank,
        "lora_alpha": 8,
        "target_modules": sorted({name.split(".")[-3] for name in tensors}),
        **settings,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def write_adapter(
    base: Path, path: Path, seed: int, names: Mapping[str, str] = NAMES, rank: int = 4
) -> Path:
    """A random adapter of the Llama in ``base`` as a GGUF file."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, weight in load_file(base / "model.safetensors").items():
        layer, _, module = name.removeprefix("model.layers.").partition(".")
        if short := names.get(module.removesuffix(".weight")):
            for side, shape in (("a", (rank, weight.shape[1])), ("b", (weight.shape[0], rank))):
                matrix = rng.normal(0, 0.1, shape).astype("<f4")
                tensors[f"blk.{layer}.{short}.weight.lora_{side}"] = matrix

    def text(said: str) -> bytes:
        return struct.pack("<Q", len(said)) + said.encode()

    said = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(said) + 1)
    head += b"".join(text(key) + struct.pack("<I", 8) + text(value) for key, value in said.items())
    head += text("adapter.lora.alpha") + struct.pack("<If", 6, 8.0)
    at, data = 0, b""
    for name, matrix in tensors.items():
        rows, columns = matrix.shape
        head += text(name) + struct.pack("<IQQIQ", 2, columns, rows, 0, at)
        part = matrix.tobytes()
        part += bytes(-len(part) % 32)
        at, data = at + len(part), data + part
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path
