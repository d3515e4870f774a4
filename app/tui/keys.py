"""Keys: how users write and read them, problems of a keymap, and what each key does now, from
which the footer, the hints of dialogs, help and the palette are made."""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from operator import itemgetter
from pkgutil import walk_packages
from typing import Any

from textual.app import App
from textual.binding import ActiveBinding, Binding
from textual.dom import DOMNode
from textual.keys import KEY_ALIASES, Keys, _character_to_key
from textual.screen import Screen
from textual.theme import BUILTIN_THEMES
from textual.widgets import Input, TextArea

from app.config.settings import Config
from app.tui import theme

_NAMES = {
    "escape": "esc",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "pageup": "pgup",
    "pagedown": "pgdn",
    "question_mark": "?",
    "slash": "/",
    "equals_sign": "=",
}
_TYPES = "text.cursor_left"  # what has this binding takes letters
_LETTERS = frozenset(map(_character_to_key, map(chr, range(32, 127))))
_NAMED = re.compile(r"\[([a-z]+\.[a-z_]+) ([^\[\]]+)\]")
_MODIFIERS = frozenset({"ctrl", "alt", "shift", "super", "hyper", "meta"})


def bind(
    keys: str,
    id: str,
    title: str = "",
    more: str = "",
    *,
    action: str = "",
    show: bool = True,
    priority: bool = False,
) -> Binding:
    """Return a binding whose action is called as its id is, unless another one is given. ``more``
    explains the title in help and the palette."""
    action = action or id.partition(".")[2]
    return Binding(keys, action, title, show, priority=priority, tooltip=more, id=id)


quiet = partial(bind, show=False)  # one that the footer and hints leave out
# Of the whole app or the chat: one of many, that acts before all others.
key = partial(quiet, priority=True)


def shown(key: str) -> str:
    """A Textual key as people write it: ``alt+left`` is alt+←."""
    *modifiers, last = key.split("+")
    name = _NAMES.get(last, last)
    if last.startswith("f") and last[1:].isdigit():
        name = last.upper()
    return "+".join([*modifiers, name])


def told(node: DOMNode, text: str) -> str:
    """``text`` with each ``[chat.models ctrl+t]``, the name of a binding and its own key, as the
    key that it has now."""
    keymap = node.app._keymap

    def key(found: re.Match[str]) -> str:
        mapped = _keys(keymap.get(found[1], ""))
        return shown(mapped[0]) if mapped else found[2]

    return _NAMED.sub(key, text)


def checked(keymap: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """A keymap from ids to keys in which no two bindings that act at once newly share a key, for
    then one of them would not work: the one that has it anyway keeps it, else the first of the
    keymap. And warnings for the user, also about unknown ids and keys."""
    kept, told = dict(keymap), list[str]()
    known = {one.id for _, found in declared() for one in found if one.id} if keymap else set()
    for name, wanted in keymap.items():
        if name not in known:
            like = get_close_matches(name, known, 1)
            more = f"did you mean {like[0]}?" if like else "docs/chat.md lists them"
            told.append(f"keymap: there is no binding {name}; {more}")
        told += [
            f"keymap: {name}: no terminal has a key {key!r}"
            for key in _keys(wanted)
            if not _exists(key)
        ]
    while clashes := _clashes(kept):
        key, _, name = clashes[0]
        firsts = ", ".join(first for one, first, other in clashes if (one, other) == (key, name))
        told.append(f"keymap: {shown(key)} is both {name} and {firsts}; {name} goes without it")
        left = [one for one in _keys(kept[name]) if one != key]
        kept |= {name: ",".join(left)}
        if not left:
            del kept[name]
    return kept, told


def _clashes(keymap: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Bindings that act at once and share a key, which the keymap gives to one of them at least:
    the key, the one that keeps it, and one that does not. Where two have it anyway, the inner one
    is meant to act before the outer one."""
    if not keymap:
        return []
    order = list(keymap)
    shared: set[tuple[str, str, str]] = set()
    first_of_all = {one.id for _, found in declared() for one in found if one.priority}
    for usual in at_once():
        now = {name: _keys(keymap[name]) if name in keymap else usual[name] for name in usual}
        for key in {key for name in usual if name in keymap for key in now[name]}:
            names = [name for name in now if key in now[name]]
            new = sorted((name for name in names if key not in usual[name]), key=order.index)
            if _TYPES in usual and key in _LETTERS:
                new = [name for name in new if name in first_of_all]
                names = ["what one types", *new]
            first = next((name for name in names if name not in new), None) or new[0]
            shared |= {(key, first, name) for name in new if name != first}
    return sorted(shared)


def at_once() -> Iterator[dict[str, list[str]]]:
    """For each place that the focus can be in: the bindings that act there, with their keys."""
    found = dict(declared())
    owners = {owner.__name__: owner for owner in found}
    app = next(owner for owner in found if issubclass(owner, App))
    for screen, lines in TOGETHER.items():
        for line in lines:
            keys: dict[str, list[str]] = {}
            for owner in (app, *(owners[name] for name in (screen, *line.split()))):
                for base in owner.__mro__:
                    for binding in found.get(base, ()):
                        keys.setdefault(binding.id or binding.action, []).append(binding.key)
            yield keys


def declared() -> Iterator[tuple[type, list[Binding]]]:
    """The bindings that each class of the app declares; imports the whole of it."""
    from app import tui

    for module in walk_packages(tui.__path__, f"{tui.__name__}."):
        for _, owner in inspect.getmembers(import_module(module.name), inspect.isclass):
            if owner.__module__ == module.name and issubclass(owner, DOMNode):
                yield owner, list(Binding.make_bindings(owner.__dict__.get("BINDINGS", [])))


def _keys(text: str) -> list[str]:
    return [key.strip() for key in text.split(",") if key.strip()]


def _exists(key: str) -> bool:
    *modifiers, last = key.split("+")
    named = last in {item.value for item in Keys} or last in KEY_ALIASES or len(last) == 1
    return named and set(modifiers) <= _MODIFIERS


# Classes that have bindings, by their names; each line has widgets from the outer to the inner one.
# Lines that another one has more than are left out; "" is the screen alone.
_ALONE = (
    "AnswersScreen BlindScreen BatchFilesScreen BatchLeaveScreen BatchResumeScreen"
    " BatchRowScreen CallScreen ConfirmScreen CopyChoice OverflowScreen SweepScreen ThemeScreen"
    " TypesScreen"
)
TOGETHER: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_ALONE.split(), ("",)),
    "ChatScreen": (
        "Prompt",
        "Transcript MessageView",
        "Transcript Starter",
        "ChatSidebar SearchLine",
    ),
    "CompareScreen": ("Prompt",),
    "ComparePromptsScreen": ("PromptsForm Line", "PromptsForm PathLine", "RowTable"),
    "BatchScreen": (
        "BatchForm Line",
        "BatchForm PathLine",
        "BatchForm Check",
        "BatchJob BatchTable",
        "BatchJob Words",
    ),
    "QuantizeScreen": (
        "QuantizeForm Line",
        "QuantizeForm PathLine",
        "QuantizeForm Check",
        "QuantizeForm RecipeCards",
        "QuantizeResult FileTable",
    ),
    "MonitorScreen": ("EventLogView SearchLine",),
    "AskScreen": ("Line",),
    "AttachScreen": ("_Line",),
    "BatchJobsScreen": ("JobTable", "PathLine"),
    "BatchPresetsScreen": ("PresetTable",),
    "ChatsScreen": ("SearchLine",),
    "ExportScreen": ("_Line",),
    "FindScreen": ("SearchLine", "Check", "RepoTable", "BuildTable"),
    "HelpScreen": ("SearchLine",),
    "LoadScreen": ("LoadForm Line",),
    "ModelsScreen": ("SearchLine", "ModelTable"),
    "Palette": ("PaletteLine",),
    "SamplingScreen": ("Line",),
    "SystemScreen": ("Area",),
}


# Ids in the order in which they are shown; the tasks of a screen come in this order, too.
TASKS = {
    "Write": "chat.send chat.newline chat.attach chat.older chat.newer chat.complete",
    "Answer": "chat.stop chat.regenerate chat.continue chat.copy",
    "Messages": (
        "chat.select chat.edit chat.before chat.after message.edit message.regenerate message.copy"
        " message.thinking message.drop message.up message.down transcript.up transcript.down"
        " chat.pageup chat.pagedown chat.end transcript.home transcript.end"
    ),
    "Chats": (
        "chat.new chat.chats chat.sidebar sidebar.search sidebar.list sidebar.leave chat.rename"
        " chat.export"
    ),
    "Model": "chat.models chat.find chat.sampling chat.system",
    "Compare": (
        "compare.files compare.stop compare.again compare.together compare.length compare.new"
        " compare.from_chat compare.prompts compare.save"
    ),
    "Job": (
        "batch.start batch.pause batch.resume batch.stop batch.page batch.jobs batch.files"
        " batch.like batch.save batch.model"
    ),
    "Rows": (
        "batch.open batch.search batch.search_leave batch.failed batch.done batch.working"
        " batch.follow batch.sort batch.turn batch.go_to"
    ),
    "Build": (
        "quantize.build quantize.stop recipes.tick quantize.next quantize.after quantize.before"
    ),
    "Files": (
        "quantize.chat_row quantize.mark quantize.compare quantize.report quantize.path"
        " quantize.remove"
    ),
    "Monitor": (
        "monitor.pause monitor.filter events.clear monitor.level monitor.trim monitor.sweep"
    ),
    "Fill in": "form.next_error check.toggle path.complete path.list path.take",
    "Move": (
        "table.select table.up table.down table.page_up table.page_down"
        " table.first table.last"
        " recipes.left recipes.right recipes.up recipes.down recipes.first recipes.last"
        " starter.take palette.first palette.last"
    ),
    "Screens": "app.chat app.compare app.batch app.quantize app.monitor",
    "App": "app.help app.palette app.theme app.interrupt app.quit",
    "Text": (
        "text.cursor_left text.cursor_right text.word_left text.word_right text.cut_word_left"
        " text.cut_word_right text.cut_to_blank"
    ),
}
# Its task, and its place among all.
_PLACES = {
    id: (task, (number, place))
    for number, (task, ids) in enumerate(TASKS.items())
    for place, id in enumerate(ids.split())
}


@dataclass(frozen=True, slots=True)
class Bound:
    """A thing that can be done now, by ``keys`` as people write them. ``id`` is its binding's:
    Textual's own have none. The palette lists what is not ``early`` only for what was typed."""

    task: str
    id: str | None
    keys: list[str]
    title: str
    more: str
    run: partial[Any]
    early: bool = True


def bound(screen: Screen[Any]) -> list[Bound]:
    """List what keys do on ``screen`` now, by task: what only this screen or the focused widget
    has, then the tasks above, at last the screens, the app, and what Textual's own widgets do."""
    found: dict[tuple[object, ...], tuple[tuple[int, int], Bound]] = {}
    for node, binding, enabled, tooltip in screen.active_bindings.values():
        id, title, action = binding.id, binding.description, binding.action
        if title and enabled:
            more = tooltip or binding.tooltip
            task, place = _task(node, id)
            one = Bound(task, id, [], title, more, partial(screen.app.run_action, action, node))
            _, one = found.setdefault((node, id, title, more, action), (place, one))
            one.keys.append(shown(binding.key))
    # Those of one place stay as they were declared.
    return [one for _, one in sorted(found.values(), key=itemgetter(0))]


def offered(screen: Screen[Any]) -> Iterator[ActiveBinding]:
    """Bindings that ``screen`` offers now, the focused widget's first, each action once."""
    seen = set()
    for one in screen.active_bindings.values():
        if one.binding.show and one.enabled and one.binding.action not in seen:
            seen.add(one.binding.action)
            yield one


def _task(node: DOMNode, id: str | None) -> tuple[str, tuple[int, int]]:
    if id is None:
        typed = isinstance(node, Input | TextArea)
        return "Text" if typed else "Move and scroll", (len(TASKS) - typed, 99)
    title = node.BINDING_GROUP_TITLE or type(node).__name__.strip("_").removesuffix("Screen")
    return _PLACES.get(id, (title, (-1, 0)))


def problems(config: Config) -> list[str]:
    """Problems of the settings' keys and theme, a sentence each. Imports the whole app when there
    is a keymap."""
    _, found = checked(config.keymap)
    if config.theme and config.theme not in (*(own.name for own in theme.OWN), *BUILTIN_THEMES):
        found.append(f"theme: there is no theme {config.theme}; F12 shows all themes")
    return found
