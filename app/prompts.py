"""A prompt from the command line, how it is sent, and how long it may be."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from runtimes.api import Encoder
from runtimes.chat import characters
from runtimes.errors import RequestError

_MOST_PER_TOKEN = 64  # characters, on average
_UTF8_BOM = b"\xef\xbb\xbf"
_MOST_PIPED = 256 * 2**20  # bytes

Warn = Callable[[str], None]


class PromptTooLongError(RequestError):
    """The prompt leaves no room in the context for an answer."""

    def __init__(self, tokens: int, context: int, longest: int, characters: int = 0) -> None:
        """``tokens`` the prompt has, or so many ``characters`` that it is not worth counting them;
        ``context`` is what a slot holds, ``longest`` what one could hold."""
        more = f"--context gives a longer one, up to the model's own {longest:,}"
        said = (
            f"the prompt has {tokens:,} tokens; at most {context - 1:,} fit into the context of "
            f"{context:,} with room for an answer"
        )
        if characters:
            said = f"there are {characters:,} characters; the context holds {context:,} tokens"
        super().__init__(
            f"{said}; " + (more if longest > context else "the model has no longer one")
        )


def refusal_code(error: RequestError) -> str:
    """Return the code of a row's problem for an error of what it asks."""
    long = isinstance(error, PromptTooLongError)
    return "context_length_exceeded" if long else "invalid_request"


@dataclass(frozen=True, slots=True)
class PromptStyle:
    """``raw`` sends the text as it is; otherwise the chat template applies, after ``system``."""

    system: str | None = None
    raw: bool = False

    def __post_init__(self) -> None:
        """Raises RequestError for a system message that would have no place to go."""
        if self.raw and self.system is not None:
            raise RequestError("--system needs the chat template, which --raw leaves out")


def require_short(engine: Encoder, said: object) -> None:
    """Raises PromptTooLongError for texts that are too long for the context, whatever tokens they
    have: those of many megabytes would take seconds to make, and hold up other requests."""
    count = characters(said)
    if count > engine.context * _MOST_PER_TOKEN:
        longest = engine.model.context_length
        raise PromptTooLongError(0, engine.context, longest, characters=count)


def read_prompt(argument: str | None, command: str, warn: Warn) -> str:
    """The prompt from the command line, a blank line, and the text that is piped in.

    Raises RequestError, which shows ``command`` with one, when neither says anything.
    """
    # Nothing is read from a terminal: it would wait for text that nobody knows to type.
    piped = None if sys.stdin is None or sys.stdin.isatty() else read_text(sys.stdin.buffer, warn)
    given = clean_argument(argument, warn)
    parts = [part for part in (given, piped) if part is not None and part.strip()]
    if not parts:
        raise RequestError(
            f'there is no prompt: give one ({command} "What is ...?") or pipe text in'
        )
    return "\n\n".join(parts)


def read_text(stream: IO[bytes], warn: Warn) -> str:
    """All of a byte stream as text, without its last line end, as `$(...)` does.

    Raises RequestError for more than any model reads.
    """
    data = stream.read(_MOST_PIPED + 1)
    if len(data) > _MOST_PIPED:
        raise RequestError(f"standard input has more than {_MOST_PIPED:,} bytes")
    text = _decode(data.removeprefix(_UTF8_BOM), "standard input", warn)
    return text.removesuffix("\n").removesuffix("\r")


def clean_argument(argument: str | None, warn: Warn) -> str | None:
    """A command-line argument without the surrogates that stand for bytes that are no UTF-8."""
    if argument is None:
        return None
    return _decode(argument.encode("utf-8", errors="surrogateescape"), "the command line", warn)


def _decode(data: bytes, where: str, warn: Warn) -> str:
    """Text in which U+FFFD stands for what is no UTF-8; warns if there was any."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        first = error.start + 1
        warn(f"{where} is not all UTF-8 (first at byte {first}); U+FFFD stands for such bytes")
        return data.decode("utf-8", errors="replace")
