"""What a message's widgets show, to compare with what they were given."""

from __future__ import annotations

import re

from textual.widgets.markdown import MarkdownBlock

from app.tui.widgets.answer_body import AnswerBody
from app.tui.widgets.code_block import CodeBlock
from app.tui.widgets.message_view import MessageView

_MARKS = re.compile(r"^#+ |^- |\*\*", re.MULTILINE)


def differs(view: MessageView, given: str) -> int:
    """In how many words the shown text differs from ``given`` (plain Markdown without links: words,
    headings, lists, bold, and one level of fences); 0 when nothing is lost or twice."""
    shown = shown_words(view)
    wanted = _MARKS.sub("", re.sub(r"^```\w*$", "", given, flags=re.MULTILINE)).split()
    wrong = abs(len(shown) - len(wanted))
    return wrong + sum(a != b for a, b in zip(shown, wanted, strict=False))


def shown_words(view: MessageView) -> list[str]:
    """Every word in the order in which the widgets stand."""
    assert isinstance(view.body, AnswerBody)
    words: list[str] = []
    for section in view.body.sections:
        if isinstance(section, CodeBlock):
            words += " ".join(section.lines).split()
            continue
        for block in section.query(MarkdownBlock):
            words += block._content.plain.split()
        words += section.tail_text.split()
    return words
