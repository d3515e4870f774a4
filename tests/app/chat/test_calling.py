"""Calls of tools in a chat, without a screen: asked for, made, stored, answered, and resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from app.chat.answering import Permission
from app.chat.conversation import Conversation
from app.chat.export import as_markdown
from app.chat.host import EngineHost
from app.chat.store.records import Message, Role, State
from app.chat.store.store import ChatStore
from app.config.settings import ToolSettings
from app.openai.tools import Tools
from app.tools.calls import CallState, ToolCall
from app.tools.servers import ToolServers
from runtimes.request import Constraint, SamplingParams
from tests.app.chat.test_answering import View
from tests.app.tools.test_servers import server

pytest.importorskip("mcp")
SHORT = SamplingParams(max_tokens=60)
OPEN, DONE, REFUSED = CallState.OPEN, CallState.DONE, CallState.REFUSED


class Insisting(ToolServers):
    """Every answer has to be a call: a small model makes none by itself."""

    required = True

    def tools(self, names: Any) -> Tools | None:
        found = super().tools(names)
        return found and replace(found, required=self.required, parallel=False)


class Asked(View):
    """Keeps what is asked; ``word`` is the answer."""

    word: Permission | None = "once"

    def __init__(self, host: EngineHost, store: ChatStore) -> None:
        super().__init__(host, store, SHORT)
        self.calls: list[tuple[str, str]] = []

    def ask_call(
        self, server: str, call: ToolCall, then: Callable[[Permission | None], Any]
    ) -> None:
        self.calls.append((server, call.line))
        self.later(then, self.word)


@pytest.fixture
def tools(roomy: EngineHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Insisting]:
    servers = {"clock": server("zone", on=True), "hang": server("hang")}
    made = Insisting(ToolSettings(calls=5, servers=servers))
    monkeypatch.setattr(roomy, "_tools", made)
    yield made
    made.close()


def states(view: View) -> list[CallState]:
    return [call.state for message in view.session.path for call in message.calls]


async def test_calls_are_asked_for_and_answered_until_the_model_repeats_itself(
    roomy: EngineHost, store: ChatStore, tools: Insisting
) -> None:
    view = Asked(roomy, store)
    await view.answer.send("What time is it?")
    await view.idle()
    line = 'zone(name="UTC")'
    assert view.calls == [("clock", line)] * 2
    assert states(view) == [DONE, DONE, REFUSED]
    assert [(m.role, m.text.strip()) for m in view.session.path[1:]] == [(Role.ASSISTANT, "")] * 3
    assert "the model has made the same call 3 times" in view.told[-1]
    reopened = Conversation.open(store, view.session.conversation.chat.id)
    assert reopened.path == view.session.path
    said = reopened.prompt(reopened.leaf)
    assert [m["role"] for m in said] == ["user", *("assistant", "tool") * 3]
    assert [m["content"] for m in said if m["role"] == "tool"][:2] == ["+00:00"] * 2
    page = as_markdown(reopened)
    assert 'Call: zone(name="UTC")' in page
    assert page.count("+00:00") == 2
    # The model's own words follow where it is not made to call.
    tools.required = False
    view.word = "no"
    await view.answer.send("And now?")
    await view.idle()
    assert view.session.path[-1].text.strip()
    figures = view.session.path[-1].figures
    assert figures is not None
    assert figures.cached_tokens > figures.prompt_tokens / 2


async def test_a_form_holds_beside_tools_and_a_call_that_was_cut_is_the_end(
    roomy: EngineHost, store: ChatStore, tools: Insisting
) -> None:
    view = Asked(roomy, store)
    tools.required = False
    shape = {"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"]}
    form = Constraint("json_schema", json.dumps({**shape, "additionalProperties": False}))
    view._params = replace(SHORT, constraint=form)
    await view.answer.send("What time is it?")
    await view.idle()
    assert json.loads(view.session.path[-1].text)["a"] == 7
    view._params = replace(SHORT, constraint=Constraint("choices", '["a", "b"]'))
    await view.answer.send("And now?")
    await view.idle()
    assert "end one of them" in view.told[-1]
    # A stop text within the arguments ends the answer there: nothing of it can be made.
    await view.new_chat()
    tools.required = True
    view._params = replace(SHORT, stop=("UT",))
    await view.answer.send("What time is it?")
    await view.idle()
    assert states(view) == [CallState.CUT]
    assert view.calls == []


async def test_always_never_and_a_server_that_is_off(
    roomy: EngineHost, store: ChatStore, tools: Insisting
) -> None:
    view = Asked(roomy, store)
    view.word = "always"
    await view.answer.send("What time is it?")
    await view.idle()
    assert len(view.calls) == 1
    view.word = "no"
    await view.new_chat()
    await view.answer.send("What time is it?")
    await view.idle()
    assert len(view.calls) == 3  # in this chat it was not allowed
    assert states(view) == [REFUSED] * 3
    assert view.session.path[1].calls[0].result == "the user did not allow it"
    await view.new_chat()
    view.session.conversation.update(tools={"clock": False})
    await view.answer.send("What time is it?")
    await view.idle()
    assert states(view) == []
    assert view.session.conversation.servers(roomy) == []


async def test_a_call_that_hangs_is_stopped_and_made_after_a_restart(
    roomy: EngineHost, store: ChatStore, tools: Insisting
) -> None:
    view = Asked(roomy, store)
    conversation = view.session.conversation
    conversation.update(tools={"hang": True})
    answer = called(
        conversation, ToolCall("a", "act", "{}"), ToolCall("b", "zone", '{"name": "UTC"}')
    )
    view.answer.resume(conversation, answer)
    await view.until(lambda: view.answer.round and view.answer.round.running)
    assert view.answer.doing() == "calling a tool"
    await view.answer.send("later")
    assert [one.text for one in view.session.queued] == ["later"]
    assert view.answer.interrupt()
    await view.idle()
    assert (states(view), view.typed) == ([OPEN, OPEN], "later")
    said = conversation.prompt(conversation.leaf)
    assert said[-1]["content"] == "This call was interrupted: it has no result."
    # Another program's view of the same chat.
    again = Asked(roomy, store)
    again.word = None  # esc
    again.session.show(Conversation.open(store, conversation.chat.id), "")
    again.answer.resume(again.session.conversation, again.session.path[-1])
    await again.until(lambda: again.calls)
    await again.idle()
    assert states(again) == [OPEN, OPEN]
    again.word = "no"
    again.answer.resume(again.session.conversation, again.session.path[-1])
    await again.idle()
    assert states(again)[:2] == [REFUSED, REFUSED]
    assert again.session.path[2].calls  # and an answer to them came


def called(conversation: Conversation, *calls: ToolCall) -> Message:
    """A stored answer with ``calls`` to the last message, which is made if there is none."""
    if conversation.leaf is None:
        conversation.say("What time is it?")
    store, chat = conversation.store, conversation.chat.id
    answer = store.begin_answer(chat, conversation.leaf)
    answer = store.end_answer(replace(answer, text="Well.", state=State.DONE, calls=calls))
    conversation._grow(answer)
    return answer
