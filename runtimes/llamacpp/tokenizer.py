"""The vocabulary inside a GGUF file, through llama.cpp's own tokenizer."""

from __future__ import annotations

import ctypes
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from runtimes.errors import ModelError
from runtimes.llamacpp.native import library, recent_errors

_NO_VOCABULARY = 0  # LLAMA_VOCAB_TYPE_NONE of llama.h


class LlamaTokenizer:
    """Implements ``runtimes.runner.Tokenizer`` over a loaded llama.cpp model."""

    def __init__(self, model: Any) -> None:
        self._lib = library()
        self._vocab = self._lib.llama_model_get_vocab(model)
        self.vocab_size = int(self._lib.llama_vocab_n_tokens(self._vocab))
        self.bos_token = self._token_text(self._lib.llama_vocab_bos(self._vocab))
        self.eos_token = self._token_text(self._lib.llama_vocab_eos(self._vocab))
        self.token_bytes = cache(self._piece)

    @classmethod
    def load(cls, path: Path) -> LlamaTokenizer:
        """Load only the vocabulary of the GGUF file at ``path``; raises ModelError."""
        lib = library()
        params = lib.llama_model_default_params()
        params.vocab_only = True
        model = lib.llama_model_load_from_file(str(path).encode(), params)
        if not model:
            raise ModelError(f"llama.cpp cannot read the vocabulary of {path}: {recent_errors()}")
        return cls(model)

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Every id that llama.cpp takes for an end of generation."""
        is_end = self._lib.llama_vocab_is_eog
        return frozenset(token for token in range(self.vocab_size) if is_end(self._vocab, token))

    @cached_property
    def infill(self) -> tuple[int, int, int] | None:
        """See ``Tokenizer.infill``: as the metadata say, or by the names that llama.cpp knows."""
        names = ("pre", "suf", "mid")
        before, after, middle = (
            getattr(self._lib, f"llama_vocab_fim_{n}")(self._vocab) for n in names
        )
        return (before, after, middle) if min(before, after, middle) >= 0 else None

    def _token_text(self, token: int) -> str:
        if token < 0:
            return ""
        text = self._lib.llama_vocab_get_text(self._vocab, token)
        return text.decode("utf-8", errors="replace") if text else ""

    def encode(
        self, text: str, *, add_special: bool = False, parse_special: bool = True
    ) -> list[int]:
        """Ids of ``text``. A lone surrogate becomes a question mark."""
        data = text.encode("utf-8", errors="replace")
        room = len(data) + 8
        for _ in range(2):
            buffer = (ctypes.c_int32 * room)()
            count = self._lib.llama_tokenize(
                self._vocab, data, len(data), buffer, room, add_special, parse_special
            )
            if count >= 0:
                return list(buffer[:count])
            room = -count
        raise ModelError("llama.cpp could not tokenize the text")

    def _piece(self, token: int) -> bytes:
        """The bytes of one token; empty for control tokens."""
        if self._lib.llama_vocab_type(self._vocab) == _NO_VOCABULARY:
            return b""  # llama.cpp would end the process
        room = 64
        for _ in range(2):
            buffer = ctypes.create_string_buffer(room)
            count = self._lib.llama_token_to_piece(self._vocab, token, buffer, room, 0, False)
            if count >= 0:
                return buffer.raw[:count]
            room = -count
        return b""
