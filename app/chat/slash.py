"""Commands that are typed into the prompt: /set temperature 0.7.

A text that begins with // is sent with one slash, and one whose first word is a path (/etc/hosts)
as it is.
"""

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from app.chat import sampling_form
from app.chat.attachments import complete_path
from runtimes.errors import RequestError


@dataclass(frozen=True, slots=True)
class Act:
    """Do what a key does: an action of the screen or the app."""

    action: str


@dataclass(frozen=True, slots=True)
class Chats:
    """Look for a chat, with the words of ``query``."""

    query: str = ""


@dataclass(frozen=True, slots=True)
class Model:
    """Load a model; "": choose one."""

    name: str = ""


@dataclass(frozen=True, slots=True)
class System:
    """Set the system message, "" for none; None: edit it."""

    text: str | None = None


@dataclass(frozen=True, slots=True)
class Set:
    """Set a sampling parameter, to its default when ``default``; no ``name``: edit all."""

    name: str = ""
    value: Any = None
    default: bool = False


@dataclass(frozen=True, slots=True)
class Attach:
    """Attach a file; "": choose one."""

    path: str = ""


@dataclass(frozen=True, slots=True)
class Export:
    """Write the chat to a file; "": ask where."""

    path: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the answer."""


@dataclass(frozen=True, slots=True)
class Compare:
    """Ask several files what was asked last here."""


@dataclass(frozen=True, slots=True)
class Quit:
    """Leave without a question."""


Command = Act | Chats | Model | System | Set | Attach | Export | Stop | Compare | Quit


@dataclass(frozen=True, slots=True)
class Spec:
    """A command as it is offered."""

    name: str
    arguments: str  # as people are told
    about: str
    command: Command | Callable[[str], Command]  # the latter is given what is typed after the name


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the whole prompt becomes when it is chosen, what to show for it, and what it does."""

    text: str
    shown: str
    about: str


def _system(rest: str) -> Command:
    return System("" if rest.lower() in ("off", "none") else rest or None)


def _set(rest: str) -> Command:
    name, _, text = rest.replace("=", " ", 1).partition(" ")
    if not name:
        return Set()
    field = sampling_form.field(name)
    text = text.strip()
    if not text:
        raise RequestError(f"/set {field.name} needs a value: {field.range}, or default")
    if text.lower() == "default":
        return Set(field.name, None, default=True)
    return Set(field.name, sampling_form.read_value(field.name, text))


def _path(rest: str) -> str:
    """A path as shells take it too, as far as spaces go."""
    if len(rest) > 1 and rest[0] == rest[-1] and rest[0] in "'\"":
        return rest[1:-1]
    return rest.replace("\\ ", " ")


SPECS: tuple[Spec, ...] = (
    Spec("new", "", "begin an empty chat", Act("screen.new")),
    Spec("chats", "[WORDS]", "open or search earlier chats", Chats),
    Spec("model", "[MODEL]", "load another model", Model),
    Spec("system", "[TEXT|off]", "set the system message", _system),
    Spec("set", "[NAME VALUE]", "set a sampling parameter", _set),
    Spec("attach", "[PATH]", "send a text file along", lambda rest: Attach(_path(rest))),
    Spec("export", "[PATH]", "write the chat to a .md or .json", lambda r: Export(_path(r))),
    Spec("copy", "", "copy the last answer", Act("screen.copy")),
    Spec("regen", "", "ask for another answer", Act("screen.regenerate")),
    Spec("edit", "", "edit your last message, in a branch", Act("screen.edit")),
    Spec("continue", "", "continue a cut answer", Act("screen.continue")),
    Spec("stop", "", "stop the answer", Stop()),
    Spec("compare", "", "ask several files the same", Compare()),
    Spec("batch", "", "run a file of prompts", Act("app.switch_mode('batch')")),
    Spec("quantize", "", "build files of a model", Act("app.switch_mode('quantize')")),
    Spec("monitor", "", "see what the machine does", Act("app.switch_mode('monitor')")),
    Spec("help", "", "show the keys and commands", Act("app.help")),
    Spec("quit", "", "leave", Quit()),
)
# A word after the slash, or nothing at all; what has other signs in it is a path or code.
_COMMAND = re.compile(r"/([a-z][\w-]*(?=\s|$)|\?(?=\s|$)|(?=$))", re.IGNORECASE)
_BY_NAME = {spec.name: spec for spec in SPECS}
_ALIASES = {"regenerate": "regen", "retry": "regen", "exit": "quit", "q": "quit", "?": "help"}


def is_command(text: str) -> bool:
    """Whether ``parse`` would take it for a command, right or wrong."""
    return _COMMAND.match(text) is not None


def parse(text: str) -> Command | None:
    """The command that ``text`` is; None for a text that is to be sent (see ``plain``). Raises
    RequestError: not a command, or not with these arguments."""
    found = _COMMAND.match(text)
    if found is None:
        return None
    name = found[1].lower()
    spec = _BY_NAME.get(_ALIASES.get(name, name))
    if spec is None:
        near = difflib.get_close_matches(name, [*_BY_NAME, *_ALIASES], n=1, cutoff=0.5)
        hint = f"; did you mean /{near[0]}?" if near else "; /help lists them"
        raise RequestError(f"there is no command /{found[1]}{hint} (// begins a text with a slash)")
    rest = text[found.end() :].strip()
    if callable(spec.command):
        return spec.command(rest)
    if rest:
        raise RequestError(f"/{spec.name} takes nothing after it; // begins a text with a slash")
    return spec.command


def plain(text: str) -> str:
    """A text as it is sent: // at its beginning stands for a slash."""
    return text[1:] if text.startswith("//") else text


def candidates(text: str, models: Iterable[str] = ()) -> list[Candidate]:
    """What the prompt's text may become: commands, then names of parameters, paths, or ``models``.
    None for what is no command. Reads a folder for paths."""
    if not is_command(text) or "\n" in text:
        return []
    name, blank, rest = text[1:].partition(" ")
    if not blank:
        return [
            Candidate(
                f"/{spec.name}{' ' if spec.arguments else ''}",
                f"/{spec.name} {spec.arguments}".rstrip(),
                spec.about,
            )
            for spec in SPECS
            if spec.name.startswith(name.lower())
        ]
    head, typed = f"/{name} ", rest.lstrip()
    match _ALIASES.get(name.lower(), name.lower()):
        case "set" if " " not in typed:
            return [
                Candidate(f"{head}{field.name} ", field.name, f"{field.help} ({field.range})")
                for field in sampling_form.FIELDS
                if field.name.startswith(typed.lower())
            ]
        case "attach" | "export":
            return [Candidate(f"{head}{path}", path, "") for path in complete_path(typed)]
        case "model":
            near = (one for one in models if typed.lower() in one.lower())
            return [Candidate(f"{head}{one}", one, "") for one in near]
    return []
