"""Messages that are sent while an answer is being written: they wait for it, and come back if it
does not become whole. With Pebble, whose answers wait for the test."""

from collections.abc import Callable
from typing import Any

from app.chat.store.records import Role
from app.config.settings import Sampling
from app.tui.app import IngotApp
from app.tui.screens.chat import ChatScreen
from tests.app.tui.chat_app import answered, shown
from tests.app.tui.conftest import ask
from tests.app.tui.held import HeldHost
from tests.support import wait_until

LONG = Sampling(max_tokens=60, temperature=0.0)


async def answering(pilot: Any) -> ChatScreen:
    """A chat in the middle of an answer."""
    screen = await shown(pilot.app)
    await ask(pilot, "What is the capital of France?")
    await wait_until(lambda: screen.turn is not None and len(screen.path) == 2)
    return screen


def asked(screen: ChatScreen) -> list[str]:
    return [message.text for message in screen.path if message.role is Role.USER]


def waiting(screen: ChatScreen) -> list[str]:
    return [one.text for one in screen.session.queued]


async def test_up_and_a_click_take_one_back(held: HeldHost, make: Callable[..., IngotApp]):
    app = make(LONG, host=held)
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await answering(pilot)
        for text in ("one", "two", "three"):
            await ask(pilot, text)
        await pilot.press("up")
        assert (screen.prompt.text, waiting(screen)) == ("three", ["one", "two"])
        await pilot.press("!", "enter")
        assert waiting(screen) == ["one", "two", "three!"]
        await pilot.click(screen.queued, offset=(4, 0))
        assert (screen.prompt.text, waiting(screen)) == ("one", ["two", "three!"])
        assert screen.prompt.has_focus
        held.go.set()
        await answered(screen, 6)
        assert asked(screen)[1:] == ["two", "three!"]
        assert screen.prompt.text == "one"


async def test_in_a_chat_that_is_not_shown_they_come_back_when_it_is(
    held: HeldHost, make: Callable[..., IngotApp]
):
    app = make(LONG, host=held)
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await answering(pilot)
        first = screen.session.chat_id
        assert first is not None
        await ask(pilot, "And of Japan?")
        await pilot.press("ctrl+n", "escape")
        held.go.set()
        await wait_until(lambda: not screen.busy)
        assert screen.prompt.text == ""
        await screen.open_chat(first)
        assert screen.prompt.text == "And of Japan?"
        assert asked(screen) == ["What is the capital of France?"]
