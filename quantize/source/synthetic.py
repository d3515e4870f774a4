"""A Hugging Face folder with random weights and a small real tokenizer, made without a network.

It serves the benchmark, as a model of a realistic shape. The weights mean nothing; the tokenizer is
trained on text made here.
"""

# ruff: noqa: RUF001  (the tokenizer learns several scripts)
from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Arguments of Qwen2's configuration.
SHAPES: dict[str, dict[str, Any]] = {
    "qwen2-0.5b": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
        "vocab_size": 151_936,
    },
}


def make_random_model(out: Path, shape: str) -> None:
    """Write the model ``shape`` to the folder ``out``."""
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level({"vocab_size": 8000, "show_progress": False}),
        bos_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        pad_token=SPECIAL[0],
        chat_template=CHAT_TEMPLATE,
    )
    tokenizer.save_pretrained(out)
    torch.manual_seed(0)
    config = Qwen2Config(**SHAPES[shape], bos_token_id=0, eos_token_id=2, pad_token_id=0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(out)


def training_lines() -> Iterator[str]:
    """Plain text with words, numbers, code and several scripts, to train a tokenizer on."""
    rng = random.Random(0)
    syllables = [a + b for a in "bcdfghklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er")]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(600)]
    words += "the of and to in is that for it was on are with as this have be not".split() * 10
    scripts = "über naïve café|привет мир|γειά σου|こんにちは世界|你好世界|नमस्ते|مرحبا".split("|")
    for _ in range(4000):
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
