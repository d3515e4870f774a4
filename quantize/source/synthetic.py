"""Hugging Face folders with random weights and a small real tokenizer, made without a network.

They serve the benchmark (a model of a realistic shape) and the tests (architectures that no
committed model covers). The weights mean nothing; the tokenizer is trained on text made here.
"""

# ruff: noqa: RUF001  (the tokenizer learns several scripts)
from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def training_lines(count: int = 4000, seed: int = 0) -> Iterator[str]:
    """Plain text with words, numbers, code and several scripts, to train a tokenizer on."""
    rng = random.Random(seed)
    syllables = [a + b for a in "bcdfghklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er")]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(600)]
    words += "the of and to in is that for it was on are with as this have be not".split() * 10
    scripts = "über naïve café|привет мир|γειά σου|こんにちは世界|你好世界|नमस्ते|مرحبا".split("|")
    for _ in range(count):
        kind = rng.random()
        if kind < 0.75:
            yield " ".join(rng.choices(words, k=rng.randint(3, 14))).capitalize() + "."
        elif kind < 0.85:
            yield f"def {rng.choice(words)}(x):\n    return x * {rng.randint(0, 999)} + [1, 2]\n"
        elif kind < 0.95:
            yield f"{rng.randint(0, 99999)} + {rng.randint(0, 99)} = {rng.random():.3f}!"
        else:
            yield rng.choice(scripts)


def byte_level(options: dict[str, Any]) -> Tokenizer:
    """GPT-2's kind: bytes are spelled as printable characters, words split by its pattern."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        special_tokens=list(SPECIAL), initial_alphabet=alphabet, **options
    )
    tokenizer.train_from_iterator(training_lines(), trainer)
    return tokenizer


@dataclass(frozen=True, slots=True)
class Shape:
    """An architecture by its transformers class and the arguments of its configuration."""

    config: str
    model: str
    settings: dict[str, Any]
    tokenizer: Callable[[dict[str, Any]], Tokenizer] = byte_level
    tokenizer_class: str = "PreTrainedTokenizerFast"
    add_bos: bool = False
    vocab: int = 1024
    dtype: str = "float32"
    # Large enough that next-token distributions have a shape that rounding can disturb.
    std: float = 0.08


SHAPES: dict[str, Shape] = {
    "qwen2-0.5b": Shape(
        "Qwen2Config",
        "Qwen2ForCausalLM",
        {
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "rope_theta": 1_000_000.0,
            "tie_word_embeddings": True,
        },
        vocab=151_936,
        dtype="bfloat16",
        std=0.02,
    ),
}


def make_random_model(out: Path, shape: Shape, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a model of ``shape`` to the folder ``out`` and return it.

    ``overrides`` replace settings of the configuration. The same arguments give the same files.
    """
    import torch
    import transformers

    out.mkdir(parents=True, exist_ok=True)
    tokenizer_size = _write_tokenizer(out, shape)
    settings = {**shape.settings, "vocab_size": max(shape.vocab, tokenizer_size), **overrides}
    settings.update(bos_token_id=0, eos_token_id=2, pad_token_id=0)
    torch.manual_seed(seed)
    config = getattr(transformers, shape.config)(**settings)
    dtype = getattr(torch, shape.dtype)
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model = getattr(transformers, shape.model)(config)
    finally:
        torch.set_default_dtype(previous)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, shape.std)
            elif "norm" in name or ".ln_" in name:
                # Away from the identity, so that a wrong offset shows.
                weight.add_(torch.empty_like(weight).uniform_(-0.2, 0.2))
            else:
                weight.normal_(0.0, shape.std)
    model.save_pretrained(out)
    return out


def _write_tokenizer(out: Path, shape: Shape) -> int:
    """Train and save tokenizer.json with its configuration; returns the number of ids."""
    limit = min(shape.vocab, 8000)
    tokenizer = shape.tokenizer({"vocab_size": limit, "show_progress": False})
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": shape.tokenizer_class,
        "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0],
        "add_bos_token": shape.add_bos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
        "chat_template": _CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return int(tokenizer.get_vocab_size(with_added_tokens=True))
