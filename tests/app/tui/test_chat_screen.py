"""Asking and answering in the chat, with a real model."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.widgets import Static
from textual.widgets._markdown import MarkdownTable

from app.chat.store.records import State
from app.chat.store.store import ChatStore
from app.config.settings import Config, Sampling
from app.tui.app import IngotApp
from app.tui.screens.chat import ChatScreen
from app.tui.services import Start, open_services
from tests.app.serve.conftest import running
from tests.app.tui.chat_app import answered, chatting, shown, text_of
from tests.app.tui.conftest import SHORT, ask
from tests.app.tui.held import HeldHost
from tests.support import wait_until

SIZE = (100, 30)


# So hot that it hardly ever ends by itself.
LONG = Sampling(max_tokens=900, temperature=5.0, top_p=1.0, seed=1)


async def test_a_message_is_answered_with_its_figures(make):
    app = make()
    async with chatting(app) as (pilot, screen):
        await pilot.press(*"Hello", "ctrl+j", *"you")
        assert screen.prompt.text == "Hello\nyou"
        await pilot.press("enter")
        answer = await answered(screen, 2)
        await pilot.pause()
        assert screen.prompt.text == ""
        assert answer.state is State.CUT
        assert answer.figures.completion_tokens == 24
        view = screen.transcript.view_of(answer.id)
        assert view.body.text.strip() == answer.text.strip()
        figures = r"pebble.* [\d.,]+ tok/s · first token .* · 24 tokens"
        assert re.match(figures, text_of(view, "foot"))
        assert "ctrl+g" in text_of(view, "state")
        context = f"of {app.services.host.engine.context:,} ·"
        await wait_until(lambda: context in screen.box.status.plain)
        assert screen.session.shown.chat.title == "Hello"
        assert not screen.bar.text  # it can be read in the question


async def test_esc_stops_and_keeps_what_came_and_the_draft(held: HeldHost, make):
    app = make(LONG, host=held)
    async with chatting(app) as (pilot, screen):
        await screen.answer.send("Tell me everything")
        await wait_until(lambda: len(screen.path) == 2 and len(screen.path[-1].text) > 10)
        await pilot.press(*"next")
        await wait_until(lambda: screen.turn is not None)
        await pilot.press("escape")
        await wait_until(lambda: screen.turn.stopping)
        held.go.set()
        answer = await answered(screen, 2)
        await pilot.pause()
        assert answer.state is State.STOPPED
        assert len(answer.text) > 10
        assert app.services.store.message(answer.id).text == answer.text
        assert screen.prompt.text == "next"
        view = screen.transcript.view_of(answer.id)
        assert "Stopped" in text_of(view, "state")
        # It goes on from where it was.
        before = answer.text
        held.go.clear()
        await pilot.press("ctrl+g")
        await wait_until(lambda: len(screen.path[-1].text) > len(before) + 10)
        assert screen.interrupt()
        held.go.set()
        answer = await answered(screen, 2)
        await pilot.pause()
        assert answer.text.startswith(before[:-4])
        assert view.body.text.strip() == answer.text.strip()
        assert screen.prompt.text == "next"


async def test_files_go_with_a_message(make, tmp_path: Path):
    notes = tmp_path / "notes.txt"
    notes.write_text("A mill by the river.", encoding="utf-8")
    app = make()
    async with chatting(app) as (pilot, screen):
        for _ in range(2):
            screen.prompt.fill(f"/attach {notes}")
            await pilot.press("enter")
        await wait_until(lambda: len(screen.session.attached) == 2)
        await pilot.pause()
        files = screen.box.query_one(".files", Static)
        assert str(files.visual).count(" notes.txt 20 characters ✕") == 2
        assert await pilot.click(files, offset=(str(files.visual).index("✕"), 0))
        await wait_until(lambda: len(screen.session.attached) == 1)
        await pilot.press("backspace")
        await wait_until(lambda: not files.display)
        screen.prompt.fill(f"/attach {notes}")
        await pilot.press("enter")
        await wait_until(lambda: screen.session.attached)
        await screen.answer.send("What is there?")
        await answered(screen, 2)
        assert [a.name for a in screen.path[0].attachments] == ["notes.txt"]
        assert not screen.session.attached


async def test_a_model_without_a_template_goes_on_with_the_text(
    home: Path, pebble_built: Path, tmp_path: Path
):
    folder = tmp_path / "base"
    shutil.copytree(pebble_built / "onnx-int8", folder)
    (folder / "chat_template.jinja").unlink()
    with open_services(Start(str(folder))) as services:
        services.config = Config(sampling=SHORT)
        app = IngotApp(services)
        async with app.run_test(size=SIZE, notifications=True):
            screen = await shown(app)
            await wait_until(lambda: services.host.engine is not None)
            await wait_until(lambda: "no chat template" in str(list(app._notifications)))
            await wait_until(lambda: "continues your text" in screen.box.status.plain)
            await screen.answer.send("Once upon a time")
            answer = await answered(screen, 2)
            engine = services.host.engine
            assert answer.figures.prompt_tokens == len(engine.encode("Once upon a time"))
            await screen.answer.send("And then")
            more = await answered(screen, 4)
            text = f"Once upon a time{answer.text}\n\nAnd then"
            assert more.figures.prompt_tokens == len(engine.encode(text))


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


SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Paris"]}, "country": {"enum": ["Italy", "France"]}},
    "required": ["city", "country"],
    "additionalProperties": False,
}


async def test_answers_keep_to_a_form(make: Callable[..., IngotApp], tmp_path: Path) -> None:
    file = tmp_path / "city.json"
    file.write_text(json.dumps(SCHEMA))
    app = make(Sampling(max_tokens=60, temperature=0.0))

    def told() -> list[str]:
        return [str(screen.notice.content), *(one.message for one in app._notifications)]

    async with app.run_test(size=(100, 30)) as pilot:
        screen = await shown(app)
        await ask(pilot, "/choice lemons | limes")
        await wait_until(lambda: "one of your choices" in str(screen.box.border_title))
        await ask(pilot, "What is the capital of France?")
        assert (await answered(screen, 2)).text in ("lemons", "limes")

        await ask(pilot, f"/schema {file}")
        await wait_until(lambda: "JSON of your schema" in str(screen.box.border_title))
        await ask(pilot, "/set temperature 0.5")  # another setting leaves the form alone
        await ask(pilot, "What is the capital of France?")
        answer = await answered(screen, 4)
        said = json.loads(answer.text)
        assert said.keys() == {"city", "country"}
        view = screen.transcript.view_of(answer.id)
        assert view is not None
        await wait_until(lambda: len(view.query(MarkdownTable)) == 1)
        chat = screen.session.chat_id
        assert chat is not None
        await screen.new_chat()
        assert "JSON" not in str(screen.box.border_title)
        await screen.open_chat(chat)
        assert "JSON of your schema" in str(screen.box.border_title)
        await ask(pilot, "/set max_tokens 6")
        await ask(pilot, "What is the capital of Japan?")
        assert (await answered(screen, 6)).state is State.CUT
        await pilot.press("ctrl+g")  # what goes on in the middle has no form
        await wait_until(lambda: any("could not keep to it" in text for text in told()))
        assert screen.path[-1].state is State.CUT
        await ask(pilot, "/schema off")
        await wait_until(lambda: "JSON" not in str(screen.box.border_title))
        await ask(pilot, "/schema nothing.json")
        await wait_until(lambda: any("cannot be read" in text for text in told()))
