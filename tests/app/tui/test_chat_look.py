"""How the chat looks: its column, the turns, code, the prompt's box, and where one begins."""

from dataclasses import replace
from typing import Any

import pytest
from textual.geometry import Offset
from textual.widgets import ProgressBar

from app.chat.host import HostState
from app.chat.store.records import State
from app.config.settings import Sampling
from app.tui.app import IngotApp
from app.tui.screens.chat import ChatScreen
from app.tui.widgets.message_view import Thought
from app.tui.widgets.welcome import Choose, Starter
from tests.app.tui.chat_app import (
    ANSWER,
    add_turn,
    answered,
    chatting,
    out_of_models,
    shown,
    text_of,
)
from tests.app.tui.held import HeldHost, recorded
from tests.support import wait_until

SIZE = (100, 30)
LONG = Sampling(max_tokens=20, temperature=0.0)


def lines(screen: ChatScreen) -> list[str]:
    """What is painted, row by row."""
    return [strip.text for strip in screen._compositor.render_strips()]


def place(screen: ChatScreen, text: str) -> Offset:
    """Where ``text`` is painted first."""
    for y, line in enumerate(lines(screen)):
        if (x := line.find(text)) >= 0:
            return Offset(x, y)
    raise AssertionError(f"{text!r} is not on the screen:\n" + "\n".join(lines(screen)))


async def click(pilot: Any, text: str, at: int = 0) -> None:
    """Click on the character ``at`` of a text that is painted."""
    await wait_until(lambda: any(text in line for line in lines(pilot.app.screen)))
    await pilot.pause()
    x, y = place(pilot.app.screen, text)
    await pilot.click(offset=(x + at, y))
    await pilot.pause()


async def of_the_turn(app: IngotApp, answer: str, question: str = "How?", **end: Any) -> ChatScreen:
    """The screen with a chat of one turn."""
    screen = await shown(app)
    chat = app.services.store.new_chat(title="Boats").id
    add_turn(app.services.store, chat, None, question, answer, **end)
    await screen.open_chat(chat)
    await wait_until(lambda: len(screen.transcript.views) == 2)
    return screen


async def test_branches_code_and_thoughts_take_a_click(home):
    app, _ = recorded(home)
    store = app.services.store
    async with app.run_test(size=SIZE) as pilot:
        screen = await of_the_turn(app, "First.")
        parent = screen.path[0].id
        begun = store.begin_answer(screen.session.chat_id, parent)
        store.end_answer(replace(begun, text="Second.", token_ids=(1,), state=State.DONE))
        await screen.open_chat(screen.session.chat_id)
        await click(pilot, "◂ 2/2 ▸")
        await wait_until(lambda: screen.path[-1].text == "First.")
        await click(pilot, "◂ 1/2 ▸", 6)
        await wait_until(lambda: screen.path[-1].text == "Second.")
        screen.prompt.focus()
        screen = await of_the_turn(app, ANSWER)
        await click(pilot, "copy")
        assert app.clipboard == (
            "def row(boat, strokes):\n    return boat.speed * strokes  # metres"
        )
        screen.prompt.focus()
        screen = await of_the_turn(app, "<think>\nA boat, perhaps.\n</think>\nYes.")
        thought = screen.query_one(Thought)
        assert screen.transcript.views[-1].body.text == "Yes."
        assert not thought.opened
        assert "token" in str(thought.query_one(".title").visual)
        await click(pilot, "Thought")
        await wait_until(lambda: any("A boat, perhaps." in line for line in lines(screen)))
        assert thought.opened
        await click(pilot, "Thought")
        assert not thought.opened
        await pilot.press("ctrl+up", "space")
        await pilot.pause()
        assert thought.opened


async def test_a_long_prompt_is_read_with_a_bar_and_the_time_left(
    held: HeldHost, make, monkeypatch: pytest.MonkeyPatch
):
    app = make(LONG, host=held)
    held.reading.clear()
    held.go.set()
    question = "Tell me of the boat, the river and the mill. " * 40
    async with chatting(app) as (pilot, screen):
        await screen.answer.send(question)
        await wait_until(lambda: screen.turn is not None and len(screen.path) == 2)
        asked = len(held.held.encode_chat([{"role": "user", "content": question}]))
        assert asked > 300
        await wait_until(lambda: screen.transcript.view_of(screen.path[-1].id))
        view = screen.transcript.view_of(screen.path[-1].id)
        await wait_until(lambda: f"Reading   0 of {asked} tokens" in text_of(view, "waiting"))
        assert "left" not in text_of(view, "waiting"), "nobody can know yet"
        # As far as the engine would tell, were it slow.
        for read in (100, 200):
            monkeypatch.setattr(held, "reads", lambda _, read=read: read)
            told = f"Reading {read} of {asked} tokens"
            await wait_until(lambda told=told: told in text_of(view, "waiting"))
        await wait_until(lambda: text_of(view, "waiting").endswith("left"))
        bar = view.query_one(ProgressBar)
        assert (bar.progress, bar.total) == (200, asked)
        assert bar.region.bottom == view.foot.region.y
        monkeypatch.undo()
        held.reading.set()
        answer = await answered(screen, 2)
        await wait_until(lambda: not text_of(view, "waiting"))
        await pilot.pause()
        assert answer.figures.prefill_tps is not None
        assert f"{answer.figures.completion_tokens} token" in text_of(view, "foot")


async def test_one_begins_with_a_starter_by_key_or_by_mouse(home):
    app, _ = recorded(home)
    async with chatting(app, size=(80, 24)) as (pilot, screen):
        await wait_until(lambda: screen.transcript.welcome.region.height)
        await pilot.pause()
        starters = list(screen.query(Starter))
        window = screen.transcript.region
        assert all(window.contains_region(one.region) for one in starters)
        await pilot.press("tab")
        assert starters[0].has_focus
        await pilot.press("right", "down")
        assert starters[3].has_focus
        await pilot.press("enter")
        await wait_until(lambda: screen.prompt.text == starters[3].text)
        assert screen.prompt.has_focus
        await pilot.click(starters[1])
        await wait_until(lambda: screen.prompt.text == starters[1].text)
        await pilot.press("tab", "3")
        await wait_until(lambda: screen.prompt.text == starters[2].text)
        await pilot.press("ctrl+u", *"mine", "tab", "1")
        await wait_until(lambda: screen.prompt.text == starters[0].text)
        await pilot.press("up")
        await wait_until(lambda: screen.prompt.text == "mine")
        await screen.answer.send("Go")
        await wait_until(lambda: not screen.transcript.welcome.display)
        screen.interrupt()


async def test_without_a_model_the_welcome_says_what_to_press(services):
    app = IngotApp(services)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await out_of_models(pilot)
        assert screen.host.state is HostState.EMPTY
        await wait_until(lambda: any("ctrl+t  Choose a model" in line for line in lines(screen)))
        assert any("No model is loaded." in line for line in lines(screen))
        await pilot.click(Choose)
        await wait_until(lambda: type(app.screen).__name__ == "ModelsScreen")
