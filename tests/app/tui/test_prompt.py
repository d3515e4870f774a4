"""The prompt alone: keys that come in one burst act in the order in which they came."""

from typing import Any

from textual import events
from textual.app import App, ComposeResult
from textual.widgets import Static

from app.tui.widgets.prompt import Prompt
from tests.app.tui.bursts import PASTE, burst


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


# Keys of one burst, what they send, and what stands in the prompt then.
BURSTS: list[tuple[list[str], list[str], str]] = [
    ([*"ABC", "enter", *"xyz"], ["ABC"], "xyz"),
    ([*"one", "enter", *"two", "enter"], ["one", "two"], ""),
    *(([*"one", key, *"two"], [], "one\ntwo") for key in ("ctrl+j", "shift+enter", "alt+enter")),
    ([f"{PASTE}one\ntwo\n"], [], "one\ntwo\n"),
    ([*"onf", "backspace", *"e", "home", *"t", "end", *"!"], [], "tone!"),
    ([*"ver", "ctrl+a", *"ri", "ctrl+e", *"!"], [], "river!"),
]


async def test_keys_of_a_burst_keep_their_order():
    async with PromptApp().run_test() as pilot:
        app: Any = pilot.app
        for keys, sent, left in BURSTS:
            app.sent.clear()
            app.prompt.fill("")
            await burst(pilot, *keys)
            assert (app.sent, app.prompt.text) == (sent, left), keys
        app.prompt.fill("")
        app.post_message(events.Key("alt+e", "e"))  # a letter with alt is no text
        await burst(pilot, *"row")
        assert app.prompt.text == "row"
        app.set_keymap({"chat.send": "ctrl+s", "chat.newline": "enter"})
        await burst(pilot, "enter", *"two", "ctrl+s", *"three")
        assert app.sent == ["row\ntwo"]
        assert app.prompt.text == "three"


async def test_a_text_that_was_not_taken_stands_before_what_was_typed_since():
    async with PromptApp().run_test() as pilot:
        app: Any = pilot.app
        app.prompt.give_back("ABC")
        assert app.prompt.text == "ABC"
        await burst(pilot, "enter", *"xyz")
        app.prompt.give_back("ABC")
        assert app.prompt.text == "ABC\nxyz"
