"""The tokenizer.json beside an ONNX graph, through the ``tokenizers`` library."""

import json
import os
import re
import threading
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from runtimes.errors import ModelError
from runtimes.models.modelfile import GENAI_CONFIG, read_json
from runtimes.onnx.graph_file import genai_section
from runtimes.untrusted import check_whole, open_regular

_MOST_BYTES = 256 * 2**20  # of a tokenizer.json; those of the largest vocabularies have 35 million
# Before a prefix, a suffix and the middle, as Qwen, StarCoder, DeepSeek, Granite and CodeLlama call
# them.
_INFILL = """
<|fim_prefix|> <|fim_suffix|> <|fim_middle|>
<fim_prefix> <fim_suffix> <fim_middle>
<fim-prefix> <fim-suffix> <fim-middle>
<\uff5cfim\u2581begin\uff5c> <\uff5cfim\u2581hole\uff5c> <\uff5cfim\u2581end\uff5c>
\u2581<PRE> \u2581<SUF> \u2581<MID>
"""
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@cache
def _byte_level_alphabet() -> dict[str, int]:
    """Character -> byte of GPT-2's byte-level BPE (``bytes_to_unicode`` of its encoder.py)."""
    kept = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in kept}
    rest = (byte for byte in range(256) if byte not in set(kept))
    alphabet.update({chr(256 + n): byte for n, byte in enumerate(rest)})
    return alphabet


class OnnxTokenizer:
    """Implements ``runtimes.runner.Tokenizer`` over tokenizer.json."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelError when a file is missing or damaged."""
        path = folder / "tokenizer.json"
        self._tokenizer = _opened(path)
        decoder = self._tokenizer.decoder
        kinds = json.loads(decoder.__getstate__()) if decoder is not None else None
        self._byte_level = _is_byte_level(kinds)
        self._added = {
            token: b"" if entry.special else entry.content.encode()
            for token, entry in self._tokenizer.get_added_tokens_decoder().items()
        }
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.eos_ids = _ends(folder)
        config = folder / "tokenizer_config.json"
        texts = read_json(config) if config.is_file() else {}
        self.bos_token = _token_text(texts.get("bos_token"))
        self.eos_token = _token_text(texts.get("eos_token"))
        self.token_bytes = cache(self._piece)
        self._mode = threading.Condition()  # guards encode_special_tokens of the tokenizer
        self._as_text = self._tokenizer.encode_special_tokens
        self._encoding = 0  # texts in that mode: a short one does not wait for a long one

    @cached_property
    def infill(self) -> tuple[int, int, int] | None:
        """See ``Tokenizer.infill``."""
        for names in _INFILL.strip().splitlines():
            found = list(map(self._tokenizer.token_to_id, names.split()))
            if None not in found:
                before, after, middle = found
                return before, after, middle
        return None

    def encode(
        self, text: str, *, add_special: bool = False, parse_special: bool = True
    ) -> list[int]:
        """Ids of ``text``. A lone surrogate becomes a question mark."""
        clean = text.encode("utf-8", errors="replace").decode("utf-8")
        own, as_text = self._tokenizer, not parse_special
        with self._mode:
            self._mode.wait_for(lambda: not self._encoding or self._as_text == as_text)
            if self._as_text != as_text:
                self._as_text = own.encode_special_tokens = as_text
            self._encoding += 1
        try:
            # Of a batch, since that lets other threads of Python run meanwhile.
            [found] = own.encode_batch_fast([clean], add_special_tokens=add_special)
        except BaseException as error:
            if not _is_failure(error):
                raise
            raise ModelError(f"the model's tokenizer cannot encode the text: {error}") from error
        finally:
            with self._mode:
                self._encoding -= 1
                self._mode.notify_all()
        return list(found.ids)

    def _piece(self, token: int) -> bytes:
        """The bytes of one token; empty for special tokens and ids without a piece."""
        if token in self._added:
            return self._added[token]
        text = self._tokenizer.id_to_token(token)
        if text is None:
            return b""
        if self._byte_level:
            alphabet = _byte_level_alphabet()
            return bytes(alphabet[c] for c in text if c in alphabet)
        match = _BYTE_PIECE.fullmatch(text)
        return bytes([int(match[1], 16)]) if match else text.replace("\u2581", " ").encode()


def _opened(path: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
        if size > _MOST_BYTES:
            raise ValueError(f"it has {size:,} bytes, above {_MOST_BYTES:,}")
        found = Tokenizer.from_file(str(path))
        # A saved tokenizer may carry its trainer's truncation and padding.
        found.no_truncation()
        found.no_padding()
    except BaseException as error:
        if not _is_failure(error):
            raise
        raise ModelError(f"cannot read {path}: {error}") from error
    return found


def _is_failure(error: BaseException) -> bool:
    """Whether `tokenizers` has raised it: bare Exception, or PanicException, which is none, where a
    file or text has led its own code astray."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _ends(folder: Path) -> frozenset[int]:
    """The tokens that end an answer."""
    ends = genai_section(folder, "model").get("eos_token_id", [])
    where = f"{folder / GENAI_CONFIG}: eos_token_id"
    return frozenset(
        check_whole(v, where, -1) for v in (ends if isinstance(ends, list) else [ends])
    )


def _is_byte_level(part: Any) -> bool:
    """Whether a tokenizer.json decoder is byte-level, alone or in a sequence."""
    if not isinstance(part, dict):
        return False
    return part.get("type") == "ByteLevel" or any(map(_is_byte_level, part.get("decoders") or []))


def _token_text(value: Any) -> str:
    """A token in tokenizer_config.json: plain text, or an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""
