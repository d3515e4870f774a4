"""An engine that answers with a recorded text at a fixed rate: so only the screen is measured."""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from app.chat.host import EngineHost, HostState
from runtimes import chat
from runtimes.api import EngineApi
from runtimes.request import Chunk, Completion, FinishReason, Request, Timings, Usage
from runtimes.stream import Stream

CONTEXT = 1 << 20
_WORDS = (
    "the river was quiet and a small boat went slowly past old houses where nobody had lived since "
    "winter while children on its bank counted birds stones and clouds until evening came"
).split()


def tokens(kind: str, count: int) -> list[str]:
    """``count`` pieces of four or five characters: "code" is one long block of Python, "prose"
    paragraphs with lists and headings between them, "list" one list that does not end."""
    make = {"code": _code, "prose": _prose, "list": _list}[kind]
    found: list[str] = []
    rest = ""
    draw = random.Random(0)
    for text in make(draw):
        rest += text
        while len(rest) >= 5:
            size = draw.choice((3, 4, 5))
            found.append(rest[:size])
            rest = rest[size:]
            if len(found) == count:
                return found
    return found


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


def _list(draw: random.Random) -> Iterator[str]:
    while True:
        yield f"- {_words(draw, 12)}\n"


class RecordedEngine:
    """The part of ``EngineApi`` that a chat needs. ``rate`` in tokens per second."""

    slots = 1
    vocab_size = 256
    pid = None
    context = CONTEXT

    def __init__(self, pieces: Sequence[str], rate: float) -> None:
        self.pieces, self.rate = pieces, rate
        self.given: list[str] = []
        self._cancelled = threading.Event()

    @property
    def model(self) -> Any:
        """There is no file; a chat asks for its template only."""
        return self

    chat_template = None
    path = "recorded"

    def encode_chat(self, messages: Sequence[chat.Message]) -> list[int]:
        """As many ids as words."""
        return [0] * (1 + sum(len(str(m["content"]).split()) for m in messages))

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
    """Has a ``RecordedEngine`` loaded."""

    def __init__(self, engine: RecordedEngine) -> None:
        super().__init__()
        self._recorded: Any = engine
        self.label, self.details = "recorded", f"{engine.rate:g} tok/s"

    def load(self, model: str, options: Any = None, settings: Any = None) -> Any:
        """There is nothing to load."""

    @property
    def state(self) -> HostState:
        return HostState.READY

    @property
    def engine(self) -> EngineApi | None:
        engine: EngineApi = self._recorded
        return engine
