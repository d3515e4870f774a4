"""LoRA adapters with random weights, as peft writes them, strong enough to change every answer."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.fuzz.headers import Gguf
from tests.runtimes.models.sparse_gguf import padded, said

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
    tensors, data = [], b""
    for name, weight in load_file(base / "model.safetensors").items():
        layer, _, module = name.removeprefix("model.layers.").partition(".")
        if short := names.get(module.removesuffix(".weight")):
            for side, (rows, columns) in (
                ("a", (rank, weight.shape[1])),
                ("b", (weight.shape[0], rank)),
            ):
                part = f"blk.{layer}.{short}.weight.lora_{side}".encode()
                tensors.append((part, (columns, rows), 0, len(data)))
                matrix = rng.normal(0, 0.1, (rows, columns)).astype("<f4").tobytes()
                data += matrix.ljust(padded(len(matrix)), b"\0")
    texts = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}
    pairs = {**texts, "adapter.lora.alpha": ("f", 8.0)}.items()
    head = Gguf([(key.encode(), *said(value)) for key, value in pairs], tensors).encoded()
    path.write_bytes(head.ljust(padded(len(head)), b"\0") + data)
    return path
