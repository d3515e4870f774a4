"""Small random models: architectures that no committed model covers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantize.children import run_child
from quantize.source.synthetic import CHAT_TEMPLATE, SPECIAL, byte_level, training_lines

if TYPE_CHECKING:
    from tokenizers import Tokenizer


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


def make_random_model(out: Path, shape: Shape, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a model of ``shape`` to the folder ``out`` and return it.

    ``overrides`` replace settings of the configuration. The same arguments give the same files.
    Importing torch takes seconds: where it is not there yet, a child makes the model.
    """
    out.mkdir(parents=True, exist_ok=True)
    if "torch" not in sys.modules:
        call = partial(make_random_model, out, shape, seed=seed, **overrides)
        return run_child(call, "making a model", out.parent, torch=True)
    import torch
    import transformers

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
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return int(tokenizer.get_vocab_size(with_added_tokens=True))


def byte_fallback(options: dict[str, Any]) -> Tokenizer:
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
    special = [*SPECIAL, "<unk>"]
    trainer = trainers.BpeTrainer(special_tokens=[*special, *byte_tokens], **options)
    tokenizer.train_from_iterator(training_lines(), trainer)
    # The trainer makes byte tokens special, so that "<0x41>" in a text would become one.
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] in special]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    bos = (SPECIAL[0], 0)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos[0]} $A", pair=f"{bos[0]} $A {bos[0]} $B", special_tokens=[bos]
    )
    return tokenizer


def _shape(tokenizer: str = "byte_level", **more: Any) -> Shape:
    return Shape(**more, tokenizer=byte_fallback if tokenizer == "byte_fallback" else byte_level)


_FILE = Path(__file__).with_suffix(".json")
# Phi-4's tokenizer class is the kind that needs no sentencepiece model. onnxruntime-genai's builder
# does not know GPT-2 and GPT-NeoX; the settings of the latter are not the defaults, which a
# converter that misses them would take.
SHAPES = {name: _shape(**said) for name, said in json.loads(_FILE.read_text()).items()}
