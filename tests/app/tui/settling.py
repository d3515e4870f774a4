"""A pilot that waits for the app itself.

Textual's looks at the processor: an app that has used less than a millisecond in the last 20 ms is
taken to be idle (Textual 8.2.8, ``wait_for_idle``). Where others hold the processor that is so
soon, with everything still to be done; and where the app's own threads work, each key takes two
seconds. It also sends every widget a message and waits for all of them, three times a key, which
is a third of what a test takes; here a widget is done when its loop waits for the next message.
"""

import asyncio
import time
from typing import Any

import pytest
import textual.app
import textual.pilot
from textual.app import App
from textual.pilot import Pilot, WaitForScreenTimeout

# An app in which something always happens is never at rest.
_ROUNDS, _AT_MOST_S = 30, 10.0

# Without waiting for what the keys begin: that may be over when the app is at rest.
press_only = Pilot.press


def _nodes(app: Any) -> list[Any]:
    """Return the app and every widget of its screens."""
    found = [node for one in app.screen_stack for node in one.walk_children(with_self=True)]
    return [app, *found]


def _at_work(node: Any) -> bool:
    """Whether the loop of a widget does not wait for the next message."""
    queue = node._message_queue
    waits = queue.ready_event._waiters and not queue.values
    return not (waits or node._closing or node._closed)


def _has_more(app: Any) -> bool:
    """Whether messages, callbacks or a layout wait in what is shown."""
    screen = app.screen
    return (
        app._resize_timer is not None
        or screen._layout_required
        or screen._scroll_required
        or bool(screen._callbacks)
        or any(
            node.message_queue_size or node._next_callbacks or not (node is app or node.is_mounted)
            for node in _nodes(app)
        )
    )


def _composed(app: Any) -> bool:
    """Whether every widget of the screens is there."""
    return all(
        node.is_mounted for one in app.screen_stack for node in one.walk_children(with_self=True)
    )


def _goes_on(app: Any) -> bool:
    """Whether it is neither ending nor between two screens."""
    return bool(app.is_running and app.screen_stack and app.screen.is_attached)


async def _all_done(pilot: Pilot[Any], timeout: float = 30.0) -> bool:
    """Wait until no task can go on and every widget waits for a message; False after an error, and
    where the app is ending."""
    loop: Any = asyncio.get_running_loop()
    limit = time.monotonic() + timeout
    while True:
        await asyncio.sleep(0)
        while loop._ready and time.monotonic() < limit:  # some task has not come to its next wait
            await asyncio.sleep(0)
        app: Any = pilot.app
        if not app.is_running or app._exit or app._exception is not None:
            return False
        if _goes_on(app) and not any(map(_at_work, _nodes(app))):
            return True
        if time.monotonic() > limit:
            raise WaitForScreenTimeout("a widget has not done what it was told")
        await asyncio.sleep(0.001)


async def at_rest(pilot: Pilot[Any]) -> None:
    """Let the app go on until nothing waits in it."""
    limit = time.monotonic() + _AT_MOST_S
    for number in range(_ROUNDS):
        if not (_goes_on(pilot.app) and await pilot._wait_for_screen()):
            return
        if not _goes_on(pilot.app) or not _has_more(pilot.app) or time.monotonic() > limit:
            return
        # What timers would do: a new size is told, and the next frame lays out what has changed.
        if pilot.app._resize_timer is not None:
            pilot.app._check_resize()
        pilot.app.screen._on_timer_update()
        if number:
            await asyncio.sleep(0.005)


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every pilot wait so after keys and pauses, and let no app be ended while a screen of it
    is still being put together: Textual drops the rest of it then."""
    pause, shutdown = Pilot.pause, App._shutdown

    async def no_look(*_: float) -> None:
        await asyncio.sleep(0)

    async def patient_pause(self: Pilot[Any], delay: float | None = None) -> None:
        await pause(self, delay)
        await at_rest(self)
        if _goes_on(self.app):
            await pause(self, 0)  # draw what has changed

    async def patient_press(self: Pilot[Any], *keys: str) -> None:
        for key in keys:
            await press_only(self, key)
            await at_rest(self)
            await self.app.animator.wait_until_complete()
            await at_rest(self)

    async def patient_shutdown(self: App[Any]) -> None:
        limit = time.monotonic() + _AT_MOST_S
        while _goes_on(self) and not _composed(self) and time.monotonic() < limit:
            await asyncio.sleep(0.005)
        await shutdown(self)

    monkeypatch.setattr(textual.app, "wait_for_idle", no_look)
    monkeypatch.setattr(textual.pilot, "wait_for_idle", no_look)
    monkeypatch.setattr(App, "_shutdown", patient_shutdown)
    monkeypatch.setattr(Pilot, "_wait_for_screen", _all_done)
    monkeypatch.setattr(Pilot, "pause", patient_pause)
    monkeypatch.setattr(Pilot, "press", patient_press)
