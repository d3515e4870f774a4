"""The messages of a chat: branches, selecting, copying, and what a model thought."""

from dataclasses import replace

from app.chat.store.records import State
from app.tui.screens.dialogs import CopyChoice
from app.tui.widgets.transcript import Transcript
from tests.app.tui.chat_app import ANSWER, add_turn, answered, chatting, text_of
from tests.support import wait_until


async def test_another_answer_and_an_edit_are_branches(make):
    app = make()
    async with chatting(app) as (pilot, screen):
        await screen.answer.send("First")
        first = await answered(screen, 2)
        await pilot.press("ctrl+r")
        await wait_until(lambda: screen.path[-1].id != first.id and not screen.busy)
        await pilot.pause()
        second = screen.path[-1]
        assert second.parent == first.parent
        view = screen.transcript.view_of(second.id)
        assert view is not None
        assert "2/2" in text_of(view, "foot")
        await pilot.press("alt+left")
        await wait_until(lambda: screen.path[-1].id == first.id)
        await wait_until(lambda: screen.transcript.view_of(first.id) is not None)
        view = screen.transcript.view_of(first.id)
        assert view is not None
        assert "1/2" in text_of(view, "foot")
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


async def test_alt_right_undoes_alt_left_wherever_branches_branch(make):
    app = make()
    store = app.services.store
    chat = store.new_chat().id
    first = add_turn(store, chat, None, "One", "an answer")
    question = store.message(first).parent
    for text in ("a second answer", "a third answer"):
        begun = store.begin_answer(chat, question)
        store.end_answer(replace(begun, text=text, token_ids=(1,), state=State.DONE))
    add_turn(store, chat, None, "Another", "of the edited question")
    async with chatting(app, chat) as (pilot, screen):

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


async def test_messages_and_code_are_copied(make):
    app = make()
    chat = app.services.store.new_chat(title="Boats").id
    add_turn(app.services.store, chat, None, "How?", ANSWER)
    async with chatting(app, chat) as (pilot, screen):
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
        await pilot.press("delete")
        await wait_until(lambda: screen.path[0].dropped)
        assert "Left out" in text_of(screen.transcript.selected, "state")
        await pilot.press("delete")
        await wait_until(lambda: not app.services.store.message(screen.path[0].id).dropped)
        await pilot.press("ctrl+l")
        await wait_until(lambda: app.screen is not screen)
        await pilot.press("ctrl+u", *"Rivers", "enter")
        await wait_until(lambda: app.services.store.chat(chat).title == "Rivers")
        assert "Rivers" in str(screen.bar.visual)


async def test_messages_are_selected_by_keys(make):
    app = make()
    store = app.services.store
    chat = store.new_chat().id
    last = None
    for number in range(9):  # more than are mounted at first, and than come at once then
        last = add_turn(store, chat, last, f"Question {number}", "One line.\n\nAnd another.")
    async with chatting(app, chat) as (pilot, screen):
        await pilot.press("ctrl+up")
        path = screen.path
        assert screen.transcript.selected.message.id == path[-1].id
        for back in range(2, 19):
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
