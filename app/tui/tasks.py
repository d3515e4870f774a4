"""For what people use each binding: help and the palette put together what serves one task."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from textual.binding import Binding
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widgets import Input, TextArea

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
    "Monitor": "monitor.pause monitor.filter events.clear monitor.level monitor.trim",
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
_PLACES = {id: (task, place) for task, ids in TASKS.items() for place, id in enumerate(ids.split())}


@dataclass(frozen=True, slots=True)
class Bound:
    """A binding that works now, with all of its keys: Textual's own have no id."""

    task: str
    id: str | None
    keys: tuple[str, ...]
    title: str
    more: str
    action: str
    node: DOMNode


def bound(screen: Screen[Any]) -> list[Bound]:
    """What keys do on ``screen`` now, by task: what only this screen or the focused widget has,
    then the tasks above, at last the screens, the app, and what Textual's own widgets do."""
    found: dict[tuple[Any, ...], list[str]] = {}
    for node, binding, enabled, tooltip in screen.active_bindings.values():
        if binding.description and enabled:
            more = tooltip or binding.tooltip
            kind = (_task(node, binding), binding.id, binding.description, more, binding.action)
            found.setdefault((*kind, node), []).append(binding.key)
    made = [
        Bound(task, id, tuple(keys), title, more, action, node)
        for (task, id, title, more, action, node), keys in found.items()
    ]
    return sorted(made, key=_place)  # those of one place stay as they were declared


def _task(node: DOMNode, binding: Binding) -> str:
    if binding.id in _PLACES:
        return _PLACES[binding.id][0]
    if binding.id is None:
        return "Text" if isinstance(node, Input | TextArea) else "Move and scroll"
    return node.BINDING_GROUP_TITLE or type(node).__name__.strip("_").removesuffix("Screen")


def _place(one: Bound) -> tuple[int, int]:
    if one.id is None:
        return list(TASKS).index("Text") + (one.task != "Text"), 99
    if one.id not in _PLACES:
        return -1, 0
    task, place = _PLACES[one.id]
    return list(TASKS).index(task), place


def by_task(those: list[Bound]) -> Iterator[tuple[str, list[Bound]]]:
    """Each task with what serves it, in order."""
    for task in dict.fromkeys(one.task for one in those):
        yield task, [one for one in those if one.task == task]
