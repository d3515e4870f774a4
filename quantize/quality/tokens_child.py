"""Runs in a child process: ids by the original tokenizer, and by a built file's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quantize.quality.lines import parity_conversations, parity_lines

# Lines that are also encoded with the model's BOS and EOS.
_WITH_SPECIAL = 40


def reference(model: str, trust_remote_code: bool = False) -> dict[str, Any]:
    """Lines, conversations and their ids by the tokenizer of the Hugging Face folder ``model``."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        model, local_files_only=True, trust_remote_code=trust_remote_code
    )
    added = {str(token): token_id for token_id, token in tokenizer.added_tokens_decoder.items()}
    lines = parity_lines(list(dict.fromkeys([*tokenizer.all_special_tokens, *added])))
    chats, chat_ids = [], []
    for messages in parity_conversations() if tokenizer.chat_template else []:
        try:
            ids = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except Exception:  # the template refuses the conversation, say for its system message
            continue
        chats.append(messages)
        chat_ids.append([int(token) for token in ids])
    return {
        "lines": lines,
        "ids": [tokenizer(line, add_special_tokens=False).input_ids for line in lines],
        "special_ids": [tokenizer(line).input_ids for line in lines[:_WITH_SPECIAL]],
        "chats": chats,
        "chat_ids": chat_ids,
        "normal_form": _normal_form(tokenizer),
    }


def built(path: str, lines: list[str], chats: list[Any], special: int) -> dict[str, Any]:
    """The same by the tokenizer that the runtime uses for the GGUF file or ONNX folder ``path``."""
    from runtimes.modelfile import ModelFile
    from runtimes.tokenizer import encode_chat, load_tokenizer

    tokenizer = load_tokenizer(path)
    template = ModelFile.read(path).chat_template if chats else None
    return {
        "ids": [tokenizer.encode(line) for line in lines],
        "special_ids": [tokenizer.encode(line, add_special=True) for line in lines[:special]],
        "chat_ids": [encode_chat(tokenizer, template, messages) for messages in chats],
    }


def vocabulary(path: str, lines: list[str]) -> list[list[int]]:
    """Ids by a GGUF file that holds a vocabulary and no weights."""
    from runtimes.llamacpp.tokenizer import LlamaTokenizer

    tokenizer = LlamaTokenizer.load(Path(path))
    return [tokenizer.encode(line) for line in lines]


def _normal_form(tokenizer: Any) -> str | None:
    """The Unicode normal form that the tokenizer brings text into, if it names one."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    normalizer = repr(getattr(backend, "normalizer", None))
    return next((form for form in ("NFKC", "NFKD", "NFC", "NFD") if form in normalizer), None)
