"""Records that the chat store returns. Changing a record changes nothing on disk."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from app.tools.calls import ToolCall


class Role(StrEnum):
    """Author of a message."""

    USER = "user"
    ASSISTANT = "assistant"


class State(StrEnum):
    """Outcome of a message; a user's message is always DONE."""

    STREAMING = "streaming"
    DONE = "done"
    STOPPED = "stopped"  # by the user: the text is what was there by then
    CUT = "cut"  # max_tokens or the context was reached: it can be continued
    FAILED = "failed"  # ``Message.error`` says how
    LOST = "lost"  # the process died while it streamed: the text is what was saved


@dataclass(frozen=True, slots=True)
class AnswerFigures:
    """Tokens and seconds of an answer."""

    prompt_tokens: int  # with the cached ones
    cached_tokens: int  # were not computed again
    completion_tokens: int
    ttft_s: float
    prefill_tps: float | None
    decode_tps: float | None  # of the tokens after the first
    total_s: float
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text file that was sent with a message."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat's tree; its fields are the columns of its table."""

    id: int
    chat: int
    parent: int | None
    role: Role
    text: str
    state: State
    created: float  # seconds since 1970
    model: str | None = None  # what answered, a label such as "pebble · q4_k_m"
    file: str | None = None
    runtime: str | None = None
    figures: AnswerFigures | None = None
    attachments: tuple[Attachment, ...] = ()
    token_ids: tuple[int, ...] = ()
    error: str | None = None
    dropped: bool = False  # shown, but not sent to the model
    calls: tuple[ToolCall, ...] = ()  # of tools, after the text; an answer to their results follows


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat without its messages."""

    id: int
    title: str  # the start of the first message until somebody renames it; empty before that
    created: float
    updated: float  # when its newest message came or ended, or a draft was kept
    model: str | None = None  # what to load to go on
    system: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    leaf: int | None = None  # the last message of the branch that is shown
    count: int = 0  # messages of all branches
    raw: bool = False  # text is sent as it is, without the model's chat template
    # Whether a server's tools may be called, where it was chosen in this chat.
    tools: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hit:
    """A chat that a search found."""

    chat: Chat
    message: int | None  # the newest that matches, None when only the title does
    snippet: str  # of the message or the title
    marks: tuple[tuple[int, int], ...]  # character ranges of the matches in ``snippet``
