"""LoRA adapters in a chat: which one answers, and what is remembered of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.chat.conversation import Conversation
from app.chat.host import EngineHost
from app.chat.store.records import Message
from app.chat.turn import Turn
from app.options import ModelOptions
from runtimes.errors import IngotError, RequestError
from runtimes.request import SamplingParams
from tests.adapters import write_adapter
from tests.support import until

SMALL = {"context": 256, "threads": 1}
PARAMS = SamplingParams(max_tokens=12)


@pytest.fixture
def given(pebble: Path, tmp_path: Path) -> list[str]:
    return [f"n{seed}={write_adapter(pebble, tmp_path / f'{seed}', seed)}" for seed in (0, 3)]


@pytest.fixture
def adapted(home: None, given: list[str]) -> Iterator[EngineHost]:
    host = EngineHost(adapters=given)
    yield host
    host.close()


def answer(host: EngineHost, conversation: Conversation, asked: Message) -> Message:
    turn = Turn.start(host, conversation, asked, PARAMS)
    return until(turn.poll, lambda progress: progress.done).message


def test_each_answer_says_what_gave_it_and_they_go_with_their_model(
    adapted: EngineHost, conversation: Conversation, pebble_built: Path, tmp_path: Path
):
    adapted.load(str(pebble_built), ModelOptions(recipe="q8_0", **SMALL))
    assert adapted.adapters == ("n0", "n3")
    assert (adapted.adapter, adapted.label) == ("n0", "pebble · q8_0 + n0")
    asked = conversation.say("Tell me a story about a fox.")
    first = answer(adapted, conversation, asked)
    adapted.use("n3")
    second = answer(adapted, conversation, asked)
    adapted.use(None)
    third = answer(adapted, conversation, asked)
    assert [one.model for one in (first, second, third)] == [
        "pebble · q8_0 + n0",
        "pebble · q8_0 + n3",
        "pebble · q8_0",
    ]
    assert len({first.text, second.text, third.text}) == 3
    assert conversation.store.message(second.id).model == "pebble · q8_0 + n3"
    adapted.use("n0")
    assert answer(adapted, conversation, asked).text == first.text
    with pytest.raises(RequestError, match="no adapter 'x'; there is: n0, n3"):
        adapted.use("x")
    assert adapted.adapter == "n0"
    adapted.use("n3")
    adapted.load(str(pebble_built), ModelOptions(recipe="onnx-int8", **SMALL))
    assert adapted.label == "pebble · onnx-int8 + n0"
    other = tmp_path / "other.gguf"
    other.symlink_to(next(pebble_built.glob("*q8_0.gguf")))
    adapted.load(str(other), ModelOptions(**SMALL))
    assert (adapted.adapter, adapted.adapters) == (None, ())
    with pytest.raises(RequestError, match="no adapter is loaded"):
        adapted.use("n0")


def test_one_that_does_not_fit_is_the_loads_error(home: None, pebble_built: Path, tmp_path: Path):
    host = EngineHost(adapters=[str(next(pebble_built.glob("*.gguf")))])
    with pytest.raises(IngotError, match="no LoRA adapter"):
        host.load(str(pebble_built), ModelOptions(recipe="q8_0", **SMALL))
    assert "no LoRA adapter" in str(host.error)
