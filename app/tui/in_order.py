"""Keys act in the order in which they came, also when many come at once: from a slow line, a
program, or one who types while the app is at work.

Textual hands all of them on at once. Letters wait in the queue of the widget with the focus, while
a key that comes first acts before them, and any other one once it has bubbled up to the app, behind
them; and what comes behind a key that moves the focus would still go where the focus was.
"""

import asyncio
from contextlib import suppress
from typing import Any

from textual.app import App
from textual.events import Key, Paste
from textual.widgets import Input, TextArea

_AT_MOST_S = 1.0  # a widget that waits for something else does not hold up a key like ctrl+c


class InOrder:
    """Of the keys and pastes of one app."""

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
