"""The model's shape, one forward pass over packed rows, and how it is saved."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from pebble_train.packing import Batch, attention_mask
from pebble_train.tokenizer import VOCAB_SIZE


def config(end: int, eos: int, bos: int = 1) -> LlamaConfig:
    """Hidden and intermediate sizes are multiples of 256, so that K-quants apply to every matrix."""
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=1024,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        attention_bias=False,
        bos_token_id=bos,
        eos_token_id=end,
        pad_token_id=eos,
    )


def build(end: int, eos: int, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config(end, eos))
    model.set_attn_implementation("sdpa")
    return model


def wanted_logits(model: LlamaForCausalLM, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and targets of the positions where the assistant speaks; the others need no output layer."""
    hidden = model.model(
        input_ids=batch.ids,
        attention_mask=attention_mask(batch),
        position_ids=batch.positions,
        use_cache=False,
    ).last_hidden_state
    asked = batch.targets >= 0
    return model.lm_head(hidden[asked]), batch.targets[asked]


def loss_of(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    logits, targets = wanted_logits(model, batch)
    return functional.cross_entropy(logits.float(), targets)


def save_model(model: LlamaForCausalLM, folder: Path, end: int, eos: int) -> None:
    """float16 safetensors, without the output layer: it is the embedding."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.detach().to(torch.float16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    # safetensors writes files that only their owner can read.
    (folder / "model.safetensors").chmod(0o644)
    described = model.config.to_dict()
    described.update(architectures=["LlamaForCausalLM"], dtype="float16")
    described.pop("_name_or_path", None)
    (folder / "config.json").write_text(json.dumps(described, indent=2, sort_keys=True) + "\n")
    generation = {
        "bos_token_id": 1,
        "eos_token_id": [end, eos],
        "pad_token_id": eos,
        "do_sample": False,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
