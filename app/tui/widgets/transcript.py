"""The messages of a chat, of which only those around the reader are mounted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from textual import work
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.geometry import Size, clamp
from textual.scrollbar import ScrollBar
from textual.widget import Widget

from app.tui.keys import quiet
from app.tui.textual_patches import Column, Plain
from app.tui.widgets.welcome import Welcome

if TYPE_CHECKING:
    from app.tui.widgets.message_view import Entry, MessageView

_FIRST = 8  # messages that are mounted before a chat is painted
_MORE = 8  # that come at once when one scrolls to either end
_MOST = 48


class Transcript(VerticalScroll, can_focus=True):
    """``sync`` it with the path that is to be shown.

    It follows the end until one scrolls up, and again from ``action_follow`` (the end key) on. What
    one reads stays where it is when messages are mounted above it.
    """

    BLANK = True
    BINDINGS = [
        quiet("end", "transcript.end", "To the end", action="follow"),
        quiet("home", "transcript.home", "To the beginning", action="top"),
        quiet("up", "transcript.up", "Message above", action="select(-1)"),
        quiet("down", "transcript.down", "Message below", action="select(1)"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.welcome = Welcome()
        self.entries: list[Entry] = []  # the whole path, mounted or not
        self.views: list[MessageView] = []  # the mounted ones
        self._low = 0  # the index of the first entry that is mounted
        self._moving = False
        self._folded: set[Column] = set()
        self._fitted = Size()
        self._changing = asyncio.Lock()  # timers, keys and panels come in different tasks
        # The message that keeps its place in the window. Messages get their heights some time after
        # they are mounted, and others are mounted above them: where one will be is known to the
        # layout only, so every layout moves the view with it.
        self._kept: MessageView | None = None
        self._kept_row: int | None = None  # its row in what is scrolled, at the last layout
        self._kept_whole = False  # it has to be in view, and not only to stay where it is

    def compose(self) -> ComposeResult:
        yield self.welcome

    def on_mount(self) -> None:
        self.anchor()

    @property
    def following(self) -> bool:
        """Whether it stays at the end as that grows."""
        return self.is_anchored and not self._anchor_released

    @property
    def selected(self) -> MessageView | None:
        focused = self.screen.focused
        return next((view for view in self.views if view is focused), None)

    @property
    def _high(self) -> int:
        """The index behind that of the last entry that is mounted."""
        return self._low + len(self.views)

    def view_of(self, message: int) -> MessageView | None:
        return next((view for view in self.views if view.message.id == message), None)

    def fold(self) -> None:
        """While the end is followed, what is far above it is not laid out."""
        if not self.following:
            return
        above = self.region.y - self.size.height
        for view in self.views:
            if view.region.y < above:
                self._folded.update(view.fold(above - view.region.y))

    def _unfold(self) -> None:
        if self._folded:
            for column in self._folded:
                column.folded = 0
            self._folded.clear()
            self.refresh(layout=True)

    def on_resize(self) -> None:
        if self.size.width != self._fitted.width or self.size.height > self._fitted.height:
            self._unfold()
        self._fitted = self.size
        self.welcome.fit(self.size.height)
        if self.following and not self._kept_whole:
            self.scroll_y = self.max_scroll_y  # Textual 8.2.8 follows by the height of before

    async def sync(self, entries: Sequence[Entry]) -> None:
        """Show this path: messages that stay keep their widgets."""
        async with self._changing:
            await self._sync(entries)

    async def _sync(self, entries: Sequence[Entry]) -> None:
        old, self.entries = self.entries, list(entries)
        same = 0
        for a, b in zip(old, self.entries, strict=False):
            if a.message.id != b.message.id:
                break
            same += 1
        self.welcome.display = not self.entries
        keep = max(0, same - self._low)
        await self._remove(keep)
        if not keep:
            self._low = max(0, len(self.entries) - _FIRST)
        for index, view in enumerate(self.views, self._low):
            view.show_entry(self.entries[index])
        if same and keep and self._high < same:
            return  # the reader is far above the end; what is new comes when scrolling down
        await self._mount_below(len(self.entries) - self._high)
        if not keep and self._low:
            self.call_after_refresh(self._more, -1)

    async def reveal(self, message: int) -> None:
        """Select a message of the path, mounted or not."""
        index = next((i for i, e in enumerate(self.entries) if e.message.id == message), None)
        if index is None:
            return
        async with self._changing:
            if not self._low <= index < self._high:
                self.release_anchor()
                await self._restart(max(0, index - _MORE))
            view = self.views[index - self._low]
            view.focus(scroll_visible=False)  # after what has asked for the focus before
            self._show_whole(view)

    @work(exclusive=True, group="window", exit_on_error=False)
    async def action_follow(self) -> None:
        await self.to_end()

    async def to_end(self) -> None:
        """Mount the last messages if they are not, and follow them."""
        async with self._changing:
            if self._high < len(self.entries):
                entries, self.entries = self.entries, []
                await self._sync(entries)
        self._keep(None)
        self.anchor()

    @work(exclusive=True, group="window", exit_on_error=False)
    async def action_top(self) -> None:
        self.release_anchor()
        async with self._changing:
            if self._low:
                await self._restart(0)
        self.scroll_home(animate=False)

    async def _restart(self, low: int) -> None:
        """Mount messages from ``low`` on in place of those that are."""
        await self._remove()
        self._low = low
        self._keep(None)
        self.set_scroll(None, 0)  # where the messages that are gone were scrolled to says nothing
        await self._mount_below(2 * _FIRST)

    def action_select(self, step: int) -> None:
        """Select the last message that can be seen, or the first."""
        visible = [view for view in self.views if view.region.overlaps(self.region)]
        if visible:
            self.select(visible[-1] if step < 0 else visible[0])

    def select(self, view: MessageView) -> None:
        """Focus a message; its beginning comes into view."""
        self.screen.set_focus(view, scroll_visible=False)
        self._show_whole(view)

    def _show_whole(self, view: MessageView) -> None:
        if self.region.contains_region(view.region):
            if self.following:
                self._keep(None)
                return
        elif view.size:
            tall = view.outer_size.height > self.size.height
            self.scroll_to_widget(view, animate=False, top=tall, immediate=True)
        else:  # it has been mounted just now
            self.refresh(layout=True)
        self._keep(view, whole=True)

    async def move(self, step: int) -> bool:
        """Select the message above the selected one (-1), or below (1); False below the last."""
        view = self.selected
        if view is None or view not in self.views:
            return True
        index = self.views.index(view) + step
        if index < 0 and self._low:
            await self._more(-1)
            index = self.views.index(view) + step
        if 0 <= index < len(self.views):
            self.select(self.views[index])
        return index < len(self.views)

    # The window

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Mount more before the reader comes to an end of what is mounted."""
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) == round(new_value) or not self.is_mounted:
            return
        self._hold()
        if not self.following:
            self._unfold()
        if self._moving:
            return
        page = self.size.height
        if new_value < page and self._low and not self.following:
            self._moving = True
            self.call_later(self._more, -1)
        elif self._high < len(self.entries) and new_value > self.max_scroll_y - page:
            self._moving = True
            self.call_later(self._more, 1)

    async def _more(self, step: int) -> None:
        """Mount further messages above (-1) or below (1)."""
        self._moving = True
        try:
            async with self._changing:
                await (self._mount_above() if step < 0 else self._shift_below())
        finally:
            self._moving = False

    async def _mount_above(self) -> None:
        low = max(0, self._low - _MORE)
        new = _views(self.entries[low : self._low])
        if not new:
            return
        with self.app.batch_update():
            await self.mount_all(new, before=self.views[0] if self.views else None)
            self.views[:0] = new
            self._low = low
            if not self.following:
                await self._remove(_MOST)

    async def _shift_below(self) -> None:
        with self.app.batch_update():
            await self._mount_below(_MORE)
            gone = max(0, len(self.views) - _MOST)
            self._low += gone
            await self._remove(0, gone)

    async def _mount_below(self, count: int) -> None:
        start = self._high
        new = _views(self.entries[start : start + max(0, count)])
        self.views += new
        if new:
            await self.mount_all(new)

    async def _remove(self, first: int = 0, end: int | None = None) -> None:
        """Take away the mounted messages from ``first`` to ``end``."""
        gone = self.views[first:end]
        del self.views[first:end]
        if self._kept in gone:
            self._keep(None)
        if gone:
            await self.remove_children(gone)

    # What one reads stays in place

    def _keep(
        self, view: MessageView | None, row: int | None = None, *, whole: bool = False
    ) -> None:
        """Keep a message where it is, at ``row`` of what is scrolled; or bring all of it into view
        (if it is too tall its beginning), and keep it there."""
        self._kept, self._kept_row, self._kept_whole = view, row, whole

    def _hold(self) -> None:
        """Anchor the scroll position to the message at the top edge."""
        top = self.scroll_offset.y
        regions = ((view, view.virtual_region) for view in self.views)
        held = next(((view, one.y) for view, one in regions if one.bottom > top), (None, None))
        self._keep(*held)

    def _size_updated(
        self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True
    ) -> bool:
        """Textual's; as ``SteadyCompositor`` does for what never scrolls."""
        return super()._size_updated(size, virtual_size, container_size, layout=False)

    def _scroll_update(self, virtual_size: Size) -> None:
        """Textual's, while the screen is laid out. Its scrollbar is drawn with the picture that
        follows: its own message would ask for another one."""
        super()._scroll_update(virtual_size)
        bar = self.vertical_scrollbar
        if bar._repaint_required:
            bar._repaint_required = False
            self.screen._compositor.update_widgets({bar})

    def arrange(self, size: Size, optimal: bool = False) -> Any:
        """Textual's, and the view moves with the message that keeps its place; here and not after
        painting, so that nothing jumps."""
        result = super().arrange(size, optimal)
        kept = self._kept
        if kept is None or (self.following and not self._kept_whole):
            return result
        region = next((p.region for p in result.placements if p.widget is kept), None)
        if region is None:
            return result
        last = max(0, result.total_region.bottom - size.height)
        if self.following:
            if self._high == len(self.entries) and region.y >= last:
                self._keep(None)  # it is in view at the end, which is followed
                return result
            self.release_anchor()
            self.call_later(self._unfold)
        now = to = self.scroll_offset.y
        if self._kept_row is not None:
            to += region.y - self._kept_row
        self._kept_row = region.y
        if self._kept_whole:
            tall = region.height > size.height
            to = clamp(to, region.y if tall else region.bottom - size.height, region.y)
        to = clamp(to, 0, last)
        if to != now:
            self.set_reactive(Widget.scroll_y, to)
            self.set_reactive(Widget.scroll_target_y, to)
            self.vertical_scrollbar.set_reactive(ScrollBar.position, to)
        return result


def _views(entries: Sequence[Entry]) -> list[MessageView]:
    if not entries:
        return []
    from app.tui.widgets.message_view import MessageView

    return [MessageView(entry) for entry in entries]


class ChatTitle(Plain):
    """Empty while the question that the chat is named after can be read right below it. Its line
    stays, so that nothing moves when that is scrolled away."""

    def __init__(self, transcript: Transcript) -> None:
        super().__init__(id="chat-title")
        self._transcript = transcript
        self._title = ""
        self.text = ""  # that is shown

    def on_mount(self) -> None:
        self.screen.screen_layout_refresh_signal.subscribe(self, lambda _: self._say(), True)

    def show(self, title: str) -> None:
        """The chat's ``title``."""
        self._title = title
        self.display = bool(self._transcript.entries)
        self._say()

    def _say(self) -> None:
        text = "" if self._doubles() else self._title
        if text != self.text:
            self.text = text
            self.update(text, layout=False)

    def _doubles(self) -> bool:
        """Whether the first message begins with the same words, and its first line is in view."""
        entries, area = self._transcript.entries, self._transcript.region
        if not entries:
            return False
        question = entries[0].message
        view = self._transcript.view_of(question.id)
        said = " ".join(question.text.split())
        if view is None or not said.startswith(self._title.removesuffix("…")):
            return False
        return not view.size or area.contains(area.x, view.region.y)  # or not laid out yet
