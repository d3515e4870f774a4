"""Calls of tools below an answer: a line for each, with its arguments and result folded in it."""

import asyncio
import json
from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click

from app.figures import duration
from app.tools.calls import CallState, ToolCall
from app.tui.textual_patches import Plain
from app.tui.widgets.text_lines import TextLines
from runtimes.untrusted import visible

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ENDED = {
    CallState.DONE: ("✓", "$text-success"),
    CallState.FAILED: ("✗ failed", "$text-error"),
    CallState.REFUSED: ("✗ not made", "$text-error"),
    CallState.CUT: ("✗ cut off", "$text-error"),
}


class CallLine(Vertical):
    """One call: its state, name and arguments; below them, when ``opened``, all of its result."""

    def __init__(self, call: ToolCall) -> None:
        super().__init__()
        self.call = call
        self.opened = False
        self.said = ""  # the line
        self._title = Plain(classes="title")
        self._lines = TextLines()

    def compose(self) -> ComposeResult:
        yield self._title
        yield self._lines

    def show(self, call: ToolCall, seconds: float | None, *, waits: bool) -> None:
        """``seconds`` of a call that is being made; ``waits``: it will be asked for."""
        if call is not self.call or not self.said:
            parts = [arguments_of(call), call.result]
            self._lines.set_text("\n\n".join(filter(None, parts)))
        self.call = call
        state, style = _ENDED.get(call.state, ("·" if waits else "✗ no result", "$text-muted"))
        if call.state is CallState.DONE:
            state = f"{state} {duration(call.seconds)}"
        elif seconds is not None:
            state = f"{_FRAMES[int(seconds * 8) % len(_FRAMES)]} {int(seconds)} s"
        fold = "▾" if self.opened else "▸"
        said = call.line
        if call.state in (CallState.FAILED, CallState.REFUSED):
            said = visible(f"{call.name}: {' '.join(call.result[:400].split())}")
        line = Content.assemble(f"{fold} ", (state, style), f"  {said[:400]}")
        if line.plain != self.said:
            self.said = line.plain
            self._title.update(line)

    def on_click(self, event: Click) -> None:
        """On its title."""
        if event.y == 0:
            self.toggle(not self.opened)

    def toggle(self, opened: bool) -> None:
        """Show or fold the result."""
        self.opened = opened
        self.set_class(opened, "-opened")
        self.show(self.call, None, waits=False)


class CallLines(Vertical):
    """The calls of one answer."""

    def __init__(self) -> None:
        super().__init__()
        self._showing = asyncio.Lock()  # timers and keys come in different tasks

    async def show(
        self, calls: Sequence[ToolCall], running: tuple[ToolCall, float] | None, *, waits: bool
    ) -> None:
        """``running``: the one that is being made, and its seconds."""
        async with self._showing:
            lines = list(self.query(CallLine))
            new = [CallLine(call) for call in calls[len(lines) :]]
            await self.mount_all(new)
        for line, call in zip((*lines, *new), calls, strict=False):
            made = running is not None and running[0].id == call.id
            line.show(call, running[1] if running and made else None, waits=waits)

    def toggle(self) -> None:
        """Open every call, or fold them when all are open."""
        lines = list(self.query(CallLine))
        opened = not all(line.opened for line in lines)
        for line in lines:
            line.toggle(opened)


def arguments_of(call: ToolCall) -> str:
    """The arguments in lines."""
    values = call.values
    if not isinstance(values, dict):
        return visible(call.arguments, lines=True)
    return visible(json.dumps(values, ensure_ascii=False, indent=2), lines=True)
