"""kill -9 while an answer streams, in a real terminal; then the app again."""

from pathlib import Path
from typing import Any

from app.chat.store.records import Message, State
from app.chat.store.store import ChatStore
from app.config.settings import Config
from app.monitor.monitor import Monitor
from app.tui.app import IngotApp
from app.tui.measure import RecordedEngine, RecordedHost
from app.tui.services import Services, Start
from tests.app.tui.chat_app import chatting, text_of
from tests.app.tui.terminal import generating
from tests.support import wait_until


async def test_what_had_come_is_there_again(home: Path, endless_gguf: Path):
    terminal = generating(home, endless_gguf)
    try:
        await wait_until(lambda: len(streamed().text) > 30)
        saved = streamed()
        assert saved.state is State.STREAMING
    finally:
        terminal.close()
    with ChatStore.open() as store:
        lost = store.message(saved.id)
        assert lost.state is State.LOST
        assert len(lost.text) >= len(saved.text)
        assert lost.figures.completion_tokens > 0
        assert store.messages(lost.chat)[0].text == "Tell me a story."
        host = RecordedHost(RecordedEngine([], 1))
        start = Start("recorded", chat=lost.chat)
        again = IngotApp(Services(Config(), store, host, Monitor(host), start))
        async with chatting(again) as (pilot, screen):
            await pilot.pause()
            view: Any = screen.transcript.view_of(saved.id)
            assert view.body.text.strip() == lost.text.strip()
            assert "Ingot ended while this was being written" in text_of(view, "state")
            assert "tokens" in text_of(view, "foot")


def streamed() -> Message:
    """The answer as it is saved by now."""
    with ChatStore.open() as store:
        [_, answer] = store.messages(store.chats()[0].id)
        return answer
