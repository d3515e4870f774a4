"""Calls of tools: how they stand, when one may not be made, and what the model reads of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from runtimes.untrusted import visible

if TYPE_CHECKING:
    from app.openai.tool_parser import Delta, ToolParser
    from runtimes.chat import Message

_EQUAL = 3  # the call of equal arguments that is not made any more


class CallState(StrEnum):
    """Outcome of a call; without one it waits, or was interrupted."""

    OPEN = "open"  # no result yet
    DONE = "done"
    FAILED = "failed"  # ``ToolCall.result`` says how
    REFUSED = "refused"  # by the user, or by a limit
    CUT = "cut"  # the answer ended within its arguments


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call in an answer, and its result."""

    id: str
    name: str
    arguments: str  # JSON, as the model has written it
    state: CallState = CallState.OPEN
    result: str = ""
    seconds: float = 0.0

    def ended(self, state: CallState, result: str, seconds: float = 0.0) -> ToolCall:
        """Return the call with its outcome."""
        return replace(self, state=state, result=result, seconds=seconds)

    @property
    def values(self) -> Any:
        """The arguments as JSON values; as a text where they are no JSON."""
        try:
            return json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            return self.arguments

    @property
    def line(self) -> str:
        """The call in one line: "search(words="eggs", most=3)"."""
        values = self.values
        if not isinstance(values, dict):
            return visible(f"{self.name}({self.arguments}" if self.name else self.arguments)
        parts = (f"{key}={json.dumps(one, ensure_ascii=False)}" for key, one in values.items())
        return visible(f"{self.name}({', '.join(parts)})")


class CallReader:
    """Collects the text and the calls of an answer from a parser's deltas."""

    def __init__(self) -> None:
        self.text = ""
        self.calls: list[ToolCall] = []

    def take(self, deltas: Sequence[Delta]) -> str:
        """Add ``deltas``; return the text that came with them."""
        from app.openai.tool_parser import ArgumentsDelta, CallBegin, ContentDelta

        said = ""
        for delta in deltas:
            if isinstance(delta, ContentDelta):
                said += delta.text
            elif isinstance(delta, CallBegin):
                self.calls.append(ToolCall(delta.id, delta.name, ""))
            elif isinstance(delta, ArgumentsDelta):
                call = self.calls[delta.index]
                more = call.arguments + delta.text
                self.calls[delta.index] = replace(call, arguments=more)
        self.text += said
        return said

    def end(self, parser: ToolParser, *, whole: bool) -> str:
        """Take what the parser has held back; return the text of it. Unless the answer is
        ``whole``, a call that has begun at its end is cut, and no text."""
        before = self.text
        said = self.take(parser.end())
        if not whole and said.strip() and parser.begins_call(said):
            self.calls.append(ToolCall("", "", said.strip(), CallState.CUT))
            self.text, said = before, ""
        elif self.calls and not isinstance(self.calls[-1].values, dict):
            self.calls[-1] = replace(self.calls[-1], state=CallState.CUT)
        return said


def limit_of(call: ToolCall, earlier: Sequence[ToolCall], most: int) -> str | None:
    """Say why ``call`` may not be made after the ``earlier`` ones of its turn, of which there may
    be ``most``; None where it may be."""
    if len(earlier) >= most:
        return f"a turn may make {most} calls (mcp.calls)"
    same = (call.name, call.values)
    if sum((one.name, one.values) == same for one in earlier) + 1 >= _EQUAL:
        return f"the model has made the same call {_EQUAL} times"
    return None


def call_messages(calls: Sequence[ToolCall]) -> tuple[list[dict[str, Any]], list[Message]]:
    """Return ``calls`` as an answer of a prompt has them, and the messages with their results. What
    is no whole call is left out."""
    whole = [call for call in calls if call.state is not CallState.CUT]
    made = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.values},
        }
        for call in whole
    ]
    returned: list[Message] = [
        {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": _told(call)}
        for call in whole
    ]
    return made, returned


def _told(call: ToolCall) -> str:
    words = {
        CallState.DONE: call.result,
        CallState.FAILED: f"Error: {call.result}",
        CallState.REFUSED: f"This call was not made: {call.result}.",
    }
    return words.get(call.state, "This call was interrupted: it has no result.")
