"""The app in a terminal of its own, doing one thing and writing down what it took.

`python -m app.tui.measure.child JOB OUT [ARGUMENTS]`; app.bench.tui starts it and presses keys.
JOB:

- stream KIND SECONDS RATE: a recorded answer comes while keys are pressed
- ask MODEL TOKENS PROMPT: a real answer
- long MESSAGES: a chat of so many messages is opened and scrolled through

OUT gets a JSON object, and OUT.ready is there while keys have an effect. Times are those of
CLOCK_MONOTONIC, which all processes share.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from textual.message import Message
from textual.widgets import TextArea
from textual.widgets.markdown import MarkdownBlock

from app.chat.host import EngineHost, HostState
from app.chat.store import Store
from app.chat.store.records import Role, State
from app.config.reading import load
from app.monitor.monitor import Monitor
from app.tui import terminal
from app.tui.app import IngotApp
from app.tui.measure import recorded
from app.tui.screens.chat import ChatScreen
from app.tui.services import Services, Start
from app.tui.widgets.answer_body import AnswerBody
from app.tui.widgets.message_view import MessageView
from app.tui.widgets.prose import CodeBlock

_FRAMES = 120
_MARKS = re.compile(r"^#+ |^- |\*\*", re.MULTILINE)


class MeasuredApp(IngotApp):
    """Runs ``job`` once the chat is there, then leaves."""

    def __init__(
        self, services: Services, job: Callable[[MeasuredApp], Awaitable[Any]], ready: Path
    ) -> None:
        super().__init__(services, driver_class=terminal.driver())
        self._job, self._marker = job, ready
        self.result: Any = None
        self.keys: list[tuple[int, float]] = []  # length of the prompt, and when it had that

    def on_mount(self) -> None:
        self.run_worker(self._measure(), exit_on_error=True)

    async def _measure(self) -> None:
        while not isinstance(self.screen, ChatScreen) or not self.chat.prompt.has_focus:
            await asyncio.sleep(0.01)
        self.note_keys()
        self._marker.touch()
        result = await self._job(self)
        self._marker.unlink()
        await asyncio.sleep(0.5)  # keys that are on their way
        self.result = result
        self.exit()

    @property
    def chat(self) -> ChatScreen:
        assert isinstance(self.screen, ChatScreen)
        return self.screen

    def note_keys(self) -> None:
        """Note when a key takes effect: the prompt has another text, and the picture follows as
        soon as the event loop is free."""
        prompt = self.chat.prompt
        post = prompt.post_message

        def noting(message: Message) -> bool:
            if isinstance(message, TextArea.Changed):
                self.keys.append((len(prompt.text), time.monotonic()))
            return post(message)

        prompt.post_message = noting  # type: ignore[method-assign]


async def stream(app: MeasuredApp, engine: recorded.RecordedEngine) -> dict[str, Any]:
    """A recorded answer from its first token to its end."""
    screen = app.chat
    paints: list[float] = []
    app.screen.screen_layout_refresh_signal.subscribe(screen, lambda _: paints.append(time.time()))
    thread, begin = time.thread_time(), time.monotonic()
    await screen.send("Go")
    while screen.busy:
        await asyncio.sleep(0.05)
    wall = time.monotonic() - begin
    thread = time.thread_time() - thread
    await asyncio.sleep(0.5)
    view = screen.transcript.view_of(screen.path[-1].id)
    assert view is not None
    return {
        "wall_s": wall,
        "thread_share": thread / wall,
        "layouts_per_s": len(paints) / wall,
        "tokens": len(engine.given),
        "lost": differs(view, "".join(engine.given)),
        "stored": screen.path[-1].text == "".join(engine.given),
        "keys": app.keys,
    }


async def ask(app: MeasuredApp, tokens: int, prompt: str) -> dict[str, Any]:
    """A real answer's figures."""
    screen = app.chat
    while app.services.host.state is not HostState.READY:
        assert app.services.host.state is not HostState.FAILED, app.services.host.error
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    screen.session.conversation.update(sampling={"temperature": 0.0, "max_tokens": tokens})
    cpu, begin = time.thread_time(), time.monotonic()
    await screen.send(prompt)
    while screen.busy:
        await asyncio.sleep(0.05)
    share = (time.thread_time() - cpu) / (time.monotonic() - begin)
    figures = screen.path[-1].figures
    assert figures is not None
    return {"decode_tps": figures.decode_tps, "thread_share": share}


async def scroll(app: MeasuredApp, chat: int) -> dict[str, Any]:
    """A long chat opened, then scrolled up by half a page at a time as fast as it is painted."""
    screen = app.chat
    begin, cpu = time.monotonic(), time.thread_time()
    await screen.open_chat(chat)
    await _painted(screen)
    opened = time.monotonic() - begin
    opened_cpu = time.thread_time() - cpu
    frames = []
    for _ in range(_FRAMES):
        begin = time.monotonic()
        screen.transcript.scroll_relative(y=-screen.transcript.size.height // 2, animate=False)
        await _painted(screen)
        frames.append(time.monotonic() - begin)
    mounted = len(screen.transcript.views)
    return {
        "open_s": opened,
        "open_cpu_s": opened_cpu,
        "frames_s": frames,
        "mounted": mounted,
    }


async def _painted(screen: ChatScreen) -> None:
    done = asyncio.Event()
    screen.call_after_refresh(done.set)
    await done.wait()


def differs(view: MessageView, given: str) -> int:
    """In how many words the shown text differs from ``given`` (plain Markdown without links: words,
    headings, lists, bold, and one level of fences); 0 when nothing is lost or twice."""
    assert isinstance(view.body, AnswerBody)
    shown: list[str] = []  # in the order in which the widgets stand
    for section in view.body.sections:
        if isinstance(section, CodeBlock):
            shown += " ".join(section.lines).split()
            continue
        for block in section.query(MarkdownBlock):
            shown += block._content.plain.split()
        shown += section.tail_text.split()
    wanted = _MARKS.sub("", re.sub(r"^```\w*$", "", given, flags=re.MULTILINE)).split()
    wrong = abs(len(shown) - len(wanted))
    return wrong + sum(a != b for a, b in zip(shown, wanted, strict=False))


def long_chat(store: Store, messages: int) -> int:
    """A chat of so many messages, answers with a list and code among them; its number."""
    chat = store.new_chat(title=f"{messages} messages")
    parent = None
    for number in range(messages // 2):
        asked = store.add_message(chat.id, parent, Role.USER, f"Question {number}: what then?")
        answer = store.begin_answer(
            chat.id, asked.id, model="recorded", file="recorded", runtime="recorded"
        )
        text = "".join(recorded.tokens("prose", 60))
        if number % 3 == 0:
            text += "\n\n" + "".join(recorded.tokens("code", 60)) + "\n```\n\nSo much for that."
        store.end_answer(answer.id, text, (1, 2, 3), State.DONE, None)
        parent = answer.id
    return chat.id


def main(job: str, out: str, *arguments: str) -> None:
    """Run one job; see the module."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = stack.enter_context(Store.open(folder / "chats.db"))
        host: EngineHost = recorded.RecordedHost(recorded.RecordedEngine([], 1))
        start = Start(model="recorded")
        run: Callable[[MeasuredApp], Awaitable[Any]]
        if job == "stream":
            kind, seconds, rate = arguments[0], float(arguments[1]), float(arguments[2])
            engine = recorded.RecordedEngine(recorded.tokens(kind, int(seconds * rate)), rate)
            host = recorded.RecordedHost(engine)
            run = partial(stream, engine=engine)
        elif job == "ask":
            host = stack.enter_context(closing(EngineHost()))
            start = Start(model=arguments[0])
            run = partial(ask, tokens=int(arguments[1]), prompt=arguments[2])
        else:
            run = partial(scroll, chat=long_chat(store, int(arguments[0])))
        config = replace(load(folder / "config.toml").config, theme=None)
        services = Services(config, store, host, Monitor(host), start)
        app = MeasuredApp(services, run, Path(f"{out}.ready"))
        with terminal.stderr_to(folder / "log"):
            app.run()
        if app.result is None:
            raise SystemExit((folder / "log").read_text(encoding="utf-8")[-2000:])
    Path(out).write_text(json.dumps(app.result), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
