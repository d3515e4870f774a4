"""Tiny random encoders, as Hugging Face folders and GGUF files."""

from __future__ import annotations

import json
import random
from pathlib import Path

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_WORDS = "the capital of france is paris what lima peru a city in where fox story tell me about ."
_SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "initializer_range": 0.1,
}


def make_encoders(out: Path) -> None:
    """Runs in a child process. ``bert``, whose vector is the first token's, and ``reranker`` and
    ``classes``, which score pairs of texts, the latter in three ways; each beside its ``.gguf``."""
    import torch

    torch.manual_seed(0)
    out.mkdir(parents=True, exist_ok=True)
    _bert(out / "bert")
    for name, labels in (("reranker", 1), ("classes", 3)):
        _xlm_roberta(out / name, labels)
    from quantize.gguf.converter import converter_folder, load_converter

    convert = load_converter(converter_folder())
    for name in ("bert", "reranker", "classes"):
        # The vocabulary is nobody's, so its pre-tokenizer is named; BERT's is not looked at.
        convert(out / name, out / f"{name}.gguf", "--outtype", "f32", pre="jina-v2-en")


def _bert(folder: Path) -> None:
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = [*_SPECIAL, *_WORDS.split()]
    model = BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=64, **_SHAPE))
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
    _amend(folder / "tokenizer_config.json", tokenizer_class="BertTokenizer")
    kind = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "models.Pooling"}
    (folder / "modules.json").write_text(json.dumps([kind]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')


def _xlm_roberta(folder: Path, labels: int) -> None:
    from sentencepiece import SentencePieceTrainer
    from transformers import (
        AutoTokenizer,
        XLMRobertaConfig,
        XLMRobertaForSequenceClassification,
    )

    folder.mkdir()
    rng, words = random.Random(0), _WORDS.split()
    lines = (" ".join(rng.choices(words, k=12)) for _ in range(400))
    SentencePieceTrainer.train(
        sentence_iterator=lines,
        model_prefix=str(folder / "sentencepiece.bpe"),
        vocab_size=40,
        model_type="unigram",
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
        minloglevel=2,
    )
    config = XLMRobertaConfig(
        vocab_size=42,
        max_position_embeddings=66,
        type_vocab_size=1,
        num_labels=labels,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        **_SHAPE,
    )
    XLMRobertaForSequenceClassification(config).save_pretrained(folder)
    texts = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
    texts |= {"sep": "</s>", "cls": "<s>"}
    said = {f"{name}_token": text for name, text in texts.items()}
    _amend(folder / "tokenizer_config.json", tokenizer_class="XLMRobertaTokenizer", **said)
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)


def _amend(path: Path, **settings: str) -> None:
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, **settings}))
