"""The prompt alone: keys that come in one burst act in the order in which they came."""

from __future__ import annotations

from typing import Any

import pytest
from textual import events
from textual.app import App, ComposeResult
from textual.widgets import Static

from app.tui.widgets.prompt import Prompt
from tests.app.tui.bursts import burst


class PromptApp(App[None]):
    """A prompt and what it has sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []

    def compose(self) -> ComposeResult:
        yield Static()
        yield Prompt()

    def on_prompt_sent(self, event: Prompt.Sent) -> None:
        self.sent.append(event.text)

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)


async def test_what_is_typed_after_enter_is_not_sent():
    async with PromptApp().run_test() as pilot:
        app: Any = pilot.app
        await burst(pilot, *"ABC", "enter", *"xyz")
        assert app.sent == ["ABC"]
        assert app.prompt.text == "xyz"


async def test_two_messages_may_come_at_once():
    async with PromptApp().run_test() as pilot:
        app: Any = pilot.app
        await burst(pilot, *"one", "enter", *"two", "enter")
        assert app.sent == ["one", "two"]
        assert app.prompt.text == ""


@pytest.mark.parametrize("key", ["ctrl+j", "shift+enter", "alt+enter"])
async def test_a_new_line_stays_between_the_words(key: str):
    async with PromptApp().run_test() as pilot:
        app: Any = pilot.app
        await burst(pilot, *"one", key, *"two")
        assert app.prompt.text == "one\ntwo"
        assert app.sent == []


async def test_keys_that_edit_keep_their_place():
    async with PromptApp().run_test() as pilot:
        app: Any = pilot.app
        await burst(pilot, *"onf", "backspace", *"e", "home", *"t", "end", *"!")
        assert app.prompt.text == "tone!"


async def test_remapped_keys_keep_their_place():
    async with PromptApp().run_test() as pilot:
        app: Any = pilot.app
        app.set_keymap({"chat.send": "ctrl+s", "chat.newline": "enter"})
        await burst(pilot, *"one", "enter", *"two", "ctrl+s", *"three")
        assert app.sent == ["one\ntwo"]
        assert app.prompt.text == "three"


async def test_a_letter_with_alt_is_no_text():
    async with PromptApp().run_test() as pilot:
        app: Any = pilot.app
        app.post_message(events.Key("alt+e", "e"))
        await burst(pilot, *"row")
        assert app.prompt.text == "row"


async def test_a_text_that_was_not_taken_stands_before_what_was_typed_since():
    async with PromptApp().run_test() as pilot:
        app: Any = pilot.app
        await burst(pilot, *"ABC", "enter")
        app.prompt.give_back("ABC")
        assert app.prompt.text == "ABC"
        await burst(pilot, "enter", *"xyz")
        app.prompt.give_back("ABC")
        assert app.prompt.text == "ABC\nxyz"
