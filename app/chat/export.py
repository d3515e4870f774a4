"""A chat as a file: Markdown to read, JSON to work with.

The JSON is an object (version 1)::

    {"format": "ingot-chat", "version": 1,
     "chat": {"title", "created", "updated", "model", "system", "sampling"},
     "branch": [3, 4],                       the messages that are shown, first to last
     "messages": [{"id", "parent", "role", "text", "state", "created", "model", "file", "runtime",
                   "figures": {"prompt_tokens", "cached_tokens", "completion_tokens", "ttft_s",
                               "prefill_tps", "decode_tps", "total_s", "finish_reason"} or null,
                   "attachments": [{"name", "text"}], "error", "dropped",
                   "calls": [{"id", "name", "arguments", "state", "result", "seconds"}]}]}

Times are ISO 8601 in UTC; what is not known is null. Token ids are left out.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.chat.attachments import with_attachments
from app.chat.conversation import Conversation
from app.chat.store.records import Attachment, Chat, Message, Role, State
from app.chat.thinking import fence_after, split
from app.figures import duration, rate
from app.here import at_home, numbered
from quantize.disk import outfile
from runtimes.errors import IngotError, RequestError
from runtimes.output import json_text, markdown
from runtimes.untrusted import visible

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

FORMATS: Mapping[str, str] = {
    "md": "Markdown: the branch that is shown",
    "json": "JSON: every branch, with all figures",
}
_UNSAFE = re.compile(r"[^\w.-]+")
_ACTS = re.compile(r"<(?=[A-Za-z/!?])|!\[")  # begins HTML or an image
_TABLE = re.compile(r"^[ \t]*[|:-][-|: \t]*$", re.MULTILINE)  # the line below a table's head
_ROUNDS = 4
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
    paths = ((folder or Path()) / f"{name}.md" for name in numbered(title))
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
    try:
        with outfile(file, replace=overwrite) as partial:
            partial.write_text(text, encoding="utf-8", newline="\n", errors="replace")
    except FileExistsError:
        raise ExistsError(f"{file} is there already") from None
    except OSError as error:
        raise ExportError(f"{file} cannot be written: {error.strerror or error}") from error
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
    return json_text(data, 1) + "\n"


def as_markdown(conversation: Conversation) -> str:
    """The branch that is shown, with the figures below each answer.

    A message is Markdown itself: its HTML and its images are text, so that a page of it loads
    nothing. Names and titles are text, and control characters are shown.
    """
    chat = conversation.chat
    parts = [f"# {markdown(chat.title) or 'Chat'}"]
    if chat.system:
        parts.append(_quoted(f"System: {chat.system}"))
    for message in conversation.path:
        parts += _section(message)
    return _inert("\n\n".join(parts) + "\n")


def _section(message: Message) -> list[str]:
    when = datetime.fromtimestamp(message.created).strftime("%Y-%m-%d %H:%M")
    if message.role is Role.USER:
        note = " · left out of later prompts" if message.dropped else ""
        files = [replace(one, name=markdown(one.name)) for one in message.attachments]
        # Names are text, and each file has a fence around it.
        return [f"## You · {when}{note}", _closed(with_attachments(message.text, files))]
    found = [f"## {markdown(message.model or 'Answer')} · {when}"]
    for part in split(message.text):
        said = _quoted(f"Thinking:\n\n{part.text}") if part.thinking else _closed(part.text)
        found.append(said)
    for call in message.calls:
        returned = Attachment(f"of the call, {call.state}", call.result or "(no result)")
        said = with_attachments("", [returned]).removeprefix("File ")
        found.append(_quoted(f"Call: {markdown(call.line)}\n\nResult {said}"))
    notes, figures = [], message.figures
    if message.state in _ENDED:
        error = f": {markdown(message.error)}" if message.error else ""
        notes.append(f"{_ENDED[message.state]}{error}")
    if figures is not None:
        notes.append(f"{figures.completion_tokens:,} tokens")
        if figures.decode_tps is not None:
            notes.append(f"decode {rate(figures.decode_tps)}")
        notes.append(f"first token {duration(figures.ttft_s)}")
        if figures.prefill_tps is not None:
            notes.append(f"prefill {rate(figures.prefill_tps)}")
    return [*found, f"*{' · '.join(notes)}*"] if notes else found


def _inert(page: str) -> str:
    """``page`` without HTML that acts and images that are loaded: "<" and "![" become text where
    there are such, not in code. Control characters are shown."""
    page = visible(page, lines=True)
    for _ in range(_ROUNDS):  # what becomes text may end what was code
        if not _ACTS.search(page):
            return page
        before, lines = page, page.split("\n")
        for block in _parser().parse(page):
            first, end = block.map or (0, 0)
            inline = {child.type for child in block.children or ()}
            if inline:  # other Markdown knows tables, whose cells end code too
                inline |= {"html_inline", "image"} if _TABLE.search(block.content) else set()
            if block.type == "html_block" or inline & {"html_inline", "image"}:
                lines[first:end] = [_ACTS.sub(_as_text, line) for line in lines[first:end]]
        page = "\n".join(lines)
        if page == before:
            return page
    return _ACTS.sub(_as_text, page)


def _as_text(found: re.Match[str]) -> str:
    return "&lt;" if found[0] == "<" else "!\\["


@cache
def _parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark")


def _closed(text: str) -> str:
    """An answer whose last fence was not closed must not take what follows into it."""
    fence = ""
    for found in re.finditer(r"^ {0,3}(`{3,}|~{3,})([^\n]*)$", text, re.MULTILINE):
        fence = fence_after(fence, found[1], found[2])
    return f"{text}\n{fence}" if fence else text


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def _fields(record: Chat | Message, *without: str) -> dict[str, Any]:
    found = {k: v for k, v in asdict(record).items() if k not in (*without, "tools")}
    for name in found.keys() & {"created", "updated"}:
        moment = datetime.fromtimestamp(found[name], UTC)
        found[name] = moment.isoformat(timespec="seconds")
    return found
