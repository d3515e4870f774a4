"""Hugging Face folders with random weights and a small real tokenizer, made without a network.

They serve the tests (architectures that no committed model covers) and the benchmark (a model of
a realistic shape). The weights mean nothing; the tokenizer is trained on text made here.
"""

# ruff: noqa: RUF001  (the tokenizer learns several scripts)
from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TokenizerKind = Literal["byte_level", "byte_fallback"]

_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@dataclass(frozen=True, slots=True)
class Shape:
    """An architecture by its transformers class and the arguments of its configuration."""

    config: str
    model: str
    settings: dict[str, Any]
    tokenizer: TokenizerKind = "byte_level"
    tokenizer_class: str = "PreTrainedTokenizerFast"
    vocab: int = 1024
    dtype: str = "float32"
    # Large enough that next-token distributions have a shape that rounding can disturb.
    std: float = 0.08


_TINY: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}

SHAPES: dict[str, Shape] = {
    "llama": Shape(
        "LlamaConfig",
        "LlamaForCausalLM",
        {**_TINY, "tie_word_embeddings": False},
        tokenizer="byte_fallback",
    ),
    "qwen2": Shape("Qwen2Config", "Qwen2ForCausalLM", {**_TINY, "tie_word_embeddings": True}),
    "qwen3": Shape(
        "Qwen3Config", "Qwen3ForCausalLM", {**_TINY, "head_dim": 64, "tie_word_embeddings": True}
    ),
    "phi3": Shape(
        "Phi3Config",
        "Phi3ForCausalLM",
        {
            **_TINY,
            "original_max_position_embeddings": 512,
            "sliding_window": None,
            "tie_word_embeddings": False,
        },
        tokenizer_class="GPT2Tokenizer",  # Phi-4's, the kind that needs no sentencepiece model
    ),
    "gemma3": Shape(
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {
            **_TINY,
            "num_hidden_layers": 6,
            "head_dim": 64,
            "query_pre_attn_scalar": 64,
            "sliding_window": 16,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
            "tie_word_embeddings": True,
        },
    ),
    "mistral": Shape(
        "MistralConfig",
        "MistralForCausalLM",
        {**_TINY, "sliding_window": 16, "tie_word_embeddings": False},
        tokenizer="byte_fallback",
    ),
    # Two that onnxruntime-genai's builder does not know.
    "gpt2": Shape(
        "GPT2Config",
        "GPT2LMHeadModel",
        {"n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 512, "tie_word_embeddings": True},
        tokenizer_class="GPT2Tokenizer",
    ),
    "gpt_neox": Shape(
        "GPTNeoXConfig",
        "GPTNeoXForCausalLM",
        {
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "max_position_embeddings": 512,
            # Not the defaults, which a converter that misses the settings would take.
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 50_000.0,
                "partial_rotary_factor": 0.5,
            },
            "tie_word_embeddings": False,
        },
    ),
    # Qwen2-0.5B's shape: what the benchmark runs.
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


def make_random_model(out: Path, arch: str, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a model of shape ``arch`` (a key of SHAPES) to the folder ``out`` and return it.

    ``overrides`` replace settings of the configuration. The same arguments give the same files.
    """
    import torch
    import transformers

    shape = SHAPES[arch]
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


def _write_tokenizer(out: Path, shape: Shape) -> int:
    """Train and save tokenizer.json with its configuration; returns the number of ids."""
    limit = min(shape.vocab, 8000)
    make = _byte_level if shape.tokenizer == "byte_level" else _byte_fallback
    tokenizer = make({"vocab_size": limit, "show_progress": False})
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": shape.tokenizer_class,
        "bos_token": _SPECIAL[0],
        "eos_token": _SPECIAL[2],
        "pad_token": _SPECIAL[0],
        "add_bos_token": shape.tokenizer == "byte_fallback",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
        "chat_template": _CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return int(tokenizer.get_vocab_size(with_added_tokens=True))


def _byte_level(options: dict[str, Any]) -> Tokenizer:
    """GPT-2's kind: bytes are spelled as printable characters, words split by its pattern."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        special_tokens=list(_SPECIAL), initial_alphabet=alphabet, **options
    )
    tokenizer.train_from_iterator(training_lines(), trainer)
    return tokenizer


def _byte_fallback(options: dict[str, Any]) -> Tokenizer:
    """Llama 2's kind: spaces become U+2581, unknown characters their UTF-8 bytes, BOS in front."""
    from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers

    space = "\u2581"
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(space), normalizers.Replace(" ", space)]
    )
    steps = [decoders.Replace(space, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    byte_tokens = [f"<0x{value:02X}>" for value in range(256)]
    special = [*_SPECIAL, "<unk>"]
    trainer = trainers.BpeTrainer(special_tokens=[*special, *byte_tokens], **options)
    tokenizer.train_from_iterator(training_lines(), trainer)
    # The trainer makes byte tokens special, so that "<0x41>" in a text would become one.
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] in special]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    bos = (_SPECIAL[0], 0)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos[0]} $A", pair=f"{bos[0]} $A {bos[0]} $B", special_tokens=[bos]
    )
    return tokenizer
