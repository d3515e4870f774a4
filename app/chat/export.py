"""A chat as a file: Markdown to read, JSON to work with.

The JSON is an object (version 1)::

    {"format": "ingot-chat", "version": 1,
     "chat": {"title", "created", "updated", "model", "system", "sampling"},
     "branch": [3, 4],                       the messages that are shown, first to last
     "messages": [{"id", "parent", "role", "text", "state", "created", "model", "file", "runtime",
                   "figures": {"prompt_tokens", "cached_tokens", "completion_tokens", "ttft_s",
                               "prefill_tps", "decode_tps", "total_s", "finish_reason"} or null,
                   "attachments": [{"name", "text"}], "error", "dropped"}]}

Times are ISO 8601 in UTC; what is not known is null. Token ids are left out.
"""

import contextlib
import dataclasses
import datetime
import itertools
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from app.chat.attachments import with_attachments
from app.chat.conversation import Conversation
from app.chat.store.records import Chat, Message, Role, State
from app.chat.thinking import split
from app.figures import duration, rate
from app.here import at_home
from runtimes.errors import IngotError, RequestError

FORMATS: Mapping[str, str] = MappingProxyType(
    {"md": "Markdown: the branch that is shown", "json": "JSON: every branch, with all figures"}
)
_UNSAFE = re.compile(r"[^\w.-]+")
_ENDED = {
    State.STOPPED: "stopped by the user",
    State.CUT: "cut at its longest",
    State.FAILED: "failed",
    State.LOST: "lost when the program ended",
    State.STREAMING: "still being written",
}


class ExportError(IngotError):
    """The file cannot be written."""

    exit_code = 4


class ExistsError(RequestError):
    """The file is there already."""


def suggested_path(conversation: Conversation, folder: Path | None = None) -> Path:
    """A path that is free, in ``folder`` (the working folder), called after the chat."""
    title = _UNSAFE.sub("-", conversation.chat.title).strip("-.")[:60].rstrip("-.") or "chat"
    names = itertools.chain([title], (f"{title}-{number}" for number in itertools.count(2)))
    paths = ((folder or Path()) / f"{name}.md" for name in names)
    return next(path for path in paths if not path.exists())


def export(conversation: Conversation, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write the chat to a .md or .json file, in one step; the file that was written.

    Markdown has the branch that is shown, JSON all branches. A path that is a folder gets a
    suggested name in it. Raises RequestError for another ending, ExistsError for a file that is
    there, unless ``overwrite``, and ExportError for one that cannot be written.
    """
    file = at_home(path)
    if file.is_dir():
        file = suggested_path(conversation, folder=file)
    form = file.suffix.removeprefix(".").lower()
    form = {"markdown": "md"}.get(form, form)
    if form not in FORMATS:
        raise RequestError(f"{file}: end its name with .md (to read) or .json (to work with)")
    text = as_markdown(conversation) if form == "md" else as_json(conversation)
    _write(file, text, overwrite=overwrite)
    return file


def as_json(conversation: Conversation) -> str:
    """The object of this module's description."""
    data = {
        "format": "ingot-chat",
        "version": 1,
        "chat": _fields(conversation.chat, "id", "leaf", "count"),
        "branch": [message.id for message in conversation.path],
        "messages": [_fields(one, "chat", "token_ids") for one in conversation.messages],
    }
    return json.dumps(data, ensure_ascii=False, indent=1) + "\n"


def as_markdown(conversation: Conversation) -> str:
    """The branch that is shown, with the figures below each answer."""
    chat = conversation.chat
    parts = [f"# {chat.title or 'Chat'}"]
    if chat.system:
        parts.append(_quoted(f"System: {chat.system}"))
    for message in conversation.path:
        parts += _section(message)
    return "\n\n".join(parts) + "\n"


def _section(message: Message) -> list[str]:
    when = datetime.datetime.fromtimestamp(message.created).strftime("%Y-%m-%d %H:%M")
    if message.role is Role.USER:
        note = " · left out of later prompts" if message.dropped else ""
        return [f"## You · {when}{note}", with_attachments(message.text, message.attachments)]
    found = [f"## {message.model or 'Answer'} · {when}"]
    for part in split(message.text):
        said = _quoted(f"Thinking:\n\n{part.text}") if part.thinking else _closed(part.text)
        found.append(said)
    notes = []
    if message.state in _ENDED:
        error = f": {message.error}" if message.error else ""
        notes.append(f"{_ENDED[message.state]}{error}")
    if message.figures is not None:
        figures = message.figures
        notes.append(f"{figures.completion_tokens:,} tokens")
        if figures.decode_tps is not None:
            notes.append(f"decode {rate(figures.decode_tps)}")
        notes.append(f"first token {duration(figures.ttft_s)}")
        if figures.prefill_tps is not None:
            notes.append(f"prefill {rate(figures.prefill_tps)}")
    return [*found, f"*{' · '.join(notes)}*"] if notes else found


def _closed(text: str) -> str:
    """An answer whose last fence was not closed must not take what follows into it."""
    fence = ""
    for found in re.finditer(r"^ {0,3}(`{3,}|~{3,})([^\n]*)$", text, re.MULTILINE):
        if not fence:
            fence = found[1]
        elif found[1].startswith(fence) and not found[2].strip():
            fence = ""
    return f"{text}\n{fence}" if fence else text


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def _fields(record: Chat | Message, *without: str) -> dict[str, Any]:
    found = {k: v for k, v in dataclasses.asdict(record).items() if k not in without}
    for name in found.keys() & {"created", "updated"}:
        moment = datetime.datetime.fromtimestamp(found[name], datetime.UTC)
        found[name] = moment.isoformat(timespec="seconds")
    return found


def _write(file: Path, text: str, *, overwrite: bool) -> None:
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8", newline="\n", errors="replace") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        if overwrite:
            partial.replace(file)
        else:
            _put(partial, file)
    except FileExistsError:
        raise ExistsError(f"{file} is there already") from None
    except OSError as error:
        raise ExportError(f"{file} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _put(partial: Path, file: Path) -> None:
    """Give ``partial`` its name. Raises FileExistsError, also for a file that came this moment."""
    try:
        os.link(partial, file)
    except OSError:
        if file.exists():
            raise FileExistsError from None
        partial.replace(file)  # a file system without hard links
