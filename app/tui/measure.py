"""The chat screen under load, measured from outside: the app in a terminal of its own, doing one
thing and writing down what it took.

`python -m app.tui.measure JOB OUT [ARGUMENTS]`; app.bench.tui starts it and presses keys. JOB:

- stream KIND SECONDS RATE: a recorded answer comes while keys are pressed
- ask MODEL TOKENS PROMPT: a real answer
- long MESSAGES: a chat of so many messages is opened and scrolled through
- open MODEL: every other screen is opened for the first time

OUT gets a JSON object, and OUT.ready is there while keys have an effect. Times are those of
CLOCK_MONOTONIC, which all processes share.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from textual.screen import Screen
from textual.widgets import TextArea
from textual.widgets.markdown import MarkdownBlock

from app.chat.host import EngineHost, HostState
from app.chat.store.records import State
from app.chat.store.store import ChatStore
from app.config.files import load
from app.monitor.monitor import Monitor
from app.tui import terminal
from app.tui.app import IngotApp
from app.tui.modes import MODES
from app.tui.screens.chat import ChatScreen
from app.tui.services import Services, Start
from app.tui.widgets.message_view import AnswerBody, MessageView
from app.tui.widgets.prose import CodeBlock
from runtimes import chat
from runtimes.request import Chunk, Completion, FinishReason, Request, Timings, Usage
from runtimes.stream import Stream

_FRAMES = 120
_DIALOGS = ("models", "chats", "sampling", "system", "attach", "app.help", "app.command_palette")
_MARKS = re.compile(r"^#+ |^- |\*\*", re.MULTILINE)
_WORDS = (
    "the river was quiet and a small boat went slowly past old houses where nobody had lived since "
    "winter while children on its bank counted birds stones and clouds until evening came"
).split()


# A recorded answer


def tokens(kind: str, count: int) -> list[str]:
    """``count`` pieces of three to five characters: "code" is one long block of Python, "prose"
    paragraphs with lists and headings between them."""
    draw = random.Random(0)
    return list(islice(_pieces(_code(draw) if kind == "code" else _prose(draw), draw), count))


def _pieces(texts: Iterator[str], draw: random.Random) -> Iterator[str]:
    rest = ""
    for text in texts:
        rest += text
        while len(rest) >= 5:
            size = draw.choice((3, 4, 5))
            yield rest[:size]
            rest = rest[size:]


def _words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choice(_WORDS) for _ in range(count))


def _code(draw: random.Random) -> Iterator[str]:
    yield "```python\n"
    number = 0
    while True:
        number += 1
        yield f"def step_{number}(boat, river):\n"
        for _ in range(draw.randrange(3, 9)):
            name, value = draw.choice(_WORDS), draw.choice(_WORDS)
            yield f"    {name} = boat['{value}'] + {draw.randrange(1000)}  # {_words(draw, 4)}\n"
        yield "    return river\n\n"


def _prose(draw: random.Random) -> Iterator[str]:
    while True:
        kind = draw.randrange(6)
        if kind == 0:
            yield f"## {_words(draw, 4)}\n\n"
        elif kind == 1:
            yield "".join(f"- {_words(draw, 8)}\n" for _ in range(draw.randrange(3, 8))) + "\n"
        else:
            yield f"{_words(draw, draw.randrange(30, 120))} **{_words(draw, 2)}** and so on.\n\n"


class RecordedEngine:
    """Part of ``EngineApi`` that a chat needs. ``rate`` in tokens per second."""

    slots, vocab_size, context = 1, 256, 1 << 20
    pid = chat_template = None
    path = "recorded"

    def __init__(self, pieces: Sequence[str], rate: float) -> None:
        self.pieces, self.rate = pieces, rate
        self.model: Any = self  # a chat asks for the template only
        self.given: list[str] = []
        self._cancelled = threading.Event()

    def encode_chat(
        self,
        messages: Sequence[chat.Message],
        template: str | None = None,
        tools: Sequence[chat.Message] | None = None,
        variables: object = None,
    ) -> list[int]:
        """Ids, one a word."""
        return [0] * (1 + sum(len(self.encode(str(m["content"]))) for m in messages))

    def encode(self, text: str) -> list[int]:
        return [0] * len(text.split())

    def submit(self, request: Request) -> Stream:
        stream = Stream(request.id, lambda _: self._cancelled.set())
        threading.Thread(target=self._answer, args=(request, stream), daemon=True).start()
        return stream

    def _answer(self, request: Request, stream: Stream) -> None:
        begin = time.monotonic()
        for number, piece in enumerate(self.pieces):
            if self._cancelled_before(number, begin):
                break
            self.given.append(piece)
            stream.put(Chunk(piece, (number % 256,)))
        seconds, count, asked = time.monotonic() - begin, len(self.given), len(request.prompt)
        stream.finish(
            Completion(
                request.id,
                "".join(self.given),
                tuple(i % 256 for i in range(count)),
                FinishReason.STOP,
                Usage(asked, count),
                Timings(0, 0.01, 0.01, seconds, seconds, asked, count),
            )
        )

    def _cancelled_before(self, number: int, begin: float) -> bool:
        """Wait until it is time for a piece; whether it is not wanted any more."""
        return self._cancelled.wait(max(0.0, begin + number / self.rate - time.monotonic()))


class RecordedHost(EngineHost):
    """Host that has a ``RecordedEngine`` loaded."""

    def __init__(self, engine: RecordedEngine) -> None:
        super().__init__()
        self._recorded = engine
        self._label, self.details = "recorded", f"{engine.rate:g} tok/s"

    def load(self, model: str, options: Any = None, settings: Any = None) -> Any:
        """There is nothing to load."""

    @property
    def state(self) -> HostState:
        return HostState.READY

    @property
    def engine(self) -> Any:
        return self._recorded


# The app


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

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """Note when a key takes effect: the prompt has another text, and the picture follows as
        soon as the event loop is free."""
        self.keys.append((len(event.text_area.text), time.monotonic()))


async def stream(app: MeasuredApp, engine: RecordedEngine) -> dict[str, Any]:
    """A recorded answer from its first token to its end."""
    screen = app.chat
    paints: list[float] = []
    app.screen.screen_layout_refresh_signal.subscribe(screen, lambda _: paints.append(time.time()))
    wall, share = await _answered(screen, "Go")
    await asyncio.sleep(0.5)
    view = screen.transcript.view_of(screen.path[-1].id)
    assert view is not None
    given = "".join(engine.given)
    return {
        "seconds": wall,
        "tokens": len(engine.given),
        "words_lost": differs(view, given),
        "stored": screen.path[-1].text == given,
        "core_share": share,
        "pictures_per_s": len(paints) / wall,
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
    _, share = await _answered(screen, prompt)
    figures = screen.path[-1].figures
    assert figures is not None
    return {"decode_tps": figures.decode_tps, "core_share": share}


async def _answered(screen: ChatScreen, text: str) -> tuple[float, float]:
    """Seconds until ``text`` is answered, and the share of a core that this thread took."""
    cpu, begin = time.thread_time(), time.monotonic()
    await screen.answer.send(text)
    while screen.busy:
        await asyncio.sleep(0.05)
    wall = time.monotonic() - begin
    return wall, (time.thread_time() - cpu) / wall


async def scroll(app: MeasuredApp, chat: int) -> dict[str, Any]:
    """A long chat opened, then scrolled up by half a page at a time as fast as it is painted."""
    screen = app.chat
    begin, cpu = time.monotonic(), time.thread_time()
    await screen.open_chat(chat)
    await _painted(screen)
    figures = {"open_s": time.monotonic() - begin, "open_cpu_s": time.thread_time() - cpu}
    frames = []
    for _ in range(_FRAMES):
        begin = time.monotonic()
        screen.transcript.scroll_relative(y=-screen.transcript.size.height // 2, animate=False)
        await _painted(screen)
        frames.append(time.monotonic() - begin)
    return {**figures, "frames_s": frames, "mounted": len(screen.transcript.views)}


async def first_openings(app: MeasuredApp) -> dict[str, float]:
    """Seconds from asking for a screen to its picture: each mode, and what opens over the chat."""
    await asyncio.sleep(1.0)  # a user has looked at the first one
    seconds = {}
    for mode in MODES[1:]:
        seconds[mode.title] = await _opened(app, f"app.switch_mode('{mode.name}')")
    await app.run_action("app.switch_mode('chat')")
    for name in _DIALOGS:
        seconds[name] = await _opened(app, name)
        app.screen.dismiss()
        while not isinstance(app.screen, ChatScreen):
            await asyncio.sleep(0.01)
    return seconds


async def _opened(app: MeasuredApp, action: str) -> float:
    before, begin = app.screen, time.monotonic()
    await app.run_action(action, default_namespace=before)
    while app.screen is before:
        await asyncio.sleep(0.001)
    await _painted(app.screen)
    return time.monotonic() - begin


async def _painted(screen: Screen[Any]) -> None:
    done = asyncio.Event()
    screen.call_after_refresh(done.set)
    await done.wait()


def differs(view: MessageView, given: str) -> int:
    """Number of words in which the shown text differs from ``given`` (plain Markdown without links:
    words, headings, lists, bold, and one level of fences); 0 when nothing is lost or twice."""
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


def long_chat(store: ChatStore, messages: int) -> int:
    """A chat of so many messages, answers with a list and code among them; its number."""
    chat = store.new_chat(title=f"{messages} messages")
    parent = None
    for number in range(messages // 2):
        asked = store.add_message(chat.id, parent, f"Question {number}: what then?")
        answer = store.begin_answer(
            chat.id, asked.id, model="recorded", file="recorded", runtime="recorded"
        )
        text = "".join(tokens("prose", 60))
        if number % 3 == 0:
            text += "\n\n" + "".join(tokens("code", 60)) + "\n```\n\nSo much for that."
        store.end_answer(replace(answer, text=text, token_ids=(1, 2, 3), state=State.DONE))
        parent = answer.id
    return chat.id


def main(job: str, out: str, first: str, *more: str) -> None:
    """Run one job; see the module."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = stack.enter_context(ChatStore.open(folder / "chats.db"))
        run: Callable[[MeasuredApp], Awaitable[Any]]
        model, host = first, stack.enter_context(closing(EngineHost()))
        if job == "ask":
            run = partial(ask, tokens=int(more[0]), prompt=more[1])
        elif job == "open":
            run = first_openings
        else:
            engine = RecordedEngine([], 1)
            if job == "stream":
                seconds, rate = map(float, more)
                engine = RecordedEngine(tokens(first, int(seconds * rate)), rate)
                run = partial(stream, engine=engine)
            else:
                run = partial(scroll, chat=long_chat(store, int(first)))
            model, host = "recorded", RecordedHost(engine)
        config = replace(load(folder / "config.toml").config, theme=None)
        app = MeasuredApp(
            Services(config, store, host, Monitor(host), Start(model)), run, Path(f"{out}.ready")
        )
        gc.disable()  # as `ingot chat` does until the app is drawn
        with terminal.stderr_to(folder / "log"):
            app.run()
        if app.result is None:
            raise SystemExit((folder / "log").read_text(encoding="utf-8")[-2000:])
    Path(out).write_text(json.dumps(app.result), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
