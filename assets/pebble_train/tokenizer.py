"""The tokenizer: a sentencepiece BPE, and the same one as a Hugging Face tokenizer.json.

Both must give the same ids for every text, and so must llama.cpp, which reads tokenizer.model and
merges by score. Three choices keep them alike: no normalisation, no space put in front of the text,
and digits that never merge.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from pathlib import Path

import sentencepiece
from pebble_data.base import Split
from pebble_data.lexicon import NAMES, WORDS
from pebble_data.mixture import TASKS, WEIGHTS, draw
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

VOCAB_SIZE = 768
UNK, BOS, EOS = "<unk>", "<s>", "</s>"
ROLES = ("system", "user", "assistant")
END = "<|end|>"
SPECIALS = (*(f"<|{role}|>" for role in ROLES), END)

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)


def _corpus(rng: random.Random, lines: int) -> Iterator[str]:
    """Text to learn the merges from, without the answers of spelling tasks: '-t' must stay two pieces.

    The stories are only a few sentences, many times; more of them would fill the vocabulary with
    whole words that the model could not spell.
    """
    weights = {**WEIGHTS, "story": 1.0}
    for _ in range(lines):
        sample = draw(rng, Split.TRAIN, weights)
        keep = sample.messages[:-1] if sample.task in ("spell", "reverse") else sample.messages
        yield from (m.content for m in keep)
        yield f"{rng.choice(WORDS)} {rng.choice(NAMES)}"
    printable = "".join(chr(c) for c in range(33, 127))
    yield from (" ".join(printable) for _ in range(50))


def train_sentencepiece(seed: int = 0, lines: int = 30_000) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_corpus(random.Random(seed), lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=VOCAB_SIZE,
        byte_fallback=True,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_digits=True,
        character_coverage=1.0,
        # Short pieces: spelling means knowing the letters of every piece by heart.
        max_sentencepiece_length=6,
        control_symbols=",".join(SPECIALS),
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def to_fast(model: bytes) -> Tokenizer:
    """The same pieces as a `tokenizers` BPE: merges are all splits of a piece, in the order of the pieces."""
    sp = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [sp.id_to_piece(i) for i in range(sp.get_piece_size())]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges: list[tuple[str, str]] = []
    for i, piece in enumerate(pieces):
        if sp.is_control(i) or sp.is_byte(i) or sp.is_unknown(i):
            continue
        splits = [(piece[:k], piece[k:]) for k in range(1, len(piece))]
        merges += [s for s in splits if s[0] in vocab and s[1] in vocab]
    fast = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token=UNK, fuse_unk=True, byte_fallback=True)
    )
    fast.normalizer = normalizers.Replace(" ", "▁")
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    fast.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, vocab[BOS])]
    )
    fast.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in (UNK, BOS, EOS, *SPECIALS)]
    )
    return fast


def save_tokenizer(model: bytes, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.model").write_bytes(model)
    fast = to_fast(model)
    fast.save(str(folder / "tokenizer.json"))
    added = {
        str(fast.token_to_id(t)): {
            "content": t,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for t in (UNK, BOS, EOS, *SPECIALS)
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "legacy": False,
        "add_prefix_space": False,
        "add_bos_token": True,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
        "bos_token": BOS,
        "eos_token": END,
        "unk_token": UNK,
        "pad_token": EOS,
        "added_tokens_decoder": added,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    names = {"bos_token": BOS, "eos_token": END, "unk_token": UNK, "pad_token": EOS}
    (folder / "special_tokens_map.json").write_text(json.dumps(names, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


assert set(WEIGHTS) == set(TASKS)
