"""Keeps a row's text within its constraint: which tokens may follow. The parser is llguidance's."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from runtimes.checks import UNFOLLOWED, markers_of, one_line, refused
from runtimes.errors import RequestError
from runtimes.request import Constraint
from runtimes.runner import Floats, Ints, Tokenizer

Markers = Mapping[int, bytes]  # control tokens that are part of the text, with what they are in it

_MOST_KEPT, _KEPT_CHARACTERS = 64, 2**22  # compiled constraints, and those of their sources


class GrammarMatcher:
    """How far one row is in its constraint. Made by ``GrammarCompiler``."""

    masks = True  # ``mask`` may always change logits
    override = None  # ``mask`` leaves the forced token

    def __init__(self, matcher: Any, size: int, markers: Markers) -> None:
        self._matcher = matcher
        self.markers = markers
        self._size = size
        self._bits = np.zeros(-(-size // 32) * 4, np.uint8)
        self.error: str | None = None
        self._forced: list[int] | None = None  # not known yet

    @property
    def complete(self) -> bool:
        """Whether nothing can follow."""
        return bool(self._matcher.is_stopped())

    def accept(self, token: int) -> None:
        """The row continues with ``token``."""
        rest = self._forced[1:] if self._forced and self._forced[0] == token else None
        self._matcher.consume_token(token)
        self._forced = rest or None
        self._note()

    def forced(self) -> list[int]:
        """The tokens that the constraint leaves no choice about, as its text is cut into tokens by
        the tokenizer. Those at whose end a longer token could come are left out.
        """
        if self._forced is None:
            ended = self.error or self.complete
            self._forced = [] if ended else self._matcher.compute_ff_tokens()
        return self._forced

    def mask(self, logits: Floats, endings: Ints) -> bool:
        """Set the logits [vocabulary] of all tokens that must not follow to minus infinity.

        Returns whether something else than ``endings``, ids of end-of-sequence tokens, may follow.
        When the parser gives up, ``error`` says why and no token is left. Of forced text only the
        next of its usual tokens may follow: a rarer one of the same bytes would lead astray.
        """
        if (forced := self.forced()) and forced[0] < len(logits):
            value = logits[forced[0]]
            logits[:] = -np.inf
            logits[forced[0]] = value
            return forced[0] not in endings
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
            self.error = f"{UNFOLLOWED}: {one_line(self._matcher.get_error())}"


MatcherMaker = Callable[[], GrammarMatcher]


class GrammarCompiler:
    """Compiles constraints for one tokenizer, and remembers them: each as what makes a
    matcher at its beginning. ``known`` may be used from any thread, ``compile`` from one at a time.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._natives: dict[frozenset[int], Any] = {}  # by the control tokens that they know
        self._compiled: dict[Constraint, MatcherMaker] = {}
        self._characters = 0  # of the sources of all that is kept

    def known(self, constraint: Constraint) -> MatcherMaker | None:
        """Return the matcher maker that ``compile`` made before, or None."""
        return self._compiled.get(constraint)

    def compile(self, constraint: Constraint, grammar: str) -> MatcherMaker:
        """``grammar`` is what ``grammar_of`` makes of it. The first one of a tokenizer takes about
        a second for 150,000 tokens. Raises RequestError.
        """
        known = self.known(constraint)
        if known is not None:
            return known
        from llguidance import LLMatcher, LLParserLimits

        markers = control_tokens(self._tokenizer, markers_of(constraint))
        native = self._natives.get(frozenset(markers))
        if native is None:
            native = self._natives[frozenset(markers)] = _native(self._tokenizer, markers)
        limits = LLParserLimits(verbose_errors=False)
        matcher = LLMatcher(native, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise refused(constraint, matcher.get_error())
        size = self._tokenizer.vocab_size
        self._characters += len(constraint.source)
        while self._compiled and (
            len(self._compiled) >= _MOST_KEPT or self._characters > _KEPT_CHARACTERS
        ):
            oldest = next(iter(self._compiled))
            del self._compiled[oldest]
            self._characters -= len(oldest.source)
        made = self._compiled[constraint] = lambda: GrammarMatcher(
            matcher.deep_copy(), size, markers
        )
        return made


def control_tokens(tokenizer: Tokenizer, texts: Iterable[str]) -> dict[int, bytes]:
    """Control tokens that stand for one of the texts, and have no bytes of their own, with it."""
    found = {}
    for text in texts:
        ids = tokenizer.encode(text, add_special=False, parse_special=True)
        if len(ids) == 1 and not tokenizer.token_bytes(ids[0]):
            found[ids[0]] = text.encode()
    return found


class _Vocabulary:
    """Tokenizer in the form that llguidance reads."""

    def __init__(self, tokenizer: Tokenizer, markers: Markers) -> None:
        self._tokenizer = tokenizer
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        for token, text in markers.items():
            self.tokens[token] = text
        self.eos_token_id = min(tokenizer.eos_ids)
        self.bos_token_id = None
        self.special_token_ids: list[int] = []

    def __call__(self, text: str | bytes) -> list[int]:
        clean = text if isinstance(text, str) else text.decode("utf-8", errors="replace")
        return self._tokenizer.encode(clean, add_special=False, parse_special=False)


def _native(tokenizer: Tokenizer, markers: Markers) -> Any:
    from llguidance import LLTokenizer, TokenizerWrapper

    if not tokenizer.eos_ids:
        raise RequestError("this model has no end-of-sequence token, which a constraint needs")
    return LLTokenizer(
        TokenizerWrapper(_Vocabulary(tokenizer, markers)),
        n_vocab=tokenizer.vocab_size,
        eos_token=sorted(tokenizer.eos_ids),
    )
