"""Calls of tools on the chat screen: the question before one, its line, and what one can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.chat.store.records import State
from app.config.settings import Sampling, ToolSettings
from app.tools.calls import CallState, ToolCall
from app.tui.screens.dialogs import CallScreen
from app.tui.widgets.message_view import CallLine
from tests.app.chat.test_calling import Insisting
from tests.app.tools.test_servers import server
from tests.app.tui.chat_app import add_turn, answered, chatting, text_of
from tests.support import wait_until

pytest.importorskip("mcp")


@pytest.fixture
def tools(host: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Insisting]:
    servers = {"clock": server("zone", on=True), "hang": server("hang"), "bad": server("escape")}
    made = Insisting(ToolSettings(servers=servers))
    monkeypatch.setattr(host, "_tools", made)
    yield made
    made.close()


def lines(screen: Any) -> list[str]:
    return [line.said for line in screen.query(CallLine)]


async def test_a_call_is_asked_for_made_and_folded(
    make: Callable[..., Any], tools: Insisting
) -> None:
    app = make(Sampling(max_tokens=60, temperature=0.0))
    async with chatting(app) as (pilot, screen):
        await screen.answer.send("What time is it?")
        await wait_until(
            lambda: isinstance(app.screen, CallScreen) and app.screen.query("#arguments Static")
        )
        assert app.screen.query_one(".box").border_title == "Call zone of clock?"
        assert '"name": "UTC"' in str(app.screen.query_one("#arguments Static").visual)
        assert lines(screen) == ['▸ ·  zone(name="UTC")']
        await pilot.press("down", "enter")  # always
        answer = await answered(screen, 4)
        assert [call.state for call in answer.calls] == [CallState.REFUSED]
        assert lines(screen)[0].endswith('s  zone(name="UTC")')
        assert lines(screen)[0].startswith("▸ ✓ ")
        await wait_until(lambda: "✗ not made" in lines(screen)[-1])
        assert "the same call 3 times" in lines(screen)[-1]
        await pilot.press("ctrl+up", "up", "up", "space")
        opened = screen.query(CallLine).first()
        await wait_until(lambda: opened.opened)
        assert "+00:00" in opened._lines.text
        # An edit goes back to the question, whatever stands between.
        await pilot.press("escape", "alt+e")
        assert screen.prompt.text == "What time is it?"


async def test_a_stopped_call_is_told_and_asked_for_again(
    make: Callable[..., Any], tools: Insisting
) -> None:
    app = make(Sampling(max_tokens=60, temperature=0.0))
    store = app.services.store
    chat = store.new_chat().id
    add_turn(store, chat, None, "Do it", "Well.", calls=(ToolCall("a", "act", "{}"),))
    store.update_chat(chat, tools={"clock": False, "hang": True})
    async with chatting(app, chat) as (pilot, screen):
        view = screen.transcript.views[-1]
        assert "Its calls were not all made. ctrl+g asks for them." in text_of(view, "state")
        assert lines(screen) == ["▸ ✗ no result  act()"]
        await pilot.press("ctrl+g")
        await wait_until(
            lambda: isinstance(app.screen, CallScreen) and app.screen.query("#arguments Static")
        )
        assert text_of(view, "state") == ""
        await pilot.press("enter")
        await wait_until(lambda: "s  act()" in lines(screen)[0])
        assert "✗" not in lines(screen)[0]
        await pilot.press("escape")
        await wait_until(lambda: not screen.busy and "✗" in lines(screen)[0])
        assert "Its calls were not all made" in text_of(view, "state")


async def test_tools_are_listed_and_turned_on_and_off(
    make: Callable[..., Any], tools: Insisting
) -> None:
    app = make()
    async with chatting(app) as (_, screen):
        said: list[str] = []
        app.notify = lambda text, **_: said.append(text)  # type: ignore[method-assign]
        await screen._run("/tools")
        await wait_until(lambda: said)
        assert said[0].split("\n")[:3] == ["clock is on: zone", "hang is off", "bad is off"]
        await screen._run("/tools hang")
        await wait_until(lambda: len(said) == 2)
        assert "hang is on: hang_zone, say, act, bad_name_here" in said[1]
        assert screen.session.conversation.chat.tools == {"hang": True}
        await screen._run("/tools none")
        await wait_until(lambda: len(said) == 3)
        assert "there is no tool server 'none'" in said[2]
        tools.settings.servers.clear()
        await screen._run("/tools")
        await wait_until(lambda: len(said) == 4)
        assert "[mcp.servers.NAME]" in said[3]


async def test_hostile_texts_and_cut_calls_are_shown_as_text(
    make: Callable[..., Any], tools: Insisting
) -> None:
    app = make()
    store = app.services.store
    chat = store.new_chat().id
    evil = "\x1b]0;owned\x07[red]"
    calls = (
        ToolCall("a", "act", f'{{"x": "{evil}"'.replace("\x1b", "\\u001b")),
        ToolCall("b", evil, "{}").ended(CallState.FAILED, evil),
        ToolCall("", "", '<tool_call>{"na', CallState.CUT),
    )
    add_turn(store, chat, None, "Do it", "", calls=calls, state=State.CUT)
    async with chatting(app, chat) as (_, screen):
        view = screen.transcript.views[-1]
        assert "Cut off within a call" in text_of(view, "state")
        assert not any("\x1b" in line or "\x07" in line for line in lines(screen))
        assert lines(screen)[1] == "▸ ✗ failed  ␛]0;owned␇[red]: ␛]0;owned␇[red]"
        assert lines(screen)[2] == '▸ ✗ cut off  <tool_call>{"na'
