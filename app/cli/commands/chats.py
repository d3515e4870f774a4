"""`ingot chats`: the stored chats without the terminal app."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app import console
from app.cli.options import YesFlag
from runtimes.untrusted import visible

if TYPE_CHECKING:
    from app.chat.store import ChatStore
    from app.chat.store.records import Chat

chats = typer.Typer(
    help="List, search and export the chats that `ingot chat` has stored.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
IdsArgument = Annotated[
    list[int], typer.Argument(metavar="ID...", help="Chats, by the numbers that the list shows.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
LimitOption = Annotated[int, typer.Option(min=1, help="Maximum number of results.")]


@chats.callback(invoke_without_command=True)
def show(
    context: typer.Context,
    limit: LimitOption = 50,
    deleted: Annotated[
        bool, typer.Option("--deleted", help="Deleted chats, which `restore` can bring back.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List, search and export the chats that `ingot chat` has stored.

    Without a command: the list, the one with the newest message first.
    """
    if context.invoked_subcommand is not None:
        return
    from app.chat.store.store import default_path

    console.prepare_stdout()
    where = default_path()
    found: list[Chat] = []
    if where.exists():
        with _open() as store:
            found = store.deleted()[:limit] if deleted else store.chats(limit)
    if as_json:
        shown = {"file": str(where), "chats": [_chat_json(chat) for chat in found]}
        console.emit_json(shown, indent=1)
    elif found:
        for chat in found:
            console.emit(_line(chat) + "\n")
    else:
        console.note(f"no {'deleted ' if deleted else ''}chats in {where}")


@chats.command()
def search(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT...", help="Words in a message or a title; case does not matter."
        ),
    ],
    limit: LimitOption = 50,
    as_json: JsonOption = False,
) -> None:
    """Find chats that contain all the words; the last may be the beginning of one."""
    console.prepare_stdout()
    with _open() as store:
        hits = store.search(" ".join(words), limit)
    if as_json:
        rows = [
            {**_chat_json(h.chat), "message": h.message, "snippet": h.snippet, "marks": h.marks}
            for h in hits
        ]
        console.emit_json({"hits": rows}, indent=1)
        return
    for hit in hits:
        console.emit(_line(hit.chat) + "\n")
        if hit.message is not None:
            console.emit(f"        {visible(hit.snippet)}\n")
    if not hits:
        console.note("no chat has that")


@chats.command()
def export(
    id: Annotated[int, typer.Argument(metavar="ID", help="A chat, by its number in the list.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Every branch as JSON, not the shown one as Markdown.")
    ] = False,
) -> None:
    """Print a whole chat."""
    from app.chat.conversation import Conversation
    from app.chat.export import as_json as json_of
    from app.chat.export import as_markdown

    console.prepare_stdout()
    with _open() as store:
        conversation = Conversation.open(store, id)
    console.emit(json_of(conversation) if as_json else as_markdown(conversation))


@chats.command()
def rm(ids: IdsArgument) -> None:
    """Delete chats; for 30 days `ingot chats restore` brings them back."""
    _change(ids, "delete_chat", "deleted {id}, {title}; `ingot chats restore {id}`")


@chats.command()
def restore(ids: IdsArgument) -> None:
    """Bring back chats that were deleted."""
    _change(ids, "restore_chat", "{id}, {title}, is back")


def _change(ids: list[int], method: str, told: str) -> None:
    """All of them, or none if one is not there."""
    with _open() as store:
        for chat in [store.chat(id) for id in ids]:
            getattr(store, method)(chat.id)
            console.note(told.format(id=chat.id, title=_title(chat)))


@chats.command()
def repair(yes: YesFlag = False) -> None:
    """Check the file of the chats; rename a damaged one and save what can be read of it."""
    from app.chat.store.repair import is_whole
    from app.chat.store.repair import repair as mend
    from app.chat.store.store import default_path
    from runtimes.errors import RequestError

    where = default_path()
    if not where.exists():
        console.note(f"there is no {where}")
        return
    if not is_whole(where):
        if not yes and not sys.stdin.isatty():
            raise RequestError(f"{where} is damaged; it is set aside only with --yes")
        console.note(f"{where} is damaged. It is renamed, and a new one made of what can be read.")
        if not yes and not typer.confirm("Do that? (End every other Ingot first.)", err=True):
            raise typer.Exit(1)
    done = mend(where)
    what = f"{done.chats:,} chats with {done.messages:,} messages"
    if done.aside is None:
        console.note(f"{where} is whole: {what}; its index was rebuilt")
    else:
        console.note(f"saved {what}; the damaged file is {done.aside}")


def _open() -> ChatStore:
    from app.chat.store import ChatStore

    return ChatStore.open()


def _line(chat: Chat) -> str:
    when = datetime.fromtimestamp(chat.updated).strftime("%Y-%m-%d %H:%M")
    return f"{chat.id:>5}  {when}  {chat.count:>4}  {_title(chat)}"


def _title(chat: Chat) -> str:
    return visible(chat.title) or "(no title)"


def _chat_json(chat: Chat) -> dict[str, Any]:
    created, updated = (
        datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
        for seconds in (chat.created, chat.updated)
    )
    return {
        "id": chat.id,
        "title": chat.title,
        "created": created,
        "updated": updated,
        "messages": chat.count,
        "model": chat.model,
    }
