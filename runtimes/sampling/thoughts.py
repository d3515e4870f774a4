"""Thoughts of an answer as it is sampled: which of its text is thought, when a thought has to end,
and what may follow. A constraint holds for the answer behind the thought."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from runtimes.request import Thinking, ThoughtForm
from runtimes.runner import Floats, Ints, Tokenizer
from runtimes.sampling.grammar import GrammarMatcher, Markers, control_tokens

# Stands at the end of a thought that has to end, before the closing tag.
CLOSING = "\n\nI have to answer now.\n"
# Tokens at a prompt's end that tell whether a thought has begun there.
_TAIL = 24
# A thought repeats itself when its last so many tokens are one text again and again, and so often
# at least. It is looked at every so many tokens.
_REPEATED, _TIMES, _EVERY = 256, 4, 32
_CONTROL = re.compile("<[^\n>]*>")  # may be a control token


class ThoughtPhase(Enum):
    """Part of an answer that the next token belongs to."""

    BEFORE = "before"  # nothing has come that tells
    INSIDE = "inside"
    CLOSED = "closed"  # behind the thought's closing tag, before the answer's first word
    ANSWER = "answer"


class Said(NamedTuple):
    """New text of the thought, and of the answer."""

    thought: str
    answer: str


class ThoughtTokens:
    """Tokens of the texts around a thought. One for each form and tokenizer."""

    def __init__(self, tokenizer: Tokenizer, form: ThoughtForm) -> None:
        self.form = form
        self._tokenizer = tokenizer
        self.plain = tokenizer.token_bytes
        self.encode = lru_cache(maxsize=64)(self._encode)
        self.crossing = lru_cache(maxsize=64)(self._crossing)
        texts = (form.opens, form.closes, form.then, form.head)
        self.markers = control_tokens(tokenizer, set(_CONTROL.findall("\n".join(texts))))
        self.opening = self.encode(form.opens)

    def bytes_of(self, token: int) -> bytes:
        """The token's text, also that of a control token of the form."""
        return self.markers.get(token) or self.plain(token)

    def phase_behind(self, prompt: Sequence[int]) -> ThoughtPhase:
        """Part of the answer that begins where the prompt ends."""
        data = b"".join(map(self.bytes_of, prompt[-_TAIL:]))
        text = data.decode("utf-8", errors="replace").rstrip()
        if text.endswith(self.form.opens):
            return ThoughtPhase.INSIDE
        return ThoughtPhase.ANSWER if text.endswith(self.form.closes) else ThoughtPhase.BEFORE

    def begin(self, prompt: Sequence[int]) -> int:
        """Place of the opening tag where the prompt ends in a thought, open or empty; else the
        prompt's end."""
        if self.phase_behind(prompt) is not ThoughtPhase.BEFORE:
            data = b""
            for at in range(len(prompt) - 1, max(len(prompt) - _TAIL, 0) - 1, -1):
                data = self.bytes_of(prompt[at]) + data
                if data.startswith(self.form.opens.encode()):
                    return at
        return len(prompt)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special=False, parse_special=True))

    def _crossing(self, begun: int) -> Ints:
        """Tokens that end the closing tag, of which ``begun`` characters stand there, and go on
        with more than white space: nobody could check the rest against a constraint."""
        tag, found = self.form.closes.encode(), list[int]()
        rest = tag[begun:]
        for token in range(self._tokenizer.vocab_size):
            data = self.bytes_of(token)
            if begun and data.startswith(rest):
                after = data[len(rest) :]
            elif (at := data.find(tag)) >= 0:
                after = data[at + len(tag) :]
            else:
                continue
            if after.strip():
                found.append(token)
        return np.array(found, np.int64)


class Thoughts:
    """Follows one answer. It stands in the place of its constraint's matcher, whose methods it has:
    ``accept``, ``forced``, ``mask``, ``complete``, ``error`` and ``markers``."""

    def __init__(
        self,
        tokens: ThoughtTokens,
        prompt: Sequence[int],
        thinking: Thinking,
        budget: int | None,
        answer: GrammarMatcher | None,
    ) -> None:
        """Follow an answer to ``prompt``; ``answer`` follows its constraint. ``budget``: tokens of
        the thought; None: until it ends by itself or repeats itself."""
        begun = {"thought": ThoughtPhase.INSIDE, "answer": ThoughtPhase.ANSWER}.get(thinking.at)
        self.phase = begun or tokens.phase_behind(prompt)
        self.text = ""  # of the thought
        self.said = Said("", "")  # by the last token
        self.count = 0  # tokens before the answer's first, where there is a thought
        self.masks = answer is not None  # whether ``mask`` may change logits
        # Control tokens that are part of the answer's text.
        self.markers: Markers = answer.markers if answer is not None else {}
        self._tokens, self._form = tokens, tokens.form
        self._budget, self._answer, self._expected = budget, answer, thinking.expected
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""  # text that may become a tag
        self._after = ""  # text that has come behind the closing tag
        self._forced: list[int] = []
        self._ids: list[int] = []  # of the thought
        self._opens = False  # whether the opening tag's first token can only mean a thought
        self._ended = False  # nothing more is forced
        self._cut = False  # the thought was ended for the model
        self._plan()

    @property
    def open(self) -> bool:
        """Whether the answer stands in its thought."""
        return self.phase is ThoughtPhase.INSIDE

    @property
    def complete(self) -> bool:
        """Whether nothing can follow."""
        follower = self._follower
        return follower is not None and follower.complete

    @property
    def error(self) -> str | None:
        """Why no token may follow, of the constraint."""
        return None if self._answer is None else self._answer.error

    @property
    def override(self) -> int | None:
        """The token that comes next, whatever the logits say."""
        return self._forced[0] if self._forced else None

    @property
    def _follower(self) -> GrammarMatcher | None:
        """The constraint's matcher, once the answer has begun."""
        return self._answer if self.phase is ThoughtPhase.ANSWER else None

    def accept(self, token: int) -> None:
        """The answer continues with ``token``; ``said`` is its text."""
        forced = bool(self._forced) and self._forced[0] == token
        self._forced = self._forced[1:] if forced else []
        before = self._answer is not None and self.phase is ThoughtPhase.BEFORE
        if before and not (forced or self._opens_with(token)):
            self.phase = ThoughtPhase.ANSWER
        if self.phase is ThoughtPhase.ANSWER:
            if self._answer is not None:
                self._answer.accept(token)
            data = self.markers.get(token) or self._tokens.plain(token)
            self.said = Said("", self._cleaned(self._decoder.decode(data)))
            return
        self.count += 1
        if self.phase is ThoughtPhase.INSIDE:
            self._ids.append(token)
        thought, answer = self._feed(self._decoder.decode(self._tokens.bytes_of(token)))
        self.said = Said(thought if self.text else thought.lstrip("\n"), answer)
        self.text += self.said.thought
        if self.said.answer:  # its first token, which may have ended the thought, too
            self.count = max(0, self.count - 1)
        if not self._forced:
            self._plan()

    def finish(self) -> Said:
        """Text that was held back, at the answer's end."""
        held, self._held = self._held + self._decoder.decode(b"", final=True), ""
        if self.phase is ThoughtPhase.INSIDE:
            self.text += (rest := held.rstrip("\n"))
            return Said(rest, "")
        if self.phase is ThoughtPhase.BEFORE:
            self.count = 0
        return Said("", "" if self.phase is ThoughtPhase.CLOSED else held)

    def forced(self) -> list[int]:
        """Tokens that come next, whatever the logits say."""
        if self._forced:
            return self._forced
        follower = self._follower
        return follower.forced() if follower is not None else []

    def mask(self, logits: Floats, endings: Ints) -> bool:
        """``GrammarMatcher.mask``, for the answer. Before it the opening tag may come, too; a
        thought may not have more than white space behind its tag, and ends where the model would
        end the answer."""
        if self._answer is None or self._forced:
            return True
        if self.phase is ThoughtPhase.ANSWER:
            return self._answer.mask(logits, endings)
        if self.phase is ThoughtPhase.BEFORE:
            first = self._tokens.opening[0] if self._tokens.opening else len(logits)
            value = logits[first] if first < len(logits) else None
            goes_on = self._answer.mask(logits, endings)
            if value is not None and self._expected:
                self._opens = logits[first] == -np.inf or len(self._tokens.opening) == 1
                if self._opens:
                    logits[first] = value
                    return True
            return goes_on
        if int(logits.argmax()) in endings and self.phase is ThoughtPhase.INSIDE:
            self._end()  # the model has nothing more to think
            return True
        logits[endings[endings < len(logits)]] = -np.inf
        crossing = self._tokens.crossing(len(self._begun_tag()))
        logits[crossing[crossing < len(logits)]] = -np.inf
        return True

    def _cleaned(self, text: str) -> str:
        """The answer's text. Behind a thought that was ended for it, a model may go on thinking,
        and end that with a tag of its own, which is left out."""
        if not self._cut or self._answer is not None:
            return text
        held = (self._held + text).replace(self._form.closes, "")
        cut = len(held) - len(_overlap(held, self._form.closes))
        self._held = held[cut:]
        return held[:cut]

    def _opens_with(self, token: int) -> bool:
        if not self._opens or token != self._tokens.opening[0]:
            return False
        self._forced = list(self._tokens.opening[1:])
        return True

    def _begun_tag(self) -> str:
        """As much of the closing tag as the text ends with."""
        return _overlap(self._held, self._form.closes)

    def _plan(self) -> None:
        """Force the thought's end where it is due, and what stands before a constrained answer."""
        form, budget = self._form, self._budget
        if self.phase is ThoughtPhase.BEFORE and budget == 0 and self.count == 0:
            self._forced = [*self._tokens.encode(f"{form.opens}\n\n{form.closes}{form.then}")]
        elif self.phase is ThoughtPhase.INSIDE and not self._ended and self._over():
            self._end("" if budget == 0 else CLOSING)
        elif self.phase is ThoughtPhase.CLOSED and self._answer is not None:
            if not self._ended and not self._held and "\n" not in self._after:
                self._forced = [*self._tokens.encode(form.then)]
            self._ended = True
            if not self._forced:
                self.phase = ThoughtPhase.ANSWER

    def _end(self, said: str = "") -> None:
        """Force the end of the thought, and ``said`` before it where its tag has not begun."""
        form, begun = self._form, self._begun_tag()
        before = "" if begun else said or "\n"
        self._ended = self._cut = True
        self._forced = [*self._tokens.encode(before + form.closes[len(begun) :] + form.then)]

    def _over(self) -> bool:
        budget, count = self._budget, len(self._ids)
        if budget is not None:
            return count >= budget
        return count > 0 and count % _EVERY == 0 and repeats(self._ids)

    def _feed(self, text: str) -> Said:
        held, self._held = self._held + text, ""
        form = self._form
        if self.phase is ThoughtPhase.BEFORE:
            begun = held.lstrip()
            if begun.startswith(form.opens):
                self.phase, held = ThoughtPhase.INSIDE, begun[len(form.opens) :]
            elif form.head and begun.startswith(form.head):
                self.phase, held = ThoughtPhase.ANSWER, begun[len(form.head) :]
            elif form.opens.startswith(begun) or form.head.startswith(begun):
                self._held = held
                return Said("", "")
            else:
                self.phase = ThoughtPhase.ANSWER
            if self.phase is ThoughtPhase.ANSWER:
                self.count = 0
                return Said("", held)
        thought = ""
        if self.phase is ThoughtPhase.INSIDE:
            at = held.find(form.closes)
            if at < 0:
                keep = len(_overlap(held, form.closes))
                cut = len(held[: len(held) - keep].rstrip("\n"))
                self._held = held[cut:]
                return Said(held[:cut], "")
            thought = held[:at].rstrip("\n")
            self.phase, held = ThoughtPhase.CLOSED, held[at + len(form.closes) :]
        return Said(thought, self._cleaned(self._behind(held)))

    def _behind(self, text: str) -> str:
        """The answer's text behind the closing tag, without what stands between."""
        then = self._form.then
        self._after += text
        rest = self._after.lstrip()
        if not then.isspace():
            if then.startswith(rest) and rest != then:
                return ""  # more has to tell
            rest = rest.removeprefix(then)
        if not rest:
            return ""
        self.phase = ThoughtPhase.ANSWER
        return rest


def repeats(ids: Sequence[int]) -> bool:
    """Whether a text's last tokens are one piece again and again: the last ``_REPEATED``, with a
    period of at most a quarter of them."""
    if len(ids) < _REPEATED:
        return False
    tail = np.array(ids[-_REPEATED:])
    periods = range(1, _REPEATED // _TIMES + 1)
    return any(np.array_equal(tail[period:], tail[:-period]) for period in periods)


def _overlap(text: str, tag: str) -> str:
    """The longest beginning of ``tag``, but not all of it, that ``text`` ends with."""
    for size in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:size]):
            return tag[:size]
    return ""
