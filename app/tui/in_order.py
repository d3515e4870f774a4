"""Keys and pastes act in the order in which they came, also when many come at once: from a slow
line, a program, or one who types while the app is at work.

Textual hands all of them on at once. A letter waits in the queue of the widget with the focus,
while a key of the app acts before it; and what comes behind a key that moves the focus would still
be written where the focus was.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from textual.app import App
from textual.dom import DOMNode
from textual.events import Key, Paste
from textual.screen import Screen

_AT_MOST_S = 1.0  # a widget that waits for something else does not hold up a key like ctrl+c


class InOrder:
    """Holds back what comes behind a key that is no letter until that has done what it does."""

    def __init__(self, app: App[Any], hand_on: Callable[[Key | Paste], Awaitable[None]]) -> None:
        self._app, self._hand_on = app, hand_on
        self._held: deque[Key | Paste] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether something acts, or is held back."""
        return self._task is not None

    async def take(self, event: Key | Paste) -> None:
        """Hand it on, now or later."""
        if self._task is not None:
            self._held.append(event)
            return
        await self._deliver(event)
        if _acts(event):
            self._task = asyncio.create_task(self._go_on())

    async def _deliver(self, event: Key | Paste) -> None:
        if isinstance(event, Key) and _acts(event):
            await _catch_up(self._app, event.key)
        await self._hand_on(event)

    async def _go_on(self) -> None:
        """Let the key act, then hand on what has come meanwhile, up to the next one that acts."""
        try:
            await self._acted()
            while self._held:
                acts = False
                while self._held and not acts:
                    event = self._held.popleft()
                    acts = _acts(event)
                    self._app.call_later(self._deliver, event)
                await self._acted()
        finally:
            self._task = None

    async def _acted(self) -> None:
        """Wait for the widget with the focus and all around it, for the app, which does what no
        widget wanted, and for a screen that it has opened."""
        app = self._app
        with suppress(TimeoutError):
            async with asyncio.timeout(_AT_MOST_S):
                await _done(app)  # has handed it on
                for node in app.focused.ancestors_with_self if app.focused is not None else (app,):
                    await _done(node)
                await _done(app.screen)


def _acts(event: Key | Paste) -> bool:
    return isinstance(event, Key) and not event.is_printable


async def _catch_up(app: App[Any], key: str) -> None:
    """Wait until the focused widget has done what was typed before ``key``, if that is bound with
    priority: such a key acts at once, while the letters before it wait in the widget's queue."""
    widget = app.focused
    bound = None if widget is None else app.screen.active_bindings.get(key)
    if widget is None or bound is None or not bound.binding.priority:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(_AT_MOST_S):
            for node in widget.ancestors_with_self:
                await _done(node)
                if isinstance(node, Screen):
                    return


async def _done(node: DOMNode) -> None:
    """Wait until it has got through what waits for it. What a key makes a widget tell, such as a
    text to be sent, is behind the first round."""
    for _ in range(2):
        done = asyncio.Event()
        if node.call_later(done.set):
            await done.wait()
