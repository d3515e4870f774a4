"""Asking and answering in the chat, with a real model."""

import re
import shutil
from pathlib import Path

from textual.widgets import Static

from app.chat.store.records import State
from app.config.settings import Config, Sampling
from app.tui.app import IngotApp
from app.tui.services import Start, open_services
from tests.app.tui.chat_app import answered, chatting, shown, text_of
from tests.app.tui.conftest import SHORT
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
