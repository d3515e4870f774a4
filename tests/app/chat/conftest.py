"""A loaded Pebble, and chats in a store of their own."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.chat.conversation import Conversation
from app.chat.host import EngineHost
from app.chat.store.records import Message
from app.chat.store.store import ChatStore
from app.chat.turn import AnswerProgress, Turn
from app.options import ModelOptions
from runtimes.request import SamplingParams
from tests.app import endless
from tests.support import own_home

LONG = "Tell me a story about a fox."
# For tests that do something while it is answered.
ENDLESS = SamplingParams(max_tokens=endless.CONTEXT - 1024, ignore_eos=True)


@pytest.fixture(scope="package")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No plan of this machine, and nothing remembered of workers that died."""
    with own_home(tmp_path_factory.mktemp("home")):
        yield


def loaded(model: Path, recipe: str, context: int) -> Iterator[EngineHost]:
    found = EngineHost()
    found.load(str(model), ModelOptions(recipe=recipe, context=context, threads=1))
    yield found
    found.close()


@pytest.fixture(scope="package")
def host(pebble_built: Path, home: None) -> Iterator[EngineHost]:
    yield from loaded(pebble_built, "q8_0", 512)


@pytest.fixture(params=["q8_0", "onnx-int8"])
def either(request: pytest.FixtureRequest, pebble_built: Path, home: None) -> Iterator[EngineHost]:
    """``host``, and Pebble on the other runtime: for what a runtime has a part in."""
    if request.param == "q8_0":
        yield request.getfixturevalue("host")
    else:
        yield from loaded(pebble_built, request.param, 512)


@pytest.fixture(scope="package")
def roomy(endless_built: Path, home: None) -> Iterator[EngineHost]:
    """``host`` with room for ``ENDLESS``."""
    yield from loaded(endless_built, "q8_0", endless.CONTEXT)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ChatStore]:
    with ChatStore.open(tmp_path / "chats.db") as opened:
        yield opened


@pytest.fixture
def conversation(store: ChatStore) -> Conversation:
    return Conversation.new(store)


def until(
    turn: Turn, enough: Callable[[AnswerProgress], bool] = lambda p: p.done, limit_s: float = 120.0
) -> AnswerProgress:
    """Poll until ``enough``; the last progress."""
    end = time.monotonic() + limit_s
    while True:
        progress = turn.poll()
        if enough(progress):
            return progress
        assert time.monotonic() < end, f"still {progress}"
        assert not progress.done, f"ended early: {progress}"
        time.sleep(0.005)


def answer(host: EngineHost, conversation: Conversation, text: str, **params: object) -> Message:
    """Say ``text``; the whole answer."""
    sampling = SamplingParams(**{"max_tokens": 64, **params})  # type: ignore[arg-type]
    return until(Turn.start(host, conversation, conversation.say(text), sampling)).message
