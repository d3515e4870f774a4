"""Text from elsewhere on its way to a log, a terminal or a page: control characters are shown, and
markup is text. `visible` of `runtimes.untrusted` says which characters those are.

`LogFormatter` formats every log line. `shown_streams` is the net below everything that a command
prints: warnings, tracebacks, questions. `markdown` and `html` quote text in a report. Standard
library only.
"""

import contextlib
import html as escaping
import json
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, cast

from runtimes.untrusted import visible

# Characters with a meaning to Markdown, HTML or TeX, and those that make bare addresses links.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$&@]|:(?=//)|(?<=www)\.)", re.IGNORECASE)
# What JSON may hold as it is, and a terminal takes for a command: see `visible`. C0 is escaped.
_UNSEEN = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

_RICH = re.compile("(\x1b\\[[0-9;?]*[A-Za-z]|\r)")  # what Rich sends to a terminal


class LogFormatter(logging.Formatter):
    """Formats a record as one line, which no text in it can end. A traceback, and the ``output``
    of a program given as ``extra``, follow on lines of their own, indented: none of these lines
    looks like a record either."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's lines."""
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        below = (record.exc_text, record.stack_info, getattr(record, "output", None))
        record.message = record.getMessage()
        if self.usesTime():
            record.asctime = self.formatTime(record, self.datefmt)
        parts = [visible(self.formatMessage(record))]
        parts += [visible(part, lines=True).replace("\n", "\n  ") for part in below if part]
        return "\n".join(parts)


class _Stream:
    """A stream that shows control characters in what is written to ``stream``.

    Rich's consoles find in it the stream that they write to instead, which lets through what Rich
    itself sends: colours, and moves of the cursor. `quantize.terminal` looks at the texts before.
    """

    def __init__(self, stream: IO[str], shown: Callable[[str], str]) -> None:
        self._stream, self._shown = stream, shown

    @property
    def rich_proxied_file(self) -> "_Stream":
        """The name that Rich looks for."""
        return _Stream(self._stream, _styled)

    def write(self, text: str) -> int:
        self._stream.write(self._shown(text))
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _plain(text: str) -> str:
    return visible(text, lines=True)


def _styled(text: str) -> str:
    """``text`` that Rich has written."""
    return "".join(
        part if number % 2 else visible(part, lines=True)
        for number, part in enumerate(_RICH.split(text))
    )


@contextlib.contextmanager
def shown_streams() -> Iterator[None]:
    """Show control characters in all that Python code writes to stderr, and to a stdout that is a
    terminal: answers and data go raw to a pipe or a file."""
    before = sys.stdout, sys.stderr
    if sys.stderr is not None:
        sys.stderr = cast(Any, _Stream(sys.stderr, _plain))
    if is_terminal(sys.stdout):
        sys.stdout = cast(Any, _Stream(sys.stdout, _plain))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def is_terminal(stream: IO[str] | None) -> bool:
    """Whether ``stream`` is open, and a terminal."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def json_text(data: Any, indent: int | None = None) -> str:
    """``data`` as JSON in readable Unicode, without a character that a terminal obeys."""
    return json_seen(json.dumps(data, indent=indent, ensure_ascii=False))


def json_seen(text: str) -> str:
    """JSON ``text`` with escapes for the characters that a terminal obeys; it means the same."""
    if text.isascii() and "\x7f" not in text:
        return text
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def markdown(text: str) -> str:
    """``text`` so that Markdown and HTML show it as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", visible(" ".join(text.split())))


def markdown_lines(text: str) -> list[str]:
    """The lines of ``text``, each as `markdown` makes it, with its blanks."""
    return [_SPECIAL.sub(r"\\\1", line) for line in visible(text, lines=True).split("\n")]


def html(text: str) -> str:
    """``text`` so that HTML shows it as it is."""
    return escaping.escape(visible(text, lines=True))
