"""Every action of the chat, with a real model that is loaded once."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from textual import events

from app import models
from app.chat.host import EngineHost
from app.chat.slash import SPECS
from app.config import Config, Sampling
from app.monitor import Monitor
from app.store import Store
from app.store.records import Attachment, Role, State
from app.tui.app import IngotApp
from app.tui.help import HelpScreen
from app.tui.screens.attach import AttachScreen
from app.tui.screens.copy_choice import CopyChoice
from app.tui.screens.overflow import OverflowScreen
from app.tui.services import Services, Start, open_services
from app.tui.widgets.transcript import Transcript
from runtimes.worker.engine import WorkerEngine
from tests.app.tui.chat_app import ANSWER, add_turn, answered, shown, text_of
from tests.app.tui.conftest import wait_until
from tests.app.tui.held import HeldHost

SIZE = (100, 30)
SHORT = Sampling(max_tokens=24, temperature=0.0)
# So hot that it hardly ever ends by itself.
LONG = Sampling(max_tokens=900, temperature=5.0, top_p=1.0, seed=1)


class KeptHost(EngineHost):
    """Stays loaded when an app ends."""

    def close(self) -> None:
        pass

    def load(self, model: str, *options: Any) -> Any:
        return self.choice if self.choice else super().load(model, *options)


@pytest.fixture(scope="module")
def host(gguf_file: Path) -> Iterator[EngineHost]:
    kept = KeptHost()
    kept.load(str(gguf_file))
    yield kept
    EngineHost.close(kept)


@pytest.fixture
def make(home: Path, host: EngineHost) -> Iterator[Callable[..., IngotApp]]:
    """Makes an app around the loaded model and one store."""
    with Store.open() as store:

        def made(sampling: Sampling = SHORT, host: EngineHost = host, **start: Any) -> IngotApp:
            config = Config(sampling=sampling)
            return IngotApp(
                Services(config, store, host, Monitor(host), Start(str(host.model), **start))
            )

        yield made


@pytest.fixture
def held(gguf_file: Path) -> Iterator[HeldHost]:
    host = HeldHost(gguf_file)
    yield host
    host.close()


async def test_a_message_is_answered_with_its_figures(make: Any):
    app = make()
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(app)
        await pilot.press(*"Hello", "ctrl+j", *"you")
        assert screen.prompt.text == "Hello\nyou"
        await pilot.press("enter")
        answer = await answered(screen, 2)
        await pilot.pause()
        assert screen.prompt.text == ""
        assert [m.text for m in app.services.store.messages(answer.chat)] == [
            "Hello\nyou",
            answer.text,
        ]
        assert answer.state is State.CUT
        assert answer.figures is not None
        assert answer.figures.completion_tokens == 24
        view = screen.transcript.view_of(answer.id)
        assert view is not None
        assert view.body.text.strip() == answer.text.strip()
        assert text_of(view, "header").startswith("pebble")
        figures = text_of(view, "figures")
        assert "tok/s" in figures
        assert "first token" in figures
        assert "24 tokens" in figures
        assert "ctrl+g" in text_of(view, "state")
        assert "tok/s" in screen.status.line
        await wait_until(lambda: f"/{app.services.host.engine.context:,}" in screen.status.line)
        title = screen.query_one("#chat-title").visual
        assert "Hello" in str(title)


async def test_a_paste_of_many_lines_is_not_sent(make: Any):
    app = make()
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(app)
        app.post_message(events.Paste("one\ntwo\nthree\n"))
        await pilot.pause()
        assert screen.prompt.text == "one\ntwo\nthree\n"
        assert not screen.busy
        assert not screen.path


async def test_esc_stops_and_keeps_what_came_and_the_draft(held: HeldHost, make: Any):
    app = make(LONG, host=held)
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(app)
        await screen.send("Tell me everything")
        await wait_until(lambda: screen.path and len(screen.path[-1].text) > 10)
        await pilot.press(*"next")
        await pilot.press("escape")
        held.go.set()
        answer = await answered(screen, 2)
        await pilot.pause()
        assert answer.state is State.STOPPED
        assert len(answer.text) > 10
        assert app.services.store.message(answer.id).text == answer.text
        assert screen.prompt.text == "next"
        view = screen.transcript.view_of(answer.id)
        assert view is not None
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


async def test_reading_the_prompt_tells_how_far_it_is_where_the_answer_will_stand(
    held: HeldHost, make: Any
):
    app = make(LONG, host=held)
    held.reading.clear()
    held.go.set()
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(app)
        await screen.send("Tell me everything")
        await wait_until(lambda: screen.turn is not None and len(screen.path) == 2)
        view = screen.transcript.view_of(screen.path[-1].id)
        asked = len(held.held.encode_chat([{"role": "user", "content": "Tell me everything"}]))
        told = f"eading 0 of {asked} tokens"
        await wait_until(lambda: told in text_of(view, "state") and told in screen.status.line)
        await pilot.press("escape")
        await wait_until(lambda: "Stopping" in text_of(view, "state"))
        held.reading.set()
        answer = await answered(screen, 2)
        assert answer.state is State.STOPPED
        await wait_until(lambda: "eading" not in text_of(view, "state"))


async def test_esc_says_so_while_the_engine_does_not_answer(endless_app: IngotApp):
    async with endless_app.run_test(size=SIZE):
        screen = await shown(endless_app)
        await screen.send("Tell me a story.")
        await wait_until(lambda: screen.path and len(screen.path[-1].text) > 20)
        engine = endless_app.services.host.engine
        assert isinstance(engine, WorkerEngine)
        process = psutil.Process(engine.pid)
        process.suspend()
        try:
            assert screen.interrupt()
            await wait_until(lambda: screen.status.line.startswith("stopping"))
        finally:
            process.resume()
        assert (await answered(screen, 2)).state is State.STOPPED
        await wait_until(lambda: "stopping" not in screen.status.line)


async def test_another_answer_and_an_edit_are_branches(make: Any):
    app = make()
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(app)
        await screen.send("First")
        first = await answered(screen, 2)
        await pilot.press("ctrl+r")
        await wait_until(lambda: screen.path[-1].id != first.id and not screen.busy)
        await pilot.pause()
        second = screen.path[-1]
        assert second.parent == first.parent
        view = screen.transcript.view_of(second.id)
        assert view is not None
        assert "2/2" in text_of(view, "header")
        await pilot.press("alt+left")
        await wait_until(lambda: screen.path[-1].id == first.id)
        await wait_until(lambda: screen.transcript.view_of(first.id) is not None)
        view = screen.transcript.view_of(first.id)
        assert view is not None
        assert "1/2" in text_of(view, "header")
        # Edit: esc leaves it and the draft is back; enter makes a branch.
        await pilot.press(*"draft", "alt+e")
        assert screen.prompt.text == "First"
        await pilot.press("escape")
        assert screen.prompt.text == "draft"
        await pilot.press("alt+e", *" again", "enter")
        await wait_until(lambda: len(screen.path) == 2 and screen.path[0].text == "First again")
        answer = await answered(screen, 2)
        assert answer.id not in (first.id, second.id)
        assert screen.prompt.text == "draft"
        assert len(app.services.store.messages(first.chat)) == 5
        await pilot.press("ctrl+up", "up", "alt+left")
        await wait_until(lambda: screen.path[0].text == "First")


async def test_alt_right_undoes_alt_left_wherever_branches_branch(make: Any):
    app = make()
    store = app.services.store
    chat = store.new_chat().id
    first = add_turn(store, chat, None, "One", "an answer")
    question = store.message(first).parent
    for text in ("a second answer", "a third answer"):
        begun = store.begin_answer(chat, question)
        store.end_answer(begun.id, text, (1,), State.DONE)
    add_turn(store, chat, None, "Another", "of the edited question")
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(app)
        await screen.open_chat(chat)

        def texts() -> list[str]:
            return [message.text for message in screen.path]

        edited = ["Another", "of the edited question"]
        assert texts() == edited
        await pilot.press("alt+left")
        await wait_until(lambda: texts() == ["One", "a third answer"])
        await pilot.press("alt+right")
        await wait_until(lambda: texts() == edited)
        # A branch is found as it was left, not at its newest answer.
        await pilot.press("alt+left", "ctrl+up", "alt+left")
        await wait_until(lambda: texts() == ["One", "a second answer"])
        await pilot.press("up", "alt+right")
        await wait_until(lambda: texts() == edited)
        await pilot.press("alt+left")
        await wait_until(lambda: texts() == ["One", "a second answer"])


async def test_messages_and_code_are_copied(make: Any):
    app = make()
    chat = app.services.store.new_chat(title="Boats").id
    add_turn(app.services.store, chat, None, "How?", ANSWER)
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(app)
        await screen.open_chat(chat)
        await pilot.press("ctrl+y")
        assert isinstance(app.screen, CopyChoice)
        await pilot.press("down", "enter")
        await pilot.pause()
        assert app.clipboard == (
            "def row(boat, strokes):\n    return boat.speed * strokes  # metres"
        )
        await pilot.press("ctrl+up", "up", "c")
        await pilot.pause()
        assert app.clipboard == "How?"
        # Left out of the prompt, and taken in again.
        await pilot.press("d")
        await wait_until(lambda: screen.path[0].dropped)
        assert "Left out" in text_of(screen.transcript.selected, "state")
        await pilot.press("d")
        await wait_until(lambda: not app.services.store.message(screen.path[0].id).dropped)
        await pilot.press("ctrl+l")
        await wait_until(lambda: app.screen is not screen)
        await pilot.press("ctrl+u", *"Rivers", "enter")
        await wait_until(lambda: app.services.store.chat(chat).title == "Rivers")
        assert "Rivers" in str(screen.bar.visual)


async def test_messages_are_selected_by_keys(make: Any):
    app = make()
    store = app.services.store
    chat = store.new_chat().id
    last = None
    for number in range(11):
        last = add_turn(store, chat, last, f"Question {number}", "One line.\n\nAnd another.")
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(app)
        await screen.open_chat(chat)
        await pilot.press("ctrl+up")
        path = screen.path
        assert screen.transcript.selected.message.id == path[-1].id
        for back in range(2, 23):
            await pilot.press("up")
            await wait_until(lambda id=path[-back].id: screen.transcript.selected.message.id == id)
        await pilot.pause()
        view = screen.transcript.selected
        assert view.region.overlaps(screen.transcript.region)
        await pilot.press("down")
        await wait_until(lambda: screen.transcript.selected.message.id == path[1].id)
        assert isinstance(screen.focused.parent, Transcript)
        screen.transcript.action_follow()
        await wait_until(lambda: screen.transcript.following)
        await wait_until(lambda: screen.transcript.view_of(path[-1].id) is not None)
        screen.transcript.select(screen.transcript.view_of(path[-1].id))
        await pilot.press("down")
        await pilot.pause()
        assert screen.prompt.has_focus


async def test_thinking_is_collapsed_and_opens(make: Any):
    app = make()
    store = app.services.store
    chat = store.new_chat().id
    add_turn(store, chat, None, "Why?", "<think>\nHm, a river.\n</think>\n\nBecause.")
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(app)
        await screen.open_chat(chat)
        await pilot.press("ctrl+up")
        view = screen.transcript.selected
        thought = view.body.thought
        assert view.body.text == "Because."
        assert thought.text.strip() == "Hm, a river."
        assert not thought.opened
        assert "token" in str(thought.query_one(".title").visual)
        await pilot.press("space")
        await pilot.pause()
        assert thought.opened
        assert thought.query_one("TextLines").region.height == 1


async def test_earlier_prompts_and_drafts(make: Any):
    app = make()
    store = app.services.store
    old = store.new_chat().id
    add_turn(store, old, None, "Older question", "Yes.")
    add_turn(store, old, None, "Newer question", "No.")
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(app)
        await pilot.press(*"typed", "up")
        assert screen.prompt.text == "Newer question"
        await pilot.press("up")
        assert screen.prompt.text == "Older question"
        await pilot.press("down", "down")
        assert screen.prompt.text == "typed"
        await screen.open_chat(old)
        assert screen.prompt.text == ""
        await pilot.press(*"other")
        await pilot.press("ctrl+n")
        await pilot.pause()
        assert screen.prompt.text == "typed"
        await screen.open_chat(old)
        assert screen.prompt.text == "other"


async def test_slash_commands_do_it_or_say_what_is_wrong(make: Any):
    app = make()
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(app)
        await pilot.press(*"/reg")
        await pilot.pause()
        assert "/regen" in str(screen.menu.visual)
        await pilot.press("tab")
        assert screen.prompt.text == "/regen"
        screen.prompt.fill("/settt temperature 1")
        await pilot.press("enter")
        await wait_until(lambda: "did you mean" in str(screen.menu.visual))
        assert screen.prompt.text == "/settt temperature 1"
        assert screen.menu.display
        screen.prompt.fill("/set temperature 0.25")
        await pilot.press("enter")
        await wait_until(lambda: screen.conversation.chat.sampling == {"temperature": 0.25})
        assert screen.prompt.text == ""
        screen.prompt.fill("/set temperature lots")
        await pilot.press("enter")
        await wait_until(lambda: "temperature" in str(screen.menu.visual))
        screen.prompt.fill("/system Be brief.")
        await pilot.press("enter")
        await wait_until(lambda: screen.conversation.chat.system == "Be brief.")
        screen.prompt.fill("//not a command")
        await pilot.press("enter")
        await answered(screen, 2)
        assert screen.path[0].text == "/not a command"


async def test_every_command_of_the_menu_can_be_reached_with_the_arrows(make: Any):
    app = make()
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(app)
        await pilot.press("/")
        await wait_until(lambda: "1-8 of" in str(screen.menu.visual))
        for spec in SPECS:
            await pilot.press("down")
            assert f"▸ /{spec.name}" in str(screen.menu.visual)
        await pilot.press("down", "down", "up", "up")  # round the end and back
        assert f"▸ /{SPECS[-1].name}" in str(screen.menu.visual)
        await pilot.press("ctrl+u", *"/s", "down", "enter")
        await wait_until(lambda: screen.prompt.text == "/system ")
        await pilot.press("ctrl+u", *"/he", "down", "enter")
        await wait_until(lambda: isinstance(app.screen, HelpScreen))
        assert screen.prompt.text == ""


async def test_keys_are_told_as_they_are_mapped(make: Any):
    services = make().services
    keymap = {"chat.models": "f11", "chat.continue": "alt+g", "chat.attach": "f2"}
    app = IngotApp(replace(services, config=replace(services.config, keymap=keymap)))
    chat = app.services.store.new_chat().id
    add_turn(app.services.store, chat, None, "How?", "So", state=State.STOPPED)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        screen = await shown(app)
        assert "F11" in str(screen.transcript._welcome.visual)
        assert "ctrl+t" not in str(screen.transcript._welcome.visual)
        told = [one.message for one in app._notifications]
        assert any("F2 is both app.chat and chat.attach" in one for one in told), told
        # What would share a key keeps its own: else neither of the two would work.
        await pilot.press("f8")
        await wait_until(lambda: isinstance(app.screen, AttachScreen))
        await pilot.press("escape")
        await screen.open_chat(chat)
        assert "alt+g goes on" in text_of(screen.transcript.views[-1], "state")


async def test_ctrl_e_is_the_end_of_a_line_in_the_prompt(make: Any):
    app = make()
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(app)
        await pilot.press(*"ver", "ctrl+a", *"ri", "ctrl+e", *"!")
        assert screen.prompt.text == "river!"


async def test_files_go_with_a_message(make: Any, tmp_path: Path):
    notes = tmp_path / "notes.txt"
    notes.write_text("A mill by the river.", encoding="utf-8")
    app = make()
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(app)
        for _ in range(2):
            screen.prompt.fill(f"/attach {notes}")
            await pilot.press("enter")
        await wait_until(lambda: len(screen.attached) == 2)
        await pilot.pause()
        assert "notes.txt" in str(screen.notice.visual)
        await pilot.press("backspace")
        await wait_until(lambda: len(screen.attached) == 1)
        await screen.send("What is there?")
        await answered(screen, 2)
        assert [a.name for a in screen.path[0].attachments] == ["notes.txt"]
        assert not screen.attached


async def test_what_does_not_fit_is_asked_about(make: Any):
    app = make()
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(app)
        long = "the river was wide " * 150
        screen.prompt.fill(long)
        await wait_until(lambda: "Too long: the prompt fills" in str(screen.notice.visual))
        await pilot.press("enter")
        await wait_until(lambda: isinstance(app.screen, OverflowScreen))
        await pilot.press("escape")
        await pilot.pause()
        assert screen.path == ()
        assert screen.prompt.text == long, "it is a draft again"
        assert not screen.busy


async def test_more_of_an_answer_that_filled_the_context_is_asked_about(
    make: Any, host: EngineHost
):
    app = make()
    store, engine = app.services.store, host.engine
    assert engine is not None
    long = "the river"
    while len(engine.encode(long)) < 0.6 * engine.context:
        long += " was wide and the river"
    chat = store.new_chat().id
    first = add_turn(store, chat, None, "One", long)
    asked = store.add_message(chat, first, Role.USER, "Two")
    cut = store.begin_answer(chat, asked.id).id
    store.end_answer(cut, long, engine.encode(long), State.CUT)
    async with app.run_test(size=SIZE) as pilot:
        screen = await shown(app)
        await screen.open_chat(chat)
        await pilot.press("ctrl+g")
        await wait_until(lambda: isinstance(app.screen, OverflowScreen))
        await pilot.press("escape")
        await wait_until(lambda: app.screen is screen)
        assert not screen.busy
        assert store.message(cut).text == long
        await pilot.press("ctrl+g")
        await wait_until(lambda: isinstance(app.screen, OverflowScreen))
        await pilot.press("enter")  # without the oldest turn
        await wait_until(lambda: not screen.busy and len(store.message(cut).text) > len(long))
        assert screen.path[0].dropped
        assert store.message(cut).id == screen.path[-1].id


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
            await wait_until(lambda: "goes on with your text" in screen.status.line)
            await screen.send("Once upon a time")
            answer = await answered(screen, 2)
            assert answer.figures is not None
            engine = services.host.engine
            assert answer.figures.prompt_tokens == len(engine.encode("Once upon a time"))
            await screen.send("And then")
            more = await answered(screen, 4)
            text = f"Once upon a time{answer.text}\n\nAnd then"
            assert more.figures is not None
            assert more.figures.prompt_tokens == len(engine.encode(text))


@pytest.fixture
def may_load(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No model is loaded before this is set."""
    load, go = models.load_engine, threading.Event()

    def late(*arguments: Any, **options: Any) -> Any:
        go.wait()
        return load(*arguments, **options)

    monkeypatch.setattr(models, "load_engine", late)
    yield go
    go.set()


async def test_one_can_send_while_the_model_loads(chat_app: IngotApp, may_load: threading.Event):
    async with chat_app.run_test(size=SIZE) as pilot:
        screen = await shown(chat_app)
        await screen.send("Hello")
        await pilot.pause()
        assert screen.busy
        assert "Waits for the model" in str(screen.notice.visual)
        may_load.set()
        await wait_until(lambda: screen.path[-1].role is Role.ASSISTANT and screen.path[-1].text)
        await pilot.pause()
        assert not screen.notice.display
        assert chat_app.services.store.messages(screen.path[0].chat)


async def test_what_was_sent_while_the_model_loads_and_does_not_fit_is_a_draft_again(
    chat_app: IngotApp, may_load: threading.Event, tmp_path: Path
):
    store, chat = chat_app.services.store, chat_app.services.store.new_chat().id
    edited = store.message(add_turn(store, chat, None, "One", "an answer")).parent
    notes = Attachment("notes.txt", "A mill by the river.")
    long = "the river was wide " * 400
    async with chat_app.run_test(size=SIZE) as pilot:
        screen = await shown(chat_app)
        await screen.open_chat(chat)
        await pilot.press(*"next", "alt+e")
        screen.attach(notes)
        screen.prompt.fill(long)
        await pilot.press("enter")
        await wait_until(lambda: len(screen.path) == 1)
        may_load.set()
        await wait_until(lambda: isinstance(chat_app.screen, OverflowScreen))
        await pilot.press("escape")
        await pilot.pause()
        assert [message.text for message in screen.path] == ["One", "an answer"]
        assert [message.text for message in store.messages(chat)] == ["One", "an answer"]
        assert store.chat(chat).leaf == screen.path[-1].id
        assert screen.prompt.text == long
        assert screen.editing == edited
        assert screen.attached == [notes]
        assert not screen.busy
        await pilot.press("escape")
        assert screen.prompt.text == "next"
