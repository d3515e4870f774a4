"""Commands that are typed into the prompt: /set temperature 0.7.

A text that begins with // is sent with one slash, and one whose first word is a path (/etc/hosts)
as it is.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from app.chat import sampling_form
from app.chat.attachments import complete_path
from runtimes.errors import RequestError


class SlashError(RequestError):
    """Not a command, or not with these arguments."""


@dataclass(frozen=True, slots=True)
class New:
    """Begin an empty chat."""


@dataclass(frozen=True, slots=True)
class Chats:
    """Look for a chat, with the words of ``query``."""

    query: str = ""


@dataclass(frozen=True, slots=True)
class Model:
    """Load a model; None: choose one."""

    name: str | None = None


@dataclass(frozen=True, slots=True)
class System:
    """Set the system message, "" for none; None: edit it."""

    text: str | None = None


@dataclass(frozen=True, slots=True)
class Set:
    """Set a sampling parameter, to its default when ``default``; no ``name``: edit all."""

    name: str | None = None
    value: Any = None
    default: bool = False


@dataclass(frozen=True, slots=True)
class Attach:
    """Attach a file; None: choose one."""

    path: str | None = None


@dataclass(frozen=True, slots=True)
class Export:
    """Write the chat to a file; None: ask where."""

    path: str | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the last answer."""


@dataclass(frozen=True, slots=True)
class Regen:
    """Make another answer."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Edit the last message of the user in a branch of its own."""


@dataclass(frozen=True, slots=True)
class Continue:
    """Go on with the last answer."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the answer."""


@dataclass(frozen=True, slots=True)
class Compare:
    """Go to the comparison."""


@dataclass(frozen=True, slots=True)
class Show:
    """Go to another screen, by the name of its mode."""

    mode: str


@dataclass(frozen=True, slots=True)
class Help:
    """Show what there is."""


@dataclass(frozen=True, slots=True)
class Quit:
    """Leave."""


Command = (
    New | Chats | Model | System | Set | Attach | Export | Copy | Regen | Edit | Continue | Stop
    | Compare | Show | Help | Quit
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spec:
    """A command as it is offered: ``arguments`` are for people, ``make`` is given what stands after
    the name, stripped."""

    name: str
    arguments: str
    about: str
    make: Callable[[str], Command]


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the whole prompt becomes when it is chosen, what to show for it, and what it does."""

    text: str
    shown: str
    about: str


def _plain(name: str, make: Callable[[], Command]) -> Callable[[str], Command]:
    def read(rest: str) -> Command:
        if rest:
            raise SlashError(f"/{name} takes nothing after it; // begins a text with a slash")
        return make()

    return read


def _system(rest: str) -> Command:
    return System("" if rest.lower() in ("off", "none") else rest or None)


def _set(rest: str) -> Command:
    name, _, text = rest.replace("=", " ", 1).partition(" ")
    if not name:
        return Set()
    field = sampling_form.field(name)
    text = text.strip()
    if not text:
        raise SlashError(f"/set {field.name} needs a value: {field.range}, or default")
    if text.lower() == "default":
        return Set(field.name, None, default=True)
    return Set(field.name, sampling_form.read_value(field.name, text))


def _path(rest: str) -> str | None:
    """A path as shells take it too, as far as spaces go."""
    if len(rest) > 1 and rest[0] == rest[-1] and rest[0] in "'\"":
        return rest[1:-1]
    return rest.replace("\\ ", " ") or None


SPECS: tuple[Spec, ...] = (
    Spec("new", "", "begin an empty chat", _plain("new", New)),
    Spec("chats", "[WORDS]", "open or search earlier chats", lambda rest: Chats(rest)),
    Spec("model", "[MODEL]", "load another model", lambda rest: Model(rest or None)),
    Spec("system", "[TEXT|off]", "set the system message", _system),
    Spec("set", "[NAME VALUE]", "set a sampling parameter", _set),
    Spec("attach", "[PATH]", "send a text file along", lambda rest: Attach(_path(rest))),
    Spec("export", "[PATH]", "write the chat to a .md or .json", lambda r: Export(_path(r))),
    Spec("copy", "", "copy the last answer", _plain("copy", Copy)),
    Spec("regen", "", "ask for another answer", _plain("regen", Regen)),
    Spec("edit", "", "edit your last message, in a branch", _plain("edit", Edit)),
    Spec("continue", "", "continue a cut answer", _plain("continue", Continue)),
    Spec("stop", "", "stop the answer", _plain("stop", Stop)),
    Spec("compare", "", "ask several files the same", _plain("compare", Compare)),
    Spec("batch", "", "run a file of prompts", _plain("batch", lambda: Show("batch"))),
    Spec("quantize", "", "build files of a model", _plain("quantize", lambda: Show("quantize"))),
    Spec("monitor", "", "see what the machine does", _plain("monitor", lambda: Show("monitor"))),
    Spec("help", "", "show the keys and commands", _plain("help", Help)),
    Spec("quit", "", "leave", _plain("quit", Quit)),
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
    SlashError, or RequestError for a value out of its range."""
    found = _COMMAND.match(text)
    if found is None:
        return None
    name = found[1].lower()
    spec = _BY_NAME.get(_ALIASES.get(name, name))
    if spec is None:
        near = difflib.get_close_matches(name, [*_BY_NAME, *_ALIASES], n=1, cutoff=0.5)
        hint = f"; did you mean /{near[0]}?" if near else "; /help lists them"
        raise SlashError(f"there is no command /{found[1]}{hint} (// begins a text with a slash)")
    return spec.make(text[found.end() :].strip())


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
