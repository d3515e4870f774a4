"""`ingot chat`: the terminal app. `ingot chats`: the stored chats without it."""

from __future__ import annotations

import gc
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from app.cli.options import YES, group, with_groups
from app.console import emit, emit_json, note, prepare_stdout
from app.options import MODEL_HELP, ChatAdapters, ModelOptions, PlanOptions, argument, option
from runtimes.errors import RequestError
from runtimes.untrusted import visible

if TYPE_CHECKING:
    from app.chat.store.records import Chat
    from app.chat.store.store import ChatStore


@with_groups
def chat(
    options: ModelOptions,
    adapters: ChatAdapters,
    settings: PlanOptions,
    model: str | None = argument(
        f"{MODEL_HELP} Without it the app begins with the list.", None, metavar="[MODEL]"
    ),
    system: str | None = option(None, "A system message before the conversation."),
    resume: bool = option(False, "Resume the last chat."),
    chat: int | None = option(None, "Resume this chat.", metavar="ID"),
    raw: bool = option(
        False,
        "Send text as it is, without the chat template: the model continues it. This always holds"
        " for models without a template.",
    ),
    chat_template: str | None = option(
        None,
        "A chat template instead of the model's own: a file of Jinja2, or chatml, llama3, gemma.",
        metavar="FILE|NAME",
    ),
    url: str | None = option(
        None,
        "Talk with a model of an `ingot serve`; MODEL is its name there, without it the first. The"
        " variable INGOT_API_KEY is the key.",
        metavar="URL",
    ),
    no_mouse: bool = option(False, "Do not capture the mouse: the terminal can select text."),
    web: bool = option(False, "Show the app in a browser on this machine instead."),
    port: int = option(8022, "With --web; 0 takes a free one.", metavar="PORT", min=0, max=65535),
) -> None:
    """Talk with a model; compare files, run batch jobs and quantize, all in the terminal.

    Needs a terminal: `ingot run` answers one prompt and `ingot batch` a file of them without one.
    """
    from app.prompts import PromptStyle, clean_argument
    from app.tui import terminal

    if resume and chat is not None:
        raise RequestError("--resume is the last chat, --chat another one; give one of them")
    PromptStyle(system, raw)  # refuses the one with the other
    if raw and chat_template is not None:
        raise RequestError("--raw leaves the chat template out; leave --chat-template out as well")
    if adapters.adapter:
        from app.adapters import checked

        if url is not None:
            raise RequestError("--url: a server's adapters are models of it, called MODEL:ADAPTER")
        checked(adapters.adapter)
    if url is not None:
        from app.chat.host import is_url

        if not is_url(url):
            raise RequestError(f"--url must begin with http:// or https://, not {url[:60]!r}")
        if chat_template is not None:
            raise RequestError(
                "--url: a server uses its model's template; leave --chat-template out"
            )
        model = url if model is None else f"{url}#{model}"
    template = None
    if chat_template is not None:
        from app.chat.load_settings import read_template

        template = read_template(chat_template)
    in_browser = terminal.in_browser()
    if web and not in_browser:
        try:
            from app.tui.web import serve
        except ImportError:
            raise RequestError("--web needs textual-serve: `pip install 'ingot[web]'`") from None
        serve(sys.argv[1:], port)
        return
    missing = None if in_browser else terminal.problem()
    if missing is not None:
        name = model or "MODEL"
        raise RequestError(
            f"`ingot chat` draws on a terminal, but {missing}. Without one:\n"
            f'  ingot run {name} "What is ...?"              one answer on stdout\n'
            f"  ingot chat {name} --web                      the app in a browser\n"
            f"  ingot batch IN OUT --model {name}            a file of prompts"
        )

    gc.disable()  # until the app is drawn, see ``IngotApp``: what comes until then stays
    from app.tui.app import run
    from app.tui.services import Start

    system = clean_argument(system, note)
    start = Start(
        model, options, settings, system, chat, resume, raw, template, tuple(adapters.adapter or ())
    )
    try:
        code = run(start, mouse=not no_mouse)
    finally:
        gc.enable()
    if code:
        raise typer.Exit(code)


chats = group("List, search and export the chats that `ingot chat` has stored.")
_IDS = argument("Chats, by the numbers that the list shows.", metavar="ID...")
_AS_JSON = option(False, "Print JSON instead of a table.", "--json")
_LIMIT = option(50, "Maximum number of results.", min=1)


@chats.callback(invoke_without_command=True)
@with_groups
def show(
    context: typer.Context,
    limit: int = _LIMIT,
    deleted: bool = option(False, "Deleted chats, which `restore` can bring back."),
    as_json: bool = _AS_JSON,
) -> None:
    """List, search and export the chats that `ingot chat` has stored.

    Without a command: the list, the one with the newest message first.
    """
    if context.invoked_subcommand is not None:
        return
    from app.chat.store.store import default_path

    prepare_stdout()
    where = default_path()
    found: list[Chat] = []
    if where.exists():
        with _open() as store:
            found = store.deleted()[:limit] if deleted else store.chats(limit)
    if as_json:
        shown = {"file": str(where), "chats": [_chat_json(chat) for chat in found]}
        emit_json(shown, indent=1)
    elif found:
        for chat in found:
            emit(_line(chat) + "\n")
    else:
        note(f"no {'deleted ' if deleted else ''}chats in {where}")


@chats.command()
@with_groups
def search(
    words: list[str] = argument(
        "Words in a message or a title; case does not matter.", metavar="TEXT..."
    ),
    limit: int = _LIMIT,
    as_json: bool = _AS_JSON,
) -> None:
    """Find chats that contain all the words; the last may be the beginning of one."""
    prepare_stdout()
    with _open() as store:
        hits = store.search(" ".join(words), limit)
    if as_json:
        rows = [
            {**_chat_json(h.chat), "message": h.message, "snippet": h.snippet, "marks": h.marks}
            for h in hits
        ]
        emit_json({"hits": rows}, indent=1)
        return
    for hit in hits:
        emit(_line(hit.chat) + "\n")
        if hit.message is not None:
            emit(f"        {visible(hit.snippet)}\n")
    if not hits:
        note("no chat has that")


@chats.command()
@with_groups
def export(
    id: int = argument("A chat, by its number in the list.", metavar="ID"),
    as_json: bool = option(False, "Every branch as JSON, not the shown one as Markdown.", "--json"),
) -> None:
    """Print a whole chat."""
    from app.chat.conversation import Conversation
    from app.chat.export import as_json as json_of
    from app.chat.export import as_markdown

    prepare_stdout()
    with _open() as store:
        conversation = Conversation.open(store, id)
    emit(json_of(conversation) if as_json else as_markdown(conversation))


@chats.command()
@with_groups
def rm(ids: list[int] = _IDS) -> None:
    """Delete chats; for 30 days `ingot chats restore` brings them back."""
    _change(ids, "delete_chat", "deleted {id}, {title}; `ingot chats restore {id}`")


@chats.command()
@with_groups
def restore(ids: list[int] = _IDS) -> None:
    """Bring back chats that were deleted."""
    _change(ids, "restore_chat", "{id}, {title}, is back")


def _change(ids: list[int], method: str, told: str) -> None:
    """All of them, or none if one is not there."""
    with _open() as store:
        for chat in [store.chat(id) for id in ids]:
            getattr(store, method)(chat.id)
            note(told.format(id=chat.id, title=_title(chat)))


@chats.command()
@with_groups
def repair(yes: bool = YES) -> None:
    """Check the file of the chats; rename a damaged one and save what can be read of it."""
    from app.chat.store.repair import is_whole
    from app.chat.store.repair import repair as mend
    from app.chat.store.store import default_path

    where = default_path()
    if not where.exists():
        note(f"there is no {where}")
        return
    if not is_whole(where):
        if not yes and not sys.stdin.isatty():
            raise RequestError(f"{where} is damaged; it is set aside only with --yes")
        note(f"{where} is damaged. It is renamed, and a new one made of what can be read.")
        if not yes and not typer.confirm("Do that? (End every other Ingot first.)", err=True):
            raise typer.Exit(1)
    done = mend(where)
    what = f"{done.chats:,} chats with {done.messages:,} messages"
    if done.aside is None:
        note(f"{where} is whole: {what}; its index was rebuilt")
    else:
        note(f"saved {what}; the damaged file is {done.aside}")


def _open() -> ChatStore:
    from app.chat.store.store import ChatStore

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
