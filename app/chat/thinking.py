"""Thoughts of a model: found in an answer's text, and kept out of the next prompt.

A block is <think>, <thinking> or <reasoning> at the start of a line, outside of fenced code, up to
its closing tag. A closing tag without an opening one ends a block that began with the text: some
templates open the block in the prompt.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtimes.chat import THINKING, THOUGHT_BEGUN, Message, render_chat
from runtimes.errors import RequestError

_MARK = re.compile(
    rf"^[ \t]*(?:(?P<fence>`{{3,}}|~{{3,}})(?P<info>[^\n]*)|(?P<open><(?:{'|'.join(THINKING)})>))"
    rf"|(?P<close></(?:{'|'.join(THINKING)})>)",
    re.MULTILINE | re.IGNORECASE,
)
OPENS, CLOSES = "<think>\n", "\n</think>\n\n"  # as an answer's thought is kept
_TAGS = tuple(f"<{slash}{name}>" for slash in ("", "/") for name in THINKING)


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of an answer without its tags; ``open`` while a block's end has not come."""

    thinking: bool
    text: str
    open: bool = False


def split(text: str, *, final: bool = True) -> tuple[Part, ...]:
    """The parts of an answer in their order; none is blank, but for a block that is open.

    While it streams (not ``final``), the start of a tag at the very end is held back.
    """
    if not final:
        text = _without_begun_tag(text)
    parts: list[Part] = []
    start, fence, inside = 0, "", False

    def add(piece: str, *, thinking: bool, open_: bool = False) -> None:
        if piece.strip() or open_:
            parts.append(Part(thinking, piece.strip("\n"), open_))

    for mark in _MARK.finditer(text):
        if mark["close"]:
            # Before any answer, as it ends what the prompt has opened; a stray one is text.
            if inside or (not fence and not any(p.thinking for p in parts)):
                add(text[start : mark.start()], thinking=True)
                start, inside, fence = mark.end(), False, ""
        elif inside:
            continue
        elif mark["fence"]:
            fence = fence_after(fence, mark["fence"], mark["info"])
        elif not fence:
            add(text[start : mark.start()], thinking=False)
            start, inside = mark.end(), True
    add(text[start:], thinking=inside, open_=inside)
    return tuple(parts)


def answer_of(text: str) -> str:
    """An answer without its thinking, as the next prompt has it."""
    if "<" not in text:
        return text
    parts = split(text)
    if len(parts) == 1 and not parts[0].thinking:
        return text
    return "\n\n".join(part.text for part in parts if not part.thinking).strip()


def thinks(text: str) -> bool:
    """Whether an answer so far ends within a thought."""
    parts = split(text)
    return bool(parts) and parts[-1].open


def thought_of(text: str) -> str:
    """The thinking of an answer, without its tags."""
    if "<" not in text:
        return ""
    return "\n\n".join(part.text for part in split(text) if part.thinking)


def opening(
    template: str | None,
    messages: Sequence[Message],
    variables: Mapping[str, Any] | None = None,
) -> str:
    """The tag with which the model's chat template begins the answer itself, and a line end; "" if
    it begins none. The template's prompt ends with it, so that the model will not write it."""
    if template is None or not any(f"<{name}>" in template for name in THINKING):
        return ""
    try:
        found = THOUGHT_BEGUN.search(render_chat(template, messages, variables=variables))
    except RequestError:
        return ""
    return f"{found[1]}\n" if found else ""


def fence_after(now: str, marks: str, info: str) -> str:
    """The fence that is open after a line of ``marks`` and ``info``, where ``now`` was open.
    CommonMark: as many marks, or more, close one."""
    if not now:
        return "" if marks[0] == "`" and "`" in info else marks
    closes = marks[0] == now[0] and len(marks) >= len(now) and not info.strip()
    return "" if closes else now


def _without_begun_tag(text: str) -> str:
    """``text`` without a tail that a tag begins with."""
    at = text.rfind("<")
    tail = text[at:].lower()
    begun = at >= 0 and any(tag.startswith(tail) and tag != tail for tag in _TAGS)
    return text[:at] if begun else text
