"""The states of an answer, without a screen: what waits, starts, streams, is stopped and stored."""

import asyncio
from collections.abc import Callable
from typing import Any

from app.chat.answering import Answering
from app.chat.budget import Shortage, WayOut
from app.chat.conversation import Conversation
from app.chat.host import EngineHost
from app.chat.session import Session
from app.chat.store.records import Attachment, Role, State
from app.chat.store.store import ChatStore
from runtimes.request import SamplingParams
from tests.app.chat.conftest import ENDLESS

SHORT = SamplingParams(max_tokens=8, ignore_eos=True)


class View:
    """Keeps what it is told to show. The thread of a test is the view's."""

    def __init__(self, host: EngineHost, store: ChatStore, params: SamplingParams) -> None:
        self.session, self._params = Session(store, host), params
        self.typed = ""
        self.told: list[str] = []
        self.asked: list[tuple[Shortage, Callable[[WayOut | None], Any]]] = []
        self.answer = Answering(self.session, self)
        self._loop = asyncio.get_running_loop()

    def params(self, conversation: Conversation) -> SamplingParams:
        return self._params

    def later(self, step: Callable[..., Any], *args: Any) -> object:
        async def call() -> None:
            done = step(*args)
            if asyncio.iscoroutine(done):
                await done

        return asyncio.run_coroutine_threadsafe(call(), self._loop)

    def give_back(self, text: str) -> None:
        self.typed = "\n\n".join(part for part in (text, self.typed) if part)

    def clear_prompt(self) -> None:
        self.typed = ""

    def sent(self, text: str) -> None:
        """Nothing is kept."""

    async def show_path(self, *, to_end: bool = True) -> None:
        """Nothing is drawn."""

    def show_state(self) -> None:
        """Nothing is drawn."""

    def chat_changed(self) -> None:
        """Nothing is counted."""

    async def new_chat(self) -> None:
        self.session.show(None, self.typed)

    def ask_way_out(self, short: Shortage, then: Callable[[WayOut | None], Any]) -> None:
        self.asked.append((short, then))

    def tell_error(self, problem: object) -> None:
        self.told.append(str(problem))

    def notify(self, message: str, *, severity: str = "information") -> None:
        self.told.append(message)

    async def until(self, reached: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not reached():
                progress = self.answer.poll()
                if progress is not None and progress.done:
                    await self.answer.ended()
                await asyncio.sleep(0.005)

    async def idle(self) -> None:
        await self.until(lambda: not self.answer.busy)

    @property
    def said(self) -> list[tuple[Role, State]]:
        return [(message.role, message.state) for message in self.session.path]


USER, DONE = (Role.USER, State.DONE), (Role.ASSISTANT, State.CUT)
STOPPED = (Role.ASSISTANT, State.STOPPED)


async def test_a_message_passes_all_states_and_the_next_one_waits_for_it(
    roomy: EngineHost, store: ChatStore
):
    view = View(roomy, store, SHORT)
    await view.answer.send("Go")
    await view.answer.send("Go on")  # behind the first one
    assert [one.text for one in view.session.queued] == ["Go on"]
    await view.idle()
    assert view.said == [USER, DONE, USER, DONE]
    assert [m.text for m in view.session.path if m.role is Role.USER] == ["Go", "Go on"]
    assert view.answer.figures.used
    assert not view.told


async def test_without_a_model_it_waits_and_can_be_taken_back(store: ChatStore):
    view = View(EngineHost(), store, SHORT)
    await view.answer.send("Go")
    assert view.answer.busy
    assert view.answer.notice()
    assert "model" in view.answer.doing()
    assert view.answer.poll() is None
    other = Conversation.new(store)
    view.session.show(other, "")
    await view.answer.send("In another chat")  # one waits already
    assert view.typed == "In another chat"
    assert view.answer.interrupt()
    assert not view.answer.busy
    assert not view.answer.interrupt()


async def test_a_stop_settles_and_gives_back_what_waits(roomy: EngineHost, store: ChatStore):
    view = View(roomy, store, ENDLESS)
    await view.answer.send("Go")
    await view.until(lambda: view.answer.figures.ttft_s is not None)
    view.session.attached = [Attachment("notes.txt", "Some notes.")]
    await view.answer.send("second")
    await view.answer.send("third")
    drafts, _ = view.session.unsent("typed")  # what is on disk, for who is killed now
    assert drafts == {view.session.chat_id: "second\n\nthird\n\ntyped"}
    assert view.answer.interrupt()
    assert view.answer.doing() == "stopping"
    assert view.typed == "second\n\nthird"
    assert [one.name for one in view.session.attached] == ["notes.txt"]
    await asyncio.sleep(0.01)
    await view.answer.send("after the stop")  # is sent all the same
    view._params = SHORT
    await view.idle()
    assert view.said == [USER, STOPPED, USER, DONE]
    assert view.session.path[2].text == "after the stop"


async def test_an_engine_that_fails_gives_back_what_waits(roomy: EngineHost, store: ChatStore):
    view = View(roomy, store, ENDLESS)
    await view.answer.send("Go")
    await view.until(lambda: view.answer.turn)
    await view.answer.send("one")
    view.answer.turn._stream.cancel()  # as when the model is closed
    await view.idle()
    assert view.typed == "one"
    assert view.said == [USER, STOPPED]
    assert "closed" in view.session.path[-1].error
