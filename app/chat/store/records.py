"""What the store hands out. Changing a record changes nothing on disk: that is the store's part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Role(StrEnum):
    """Who wrote a message."""

    USER = "user"
    ASSISTANT = "assistant"


class State(StrEnum):
    """What became of a message; those of the user are always DONE."""

    STREAMING = "streaming"
    DONE = "done"
    STOPPED = "stopped"  # by the user: the text is what was there by then
    CUT = "cut"  # max_tokens or the context was reached: it can be continued
    FAILED = "failed"  # ``Message.error`` says how
    LOST = "lost"  # the process died while it streamed: the text is what was saved


@dataclass(frozen=True, slots=True)
class Figures:
    """What an answer cost. Seconds, and tokens per second; ``prompt_tokens`` includes the
    ``cached_tokens``, which were not computed again. ``decode_tps`` counts the tokens after the
    first."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft_s: float
    prefill_tps: float | None
    decode_tps: float | None
    total_s: float
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text file that was sent with a message."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat's tree.

    ``created`` is in seconds since 1970. ``model`` is a label such as "pebble · q4_k_m", ``file``
    and ``runtime`` what answered; all None for the user's. A ``dropped`` message is shown but no
    longer sent to the model.
    """

    id: int
    chat: int
    parent: int | None
    role: Role
    text: str
    state: State
    created: float
    model: str | None = None
    file: str | None = None
    runtime: str | None = None
    figures: Figures | None = None
    attachments: tuple[Attachment, ...] = ()
    token_ids: tuple[int, ...] = ()
    error: str | None = None
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat without its messages.

    ``title`` is the start of the first message until somebody renames it, and empty before that.
    ``updated`` is when its newest message came or ended, or a draft was kept. ``model`` is what to
    load to go on, ``leaf`` the last message of the branch that is shown, ``count`` the messages of
    all branches.
    """

    id: int
    title: str
    created: float
    updated: float
    model: str | None = None
    system: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    leaf: int | None = None
    count: int = 0


@dataclass(frozen=True, slots=True)
class Hit:
    """A chat that a search found.

    ``message`` is the newest of its messages that match, None when only the title does; then
    ``snippet`` is the title. ``marks`` are the character ranges of the matches in ``snippet``.
    """

    chat: Chat
    message: int | None
    snippet: str
    marks: tuple[tuple[int, int], ...]
