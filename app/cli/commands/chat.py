"""`ingot chat`: the terminal app."""

import gc
import sys
from typing import Annotated

import typer

from app import console
from app.cli.groups import with_groups
from app.options import MODEL_HELP, ChatAdapters, ModelOptions, PlanOptions


@with_groups
def chat(
    options: ModelOptions,
    adapters: ChatAdapters,
    settings: PlanOptions,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]", help=f"{MODEL_HELP} Without it the app begins with the list."
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option(help="A system message before the conversation.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the last chat.")] = False,
    chat: Annotated[
        int | None, typer.Option("--chat", metavar="ID", help="Resume this chat.")
    ] = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help="Send text as it is, without the chat template: the model continues it. This"
            " always holds for models without a template.",
        ),
    ] = False,
    chat_template: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME",
            help="A chat template instead of the model's own: a file of Jinja2, or chatml, llama3,"
            " gemma.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Talk with a model of an `ingot serve`; MODEL is its name there, without it the"
            " first. The variable INGOT_API_KEY is the key.",
        ),
    ] = None,
    no_mouse: Annotated[
        bool,
        typer.Option("--no-mouse", help="Do not capture the mouse: the terminal can select text."),
    ] = False,
    web: Annotated[
        bool,
        typer.Option("--web", help="Show the app in a browser on this machine instead."),
    ] = False,
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="With --web; 0 takes a free one.")
    ] = 8022,
) -> None:
    """Talk with a model; compare files, run batch jobs and quantize, all in the terminal.

    Needs a terminal: `ingot run` answers one prompt and `ingot batch` a file of them without one.
    """
    from app.tui import terminal
    from runtimes.errors import RequestError

    if resume and chat is not None:
        raise RequestError("--resume is the last chat, --chat another one; give one of them")
    if raw and system is not None:
        raise RequestError("--system needs the chat template, which --raw leaves out")
    if raw and chat_template is not None:
        raise RequestError("--raw leaves the chat template out; leave --chat-template out as well")
    if adapters.adapter:
        from app.adapters import checked

        if url is not None:
            raise RequestError("--url: a server's adapters are models of it, called MODEL:ADAPTER")
        checked(adapters.adapter)
    if url is not None:
        model = at_server(url, model, chat_template)
    template = None
    if chat_template is not None:
        from app.chat.templates import read_template

        template = read_template(chat_template)
    in_browser = terminal.in_browser()
    if web and not in_browser:
        _serve(port)
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
    from app.prompts import clean_argument
    from app.tui.app import run
    from app.tui.services import Start

    system = clean_argument(system, console.note)
    start = Start(
        model, options, settings, system, chat, resume, raw, template, tuple(adapters.adapter or ())
    )
    try:
        code = run(start, mouse=not no_mouse)
    finally:
        gc.enable()
    if code:
        raise typer.Exit(code)


def at_server(url: str, name: str | None, template: str | None) -> str:
    """MODEL as `EngineHost` takes it. Raises RequestError for what is no address of a server."""
    from app.chat.remote import is_url
    from runtimes.errors import RequestError

    if not is_url(url):
        raise RequestError(f"--url must begin with http:// or https://, not {url[:60]!r}")
    if template is not None:
        raise RequestError("--url: a server uses its model's template; leave --chat-template out")
    return url if name is None else f"{url}#{name}"


def _serve(port: int) -> None:
    from runtimes.errors import RequestError

    try:
        from app.tui import web
    except ImportError:
        raise RequestError("--web needs textual-serve: `pip install 'ingot[web]'`") from None
    web.serve(sys.argv[1:], port)
