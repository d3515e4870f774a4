"""Runs in a child process: ids by the original tokenizer, and by a built file's."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from quantize.children.child import report_step
from quantize.quality.lines import parity_conversations, parity_lines

# Lines that are also encoded with the model's BOS and EOS.
_WITH_SPECIAL = 40


def reference(model: Path, *, trust_remote_code: bool) -> dict[str, Any]:
    """Lines, conversations and their ids by the tokenizer of the Hugging Face folder ``model``."""
    from transformers import AutoTokenizer

    report_step("loading the tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(
        model, local_files_only=True, trust_remote_code=trust_remote_code
    )
    report_step("encoding the test lines")
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
    ids = [tokenizer(line, add_special_tokens=False).input_ids for line in lines]
    special_ids = [tokenizer(line).input_ids for line in lines[:_WITH_SPECIAL]]
    used = {token for row in (*ids, *special_ids, *chat_ids) for token in row}
    return {
        "lines": lines,
        "ids": ids,
        "special_ids": special_ids,
        "chats": chats,
        "chat_ids": chat_ids,
        "normal_form": _normal_form(tokenizer),
        "texts": _whole((token, tokenizer.decode([token])) for token in used),
        "pre_tokenizer": _pre_tokenizer(tokenizer),
    }


def built(path: Path, lines: list[str], chats: list[Any], special: int) -> dict[str, Any]:
    """The same by the tokenizer that the runtime uses for the GGUF file or ONNX folder ``path``."""
    from runtimes.engine.tokenizer import encode_chat, load_tokenizer
    from runtimes.models.modelfile import ModelFile

    tokenizer = load_tokenizer(path)
    template = ModelFile.read(path).chat_template if chats else None
    found = {
        "ids": [tokenizer.encode(line) for line in lines],
        "special_ids": [tokenizer.encode(line, add_special=True) for line in lines[:special]],
        "chat_ids": [encode_chat(tokenizer, template, messages) for messages in chats],
    }
    used = {token for rows in found.values() for row in rows for token in row}
    texts = ((token, tokenizer.token_bytes(token).decode(errors="replace")) for token in used)
    return {**found, "texts": _whole(texts)}


def vocabulary(path: Path, lines: list[str]) -> list[list[int]]:
    """Ids by a GGUF file that holds a vocabulary and no weights."""
    from runtimes.llamacpp.tokenizer import LlamaTokenizer

    tokenizer = LlamaTokenizer.load(path)
    return [tokenizer.encode(line) for line in lines]


def _whole(texts: Iterable[tuple[int, str]]) -> dict[str, str]:
    """Those of the tokens that stand for whole characters, by their id."""
    return {str(token): text for token, text in texts if text and "\ufffd" not in text}


def _pre_tokenizer(tokenizer: Any) -> str:
    """The steps that split text before the vocabulary does, with their settings."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    found = json.loads(backend.to_str())["pre_tokenizer"] if backend else None
    return described(found) if found else "none"


def described(step: dict[str, Any]) -> str:
    """A step of tokenizer.json, such as "Sequence[Digits(individual_digits=true), ByteLevel]"."""
    parts = step.get("pretokenizers")
    if parts is not None:
        return f"{step['type']}[{', '.join(map(described, parts))}]"
    options = (f"{name}={json.dumps(value)}" for name, value in step.items() if name != "type")
    return f"{step['type']}({', '.join(options)})"


def _normal_form(tokenizer: Any) -> str | None:
    """The Unicode normal form that the tokenizer brings text into, if it names one."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    normalizer = repr(getattr(backend, "normalizer", None))
    return next((form for form in ("NFKC", "NFKD", "NFC", "NFD") if form in normalizer), None)
