"""Text that is sent as it is, for one chat."""

from collections.abc import Callable
from typing import Any

from app.chat.store.store import ChatStore
from app.tui.app import IngotApp
from app.tui.screens.chat import ChatScreen
from tests.app.tui.chat_app import answered, chatting
from tests.app.tui.conftest import ask
from tests.support import wait_until


def title(screen: ChatScreen) -> str:
    return str(screen.box.border_title)


def watch(screen: ChatScreen, monkeypatch: Any) -> list[list[int]]:
    """The prompts that the engine is sent from now on."""
    engine: Any = screen.host.engine
    prompts: list[list[int]] = []
    submit = engine.submit

    def watched(request: Any) -> Any:
        prompts.append(list(request.prompt))
        return submit(request)

    monkeypatch.setattr(engine, "submit", watched)
    return prompts


async def test_raw_is_kept_with_the_chat(make: Callable[..., IngotApp], monkeypatch):
    app = make()
    store: ChatStore = app.services.store
    async with chatting(app) as (pilot, screen):
        prompts, engine = watch(screen, monkeypatch), screen.host.engine
        await ask(pilot, "/raw")
        await wait_until(lambda: "sent as it is" in title(screen))
        await ask(pilot, "Long ago, a small boat")
        await answered(screen, 2)
        assert prompts == [engine.encode("Long ago, a small boat")]
        chat = screen.session.chat_id
        assert chat is not None
        assert store.chat(chat).raw
        # Another chat is none; the first one is again.
        await pilot.press("ctrl+n")
        await pilot.pause()
        assert title(screen) == "Message"
        await screen.open_chat(chat)
        assert "sent as it is" in title(screen)
        await ask(pilot, "/raw")
        await wait_until(lambda: title(screen) == "Message")
        await ask(pilot, "What is tin?")
        await answered(screen, 4)
        assert prompts[1] == engine.encode_chat(
            screen.session.conversation.prompt(screen.path[2].id)
        )
