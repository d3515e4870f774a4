"""The chat with a model of a server."""

from app.tui.app import IngotApp
from app.tui.services import Start, open_services
from tests.app.serve.conftest import running
from tests.app.tui.chat_app import answered, chatting, text_of
from tests.support import wait_until


async def test_a_servers_model_answers_and_its_end_is_told(home, gguf_file):
    with running({"pebble": gguf_file}, slots=1) as server:
        start = Start(model=f"{server.address}#pebble")
        with open_services(start) as services:
            app = IngotApp(services)
            async with chatting(app) as (pilot, screen):
                await screen.answer.send("What is the capital of France?")
                answer = await answered(screen, 2)
                assert "Paris" in answer.text
                view = screen.transcript.view_of(answer.id)
                figures = text_of(view, "foot")
                assert figures.startswith("pebble")
                assert "tok/s" in figures
                await pilot.press("f6")
                await wait_until(lambda: app.screen is not screen)
                await pilot.press("f2")
                await wait_until(lambda: app.screen is screen)
                server.pool.close()
                await screen.answer.send("What is 12 + 30?")
                await wait_until(lambda: list(app._notifications))
                assert [one.message for one in app._notifications] == [
                    "the server is shutting down"
                ]
                assert screen.prompt.text == "What is 12 + 30?"
