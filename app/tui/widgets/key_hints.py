"""The keys of a dialog, at its bottom: as many lines as they need, and each can be clicked."""

from collections.abc import Iterator
from operator import itemgetter

from textual import events
from textual.binding import Binding
from textual.content import Content
from textual.dom import DOMNode
from textual.style import Style
from textual.widgets import Static

from app.tui.keys import shown

_GAP = 3  # cells between two keys


class KeyHints(Static):
    """What works now in the screen that it stands in, without what holds in the whole app."""

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, lambda _: self._say())

    def on_resize(self, event: events.Resize) -> None:
        self._say()

    def _say(self) -> None:
        width, lines, taken = self.content_size.width, [Content()], 0
        for hint in self._hints():
            if taken and taken + _GAP + hint.cell_length > width:
                lines.append(Content())
                taken = 0
            if taken:
                lines[-1] += Content(" " * _GAP)
                taken += _GAP
            lines[-1] += hint
            taken += hint.cell_length
        self.update(Content("\n").join(lines))

    def _hints(self) -> Iterator[Content]:
        """First those of the focused widget, then those of the screen in the order in which it
        declares them."""
        screen = self.screen
        classes = [one.__dict__.get("BINDINGS", []) for one in type(screen).__mro__]
        declared = [one.id for found in classes for one in Binding.make_bindings(found)]
        helps = any(node.HELP for node in (screen.focused or screen).ancestors_with_self)
        self._does: dict[str, tuple[str, DOMNode]] = {}
        found: dict[str, tuple[int, Content]] = {}
        for node, binding, enabled, _ in screen.active_bindings.values():
            id = binding.id or ""
            if not id or not enabled or not binding.show or binding.action in found:
                continue
            if node is not self.app or (id == "app.help" and helps):
                place = declared.index(id) if id in declared else -1
                if id == "app.help" or id.endswith(".leave"):  # the way back, then help
                    place = len(declared) + (id == "app.help")
                found[binding.action] = place, _hint(id, binding.key, binding.description)
                self._does[id] = binding.action, node
        yield from (hint for _, hint in sorted(found.values(), key=itemgetter(0)))

    async def on_click(self, event: events.Click) -> None:
        """What a key does, whatever it means where one types."""
        if (does := self._does.get(event.style.meta.get("binding", ""))) is not None:
            await self.app.run_action(*does)


def _hint(id: str, key: str, does: str) -> Content:
    text = Content.assemble((shown(key), "bold $text-primary"), f" {does}")
    return text.stylize(Style.from_meta({"binding": id}))
