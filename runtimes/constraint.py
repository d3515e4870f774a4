"""Keeps a row's text within a JSON schema, a regular expression, a list of choices or a grammar.

The parser and its token masks are llguidance's. Regular expressions are those of Rust's ``regex``
(no look-around); grammars are in llguidance's dialect of Lark.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from runtimes.errors import RequestError
from runtimes.request import Constraint
from runtimes.runner import Tokenizer

Floats = npt.NDArray[np.float32]

_KEPT = 64  # compiled constraints
# Between two parts of a JSON text: a space, or a new line with its indentation. JSON allows any
# number of them, and a small model may never stop.
_JSON_OPTIONS: Any = {"whitespace_pattern": r" |\n {0,16}"}


@lru_cache(maxsize=256)
def check(constraint: Constraint) -> None:
    """Raises RequestError for a constraint that means nothing, or that llguidance cannot follow."""
    _, text = _validated(constraint)
    if text:
        raise RequestError(f"the {_NAMES[constraint.kind]} cannot be used: {text}")


_NAMES = {
    "json_schema": "JSON schema",
    "regex": "regular expression",
    "choices": "list of choices",
    "grammar": "grammar",
}


def _validated(constraint: Constraint) -> tuple[str, str]:
    """The grammar for llguidance, and what is wrong with it, if anything."""
    from llguidance import LLMatcher

    try:
        grammar = _grammar(constraint)
    except ValueError as error:
        return "", str(error)
    wrong, said = LLMatcher.validate_grammar_with_warnings(grammar)
    return grammar, _one_line(said[0]) if wrong else ""


def _grammar(constraint: Constraint) -> str:
    from llguidance import LLMatcher

    source = constraint.source
    if constraint.kind == "json_schema":
        return str(LLMatcher.grammar_from_json_schema(source, defaults=_JSON_OPTIONS))
    if constraint.kind == "regex":
        return str(LLMatcher.grammar_from_regex(source))
    if constraint.kind == "grammar":
        return str(LLMatcher.grammar_from_lark(source))
    choices = json.loads(source)
    if not (isinstance(choices, list) and choices and all(isinstance(c, str) for c in choices)):
        raise ValueError("it must be a JSON list of texts with at least one")
    if "" in choices:
        raise ValueError("a choice must not be empty")
    texts = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return str(LLMatcher.grammar_from_lark(f"start: {texts}"))


def _one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip(" ^|"))


class Guide:
    """How far one row is in its constraint. Made by ``Constraints.guide``."""

    __slots__ = ("_bits", "_matcher", "_size", "error")

    def __init__(self, matcher: Any, size: int) -> None:
        self._matcher = matcher
        self._size = size
        self._bits = np.zeros(-(-size // 32) * 4, np.uint8)
        self.error: str | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing can follow."""
        return bool(self._matcher.is_stopped())

    def accept(self, token: int) -> None:
        """The row goes on with ``token``."""
        self._matcher.consume_token(token)
        self._note()

    def mask(self, logits: Floats, endings: npt.NDArray[np.int64]) -> bool:
        """Set the logits [vocabulary] of all tokens that must not follow to minus infinity.

        Returns whether something else than ``endings``, ids of end-of-sequence tokens, may follow.
        When the parser gives up, ``error`` says why and no token is left.
        """
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._note()
        if self.error:
            logits[:] = -np.inf
            return False
        allowed = np.unpackbits(self._bits, count=self._size, bitorder="little")
        known = min(self._size, len(logits))
        np.copyto(logits[:known], -np.inf, where=allowed[:known] == 0)
        logits[known:] = -np.inf
        ends = endings[endings < known]
        return int(np.count_nonzero(allowed)) > int(np.count_nonzero(allowed[ends]))

    def _note(self) -> None:
        if self._matcher.is_error():
            self.error = (
                f"the constraint cannot be followed: {_one_line(self._matcher.get_error())}"
            )


class Constraints:
    """Compiles constraints for one tokenizer, and remembers them. May be used from any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._native: Any = None
        self._compiled: OrderedDict[Constraint, Any] = OrderedDict()
        self._lock = threading.Lock()

    def guide(self, constraint: Constraint) -> Guide:
        """A guide at the beginning of ``constraint``.

        The first one of a tokenizer takes about a second for 150,000 tokens. Raises RequestError.
        """
        with self._lock:
            matcher = self._compiled.get(constraint)
            if matcher is None:
                matcher = self._compiled[constraint] = self._compile(constraint)
                if len(self._compiled) > _KEPT:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(constraint)
            return Guide(matcher.deep_copy(), self._tokenizer.vocab_size)

    def _compile(self, constraint: Constraint) -> Any:
        from llguidance import LLMatcher, LLParserLimits

        if self._native is None:
            self._native = _native_tokenizer(self._tokenizer)
        grammar, wrong = _validated(constraint)
        if not wrong:
            limits = LLParserLimits(verbose_errors=False)
            matcher = LLMatcher(self._native, grammar, log_level=0, limits=limits)
            if not matcher.is_error():
                return matcher
            wrong = _one_line(matcher.get_error())
        raise RequestError(f"the {_NAMES[constraint.kind]} cannot be used: {wrong}")


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.eos_token_id = min(tokenizer.eos_ids)
        self.bos_token_id = None
        self.special_token_ids: list[int] = []

    def __call__(self, text: str | bytes) -> list[int]:
        clean = text if isinstance(text, str) else text.decode("utf-8", errors="replace")
        return self._tokenizer.encode(clean, add_special=False, parse_special=False)


def _native_tokenizer(tokenizer: Tokenizer) -> Any:
    from llguidance import LLTokenizer, TokenizerWrapper

    if not tokenizer.eos_ids:
        raise RequestError("this model has no end-of-sequence token, which a constraint needs")
    return LLTokenizer(
        TokenizerWrapper(_Vocabulary(tokenizer)),
        n_vocab=tokenizer.vocab_size,
        eos_token=sorted(tokenizer.eos_ids),
    )
