"""Commands that are typed into the prompt: /set temperature 0.7.

A text that begins with // is sent with one slash, and one whose first word is a path (/etc/hosts)
as it is.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from app.chat import sampling_form
from app.chat.attachments import complete_path
from runtimes.errors import RequestError


@dataclass(frozen=True, slots=True)
class Spec:
    """A command as it is offered, and the action of the screen or the app that it is.

    ``read`` makes the action's arguments of what is typed after the name; without it, nothing may
    be typed there.
    """

    name: str
    arguments: str  # as people are told
    about: str
    action: str
    read: Callable[[str], tuple[Any, ...]] | None = None


@dataclass(frozen=True, slots=True)
class SlashChoice:
    """Completion: the new text of the prompt, its label and its description."""

    text: str
    shown: str
    about: str


def _words(rest: str) -> tuple[Any, ...]:
    return (rest,) if rest else ()


def _path(rest: str) -> tuple[Any, ...]:
    """A path as shells take it too, as far as spaces go."""
    if len(rest) > 1 and rest[0] == rest[-1] and rest[0] in "'\"":
        return (rest[1:-1],)
    return _words(rest.replace("\\ ", " "))


def _system(rest: str) -> tuple[Any, ...]:
    return ("",) if rest.lower() in ("off", "none") else _words(rest)


def _set(rest: str) -> tuple[Any, ...]:
    name, _, text = rest.replace("=", " ", 1).partition(" ")
    if not name:
        return ()
    field = sampling_form.field(name)
    text = text.strip()
    if not text:
        raise RequestError(f"/set {field.name} needs a value: {field.range}, or default")
    if text.lower() == "default":
        return (field.name,)
    return field.name, sampling_form.read_value(field.name, text)


def _form(kind: str) -> Callable[[str], tuple[Any, ...]]:
    """The form of answers, as ``app.chat.structured`` reads it."""
    return lambda rest: (kind, rest) if rest else ()


def _think(rest: str) -> tuple[Any, ...]:
    """A level, or a number of tokens that a thought may have."""
    if not rest:
        return ()
    if rest.lower() == "default":
        return ("thinking",)
    name = "think_tokens" if rest[0].isdigit() else "thinking"
    return name, sampling_form.read_value(name, rest)


SPECS: tuple[Spec, ...] = (
    Spec("new", "", "begin an empty chat", "screen.new"),
    Spec("chats", "[WORDS]", "open or search earlier chats", "screen.chats", _words),
    Spec("sidebar", "", "show or hide the list of chats", "screen.sidebar"),
    Spec("model", "[MODEL]", "load another model", "screen.models", _words),
    Spec("adapter", "[NAME|off]", "answer with a LoRA adapter", "screen.adapter", _words),
    Spec("find", "[WORDS]", "find a model on the hub", "screen.find", _words),
    Spec("system", "[TEXT|off]", "set the system message", "screen.system", _system),
    Spec("set", "[NAME VALUE]", "set a sampling parameter", "screen.sampling", _set),
    Spec("think", "[LEVEL|N]", "think or not, or N tokens at most", "screen.sampling", _think),
    Spec("tools", "[SERVER]", "list tools; let the model use them, or not", "screen.tools", _words),
    Spec("schema", "[FILE|off]", "answer with JSON", "screen.form", _form("json_schema")),
    Spec("choice", "[A|B|off]", "answer with one of these", "screen.form", _form("choices")),
    Spec("raw", "", "send text as it is; the answer continues it", "screen.raw"),
    Spec("attach", "[PATH]", "send a text file or document along", "screen.attach", _path),
    Spec("export", "[PATH]", "write the chat to a .md or .json", "screen.export", _path),
    Spec("copy", "", "copy the last answer", "screen.copy"),
    Spec("regen", "", "ask for another answer", "screen.regenerate"),
    Spec("edit", "", "edit your last message, in a branch", "screen.edit"),
    Spec("continue", "", "continue a cut answer", "screen.more"),
    Spec("stop", "", "stop the answer", "screen.halt"),
    Spec("compare", "", "ask several files the same", "screen.compare"),
    Spec("batch", "", "run a file of prompts", "app.switch_mode('batch')"),
    Spec("quantize", "", "build files of a model", "app.switch_mode('quantize')"),
    Spec("monitor", "", "see what the machine does", "app.switch_mode('monitor')"),
    Spec("help", "", "show the keys and commands", "app.help"),
    Spec("quit", "", "leave", "screen.quit"),
)
# A word after the slash, or nothing at all; what has other signs in it is a path or code.
_COMMAND = re.compile(r"/([a-z][\w-]*(?=\s|$)|\?(?=\s|$)|(?=$))", re.IGNORECASE)
_BY_NAME = {spec.name: spec for spec in SPECS}
_ALIASES = {"regenerate": "regen", "retry": "regen", "exit": "quit", "q": "quit", "?": "help"}


def is_command(text: str) -> bool:
    """Whether ``parse`` would take it for a command, right or wrong."""
    return _COMMAND.match(text) is not None


def parse(text: str) -> str | None:
    """The action that ``text`` asks for, such as "screen.chats('eggs')"; None for a text that is to
    be sent (see ``plain``). Raises RequestError: not a command, or not with these arguments."""
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
    if spec.read is not None:
        arguments = ", ".join(map(repr, spec.read(rest)))
        return f"{spec.action}({arguments})" if arguments else spec.action
    if rest:
        raise RequestError(f"/{spec.name} takes nothing after it; // begins a text with a slash")
    return spec.action


def plain(text: str) -> str:
    """A text as it is sent: // at its beginning stands for a slash."""
    return text[1:] if text.startswith("//") else text


def candidates(
    text: str,
    models: Iterable[str] = (),
    adapters: Sequence[str] = (),
    servers: Sequence[str] = (),
) -> list[SlashChoice]:
    """Complete the prompt's text: commands, then names of parameters, paths, ``models``,
    ``adapters`` or tool ``servers``. Returns an empty list for text that is no command. Reads a
    folder for paths.
    """
    if not is_command(text) or "\n" in text:
        return []
    name, blank, rest = text[1:].partition(" ")
    if not blank:
        return [
            SlashChoice(
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
                SlashChoice(f"{head}{field.name} ", field.name, f"{field.help} ({field.range})")
                for field in sampling_form.FIELDS
                if field.name.startswith(typed.lower())
            ]
        case "attach" | "export" | "schema":
            found = complete_path(typed)
        case "model":
            found = [one for one in models if typed.lower() in one.lower()]
        case "adapter" if adapters:
            found = [one for one in (*adapters, "off") if one.startswith(typed)]
        case "tools":
            found = [one for one in servers if one.startswith(typed)]
        case _:
            found = []
    return [SlashChoice(f"{head}{one}", one, "") for one in found]
