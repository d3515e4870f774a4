"""``CallRound``: the calls of one answer, made one after another.

Used by one thread, the view's; a server answers in a thread of its own, and ``poll`` takes that.
"""

from __future__ import annotations

import time
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING

from app.chat.conversation import Conversation
from app.chat.store.records import Message, Role
from app.tools.calls import CallState, ToolCall, limit_of

if TYPE_CHECKING:
    from app.tools.servers import ToolServers


class CallRound:
    """``next`` is the call to ask for, ``make`` or ``refuse`` it, ``poll`` until it has ended."""

    def __init__(
        self, conversation: Conversation, message: Message, tools: ToolServers, context: int
    ) -> None:
        """``message`` has open calls; ``context`` is that of the model, in tokens."""
        self.conversation, self.message = conversation, message
        self.stopped = ""  # why no answer follows
        self.tools = tools
        self._context = context
        self._running: Future[ToolCall] | None = None
        self._began = 0.0

    @property
    def running(self) -> tuple[ToolCall, float] | None:
        """The call that is being made, and its seconds so far."""
        if self._running is None:
            return None
        return self.message.calls[self._at], time.monotonic() - self._began

    def next(self) -> ToolCall | None:
        """The call to ask for; None when no more are to be made. Raises StoreError."""
        for number, call in enumerate(self.message.calls):
            if call.state is CallState.OPEN and not self.stopped:
                self._at = number
                why = limit_of(call, self._earlier(), self.tools.settings.calls)
                if why is None:
                    return call
                self.stopped = why
                self._settle(call.ended(CallState.REFUSED, why))
        return None

    def make(self) -> None:
        """Make the call that ``next`` has returned."""
        self._running = self.tools.call(self.message.calls[self._at], self._context)
        self._began = time.monotonic()

    def refuse(self) -> None:
        """The user does not allow it: the model is told so. Raises StoreError."""
        call = self.message.calls[self._at]
        self._settle(call.ended(CallState.REFUSED, "the user did not allow it"))

    def poll(self) -> bool:
        """Whether the call that was being made has ended; it is stored then. Raises StoreError."""
        future = self._running
        if future is None or not future.done():
            return False
        self._running = None
        try:
            self._settle(future.result())
        except CancelledError:
            self.stopped = "the call was cancelled"
        return True

    def cancel(self) -> None:
        """End the call that is being made; it stays open."""
        if self._running is not None:
            self._running.cancel()
            self._running = None

    def _settle(self, call: ToolCall) -> None:
        calls = list(self.message.calls)
        calls[self._at] = call
        self.message = self.conversation.save_calls(self.message.id, calls)

    def _earlier(self) -> list[ToolCall]:
        """The calls before this one, since the last message of the user."""
        found: list[ToolCall] = []
        for message in self.conversation.path_to(self.message.id):
            found = [] if message.role is Role.USER else [*found, *message.calls]
        return found[: len(found) - len(self.message.calls) + self._at]
