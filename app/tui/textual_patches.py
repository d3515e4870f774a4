"""Amendments of Textual 8.2.8: small widgets and decorators, how pictures are put together, style
sheets that are parsed once, and keys that act in the order in which they came."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from rich.cells import cell_len
from rich.segment import Segment
from textual import work
from textual._compositor import Compositor
from textual.app import App
from textual.cache import LRUCache
from textual.color import Color
from textual.containers import Vertical
from textual.content import Content
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.events import Key, Paste
from textual.filter import LineFilter
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.visual import VisualType
from textual.widget import Widget
from textual.widgets import Input, Static, TextArea
from textual.worker import Worker

from runtimes.untrusted import visible

P = ParamSpec("P")
Result = TypeVar("Result")
Method = Callable[P, Coroutine[None, None, Result]]


def background(method: Method[P, Result]) -> Callable[P, Worker[Result]]:
    """Decorator: a worker of its own runs the method. An error ends it alone, not the app."""
    return work(exit_on_error=False)(method)


def latest(method: Method[P, Result]) -> Callable[P, Worker[Result]]:
    """Decorator: ``background``, and a call ends the one before it."""
    return work(exit_on_error=False, exclusive=True, group=method.__name__)(method)


class Plain(Static):
    """A text as it is: never markup."""

    def __init__(
        self, text: VisualType = "", *, id: str | None = None, classes: str | None = None
    ) -> None:
        super().__init__(text, markup=False, id=id, classes=classes)

    def say(self, text: Content | str) -> None:
        """Show another text; an empty one takes no place."""
        self.update(text)
        self.display = bool(text)


class Pane(Vertical):
    """A panel: a title in its border."""

    def __init__(self, title: str = "", *children: Widget, id: str | None = None) -> None:
        super().__init__(*children, id=id, classes="pane")
        self.border_title = title


class SteadyCompositor(Compositor):
    """A new size of what never scrolls asks for no further layout: Textual 8.2.8 would lay out the
    whole screen a second time, to the same end, whenever anything has come or grown."""

    def reflow(self, parent: Widget, size: Size) -> Any:
        """Textual's. A reactive's new value asks for a layout; one that it has already does not."""
        result = super().reflow(parent, size)
        for widget, geometry in self._full_map.items():
            if widget.styles.overflow_x == widget.styles.overflow_y == "hidden":
                widget.set_reactive(Widget.virtual_size, geometry.virtual_size)
        return result


# Textual takes styles from a class's first base only, where that is a widget.
if TYPE_CHECKING:
    Base = Widget
else:
    Base = object


class Column(Base):
    """A column whose height, and those of its children, follow from its width: however high it has
    become, children that did not change are not measured again.

    Its first ``folded`` rows take their place, but the children that end there are not laid out:
    that takes time for each widget that there is, seen or not.
    """

    folded = 0
    _arranged: Any = None

    def arrange(self, size: Size, optimal: bool = False) -> Any:
        whole = super().arrange(size.with_height(0), optimal)
        if not optimal:
            self._arranged = whole
        if self.folded <= 0:
            return whole
        rest = [one for one in whole.placements if one.region.bottom > self.folded]
        widgets = {one.widget for one in rest}
        return replace(whole, placements=rest, widgets=widgets, _spatial_map=whole.spatial_map)

    def fold(self, rows: int) -> "Iterator[Column]":
        """Fold the first ``rows``, also in the columns in it; which columns that were."""
        self.folded = rows - self.styles.gutter.top
        yield self
        for one in self._arranged.placements if self._arranged is not None else ():
            if isinstance(one.widget, Column) and one.region.y < self.folded < one.region.bottom:
                yield from one.widget.fold(self.folded - one.region.y)


class Ground(Column):
    """A background under children: renders one blank row and repeats it, whatever the height."""

    def render_lines(self, crop: Region) -> list[Strip]:
        return super().render_lines(Region(crop.x, crop.y, crop.width, 1)) * crop.height


class ControlFilter(LineFilter):
    """Shows control characters in the lines of all widgets: no text reaches the terminal as a
    command, nor does the address of a link."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The segments, as wide as before: what a sign takes, the blanks behind it give."""
        for text, style, _ in segments:
            if not text.isprintable() or (style is not None and style.link):
                break
        else:
            return segments  # nearly always
        made, wider = [], 0
        for text, style, control in segments:
            seen = visible(text)
            wider += cell_len(seen) - cell_len(text)
            spare = min(max(wider, 0), len(seen) - len(seen.rstrip(" ")))
            wider -= spare
            kept = style and style.update_link(style.link and visible(style.link))
            made.append(Segment(seen[: len(seen) - spare], kept, control))
        return Segment.adjust_line_length(made, sum(cell_len(one.text) for one in segments))


# Style sheets, each parsed once. Textual 8.2.8 parses all of them anew for every screen that
# brings one of its own, and forgets the first where there are more than 64.


_SOURCES = 1024  # more than there are

RuleSet.__hash__ = object.__hash__  # type: ignore[method-assign]  # the same, without Python


class Sheet(Stylesheet):
    """Textual's, which keeps what it has parsed while the variables stay as they are."""

    def __init__(self, *, variables: dict[str, str] | None = None) -> None:
        super().__init__(variables=variables)
        self._parse_cache = LRUCache(_SOURCES)

    def set_variables(self, variables: dict[str, str]) -> None:
        if variables != self._variables:
            super().set_variables(variables)

    def reparse(self) -> None:
        self.parse()


# Keys act in the order in which they came, also when many come at once: from a slow line, a
# program, or one who types while the app is at work.
#
# Textual hands all of them on at once. Letters wait in the queue of the widget with the focus,
# while a key that comes first acts before them, and any other one once it has bubbled up to the
# app, behind them; and what comes behind a key that moves the focus would still go where the
# focus was.


_AT_MOST_S = 1.0  # a widget that waits for something else does not hold up a key like ctrl+c


class InOrder:
    """The order of the keys and pastes of one app."""

    def __init__(self, app: App[Any]) -> None:
        self._app = app
        self._leads = False  # the last one may lead elsewhere, once a widget has seen to it

    async def wait(self, event: Key | Paste) -> None:
        """Until what was typed before has been done, where that makes a difference to this one."""
        letter = isinstance(event, Paste) or event.is_printable
        first = isinstance(event, Key) and not letter and _comes_first(self._app, event.key)
        if first or self._leads:
            await _catch_up(self._app)
        on = self._app.focused
        stays = isinstance(on, TextArea) or (letter and isinstance(on, Input))
        self._leads = first or not stays


def one_types(app: App[Any]) -> bool:
    """Whether letters are text now."""
    return isinstance(app.focused, Input | TextArea)


async def act(app: App[Any], key: str) -> bool:
    """Do at once what a key is bound to that does not come first; False where it does nothing."""
    bound = app.screen.active_bindings.get(key)
    if bound is None or not bound.enabled or bound.binding.priority:
        return False
    return await app.run_action(bound.binding.action, bound.node)


def _comes_first(app: App[Any], key: str) -> bool:
    bound = None if app.focused is None else app.screen.active_bindings.get(key)
    return bound is not None and bound.binding.priority


async def _catch_up(app: App[Any]) -> None:
    """Wait for the widget with the focus, or a screen that has none yet, and for all around it."""
    nodes = (app.focused or app.screen).ancestors_with_self
    with suppress(TimeoutError):
        async with asyncio.timeout(_AT_MOST_S):
            for node in nodes[: nodes.index(app.screen) + 1]:
                # What a key makes a widget tell, such as a text to be sent, is behind the first.
                for _ in range(2):
                    done = asyncio.Event()
                    if node.call_later(done.set):
                        await done.wait()
