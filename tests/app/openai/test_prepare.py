"""The door to an engine: what every front end has from it alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.batch.dryrun import FileEncoder
from app.chat.load_settings import KNOWN
from app.openai.prepare import prepare
from app.openai.task import Task
from app.prompts import PromptStyle, PromptTooLongError
from runtimes.errors import RequestError
from runtimes.models.registry import read_model
from runtimes.request import SamplingParams
from runtimes.settings import RunnerSettings

PARAMS = SamplingParams(max_tokens=4)
SYSTEM = {"role": "system", "content": "Be brief."}
JOINED = [{"role": "user", "content": "Be brief.\n\nHi"}]


@pytest.fixture(scope="module")
def refusing(pebble_built: Path) -> FileEncoder:
    """Pebble with a template that refuses a system message."""
    model = replace(read_model(pebble_built / "pebble-q8_0.gguf"), chat_template=KNOWN["gemma"])
    return FileEncoder(model, RunnerSettings(context=64))


@pytest.mark.parametrize(
    ("task", "style"),
    [
        (Task(history=(SYSTEM,), turns=("Hi",)), PromptStyle()),
        (Task(turns=("Hi",)), PromptStyle(system="Be brief.")),
        (Task(turns=("Hi",), then="Hello"), PromptStyle(system="Be brief.")),
    ],
)
def test_a_refused_system_message_stands_before_the_first_one(refusing, task, style):
    found = prepare(task, refusing, PARAMS, style)
    assert found.form.messages == JOINED
    expected = prepare(replace(task, history=(), turns=(JOINED[0]["content"],)), refusing, PARAMS)
    assert (found.ids, found.scored_from) == (expected.ids, expected.scored_from)


def test_messages_that_follow_each_other_are_one_where_a_template_refuses_them(
    refusing,
):
    developer = {"role": "developer", "content": "Be kind."}
    place = {"role": "user", "content": "In w."}
    task = Task(history=(SYSTEM, developer, place), turns=("Hi",))
    found = prepare(task, refusing, PARAMS, bounded=False)
    text = "Be brief.\n\nBe kind.\n\nIn w.\n\nHi"
    assert found.form.messages == [{"role": "user", "content": text}]
    assert found.ids == prepare(Task(turns=(text,)), refusing, PARAMS, bounded=False).ids


def test_what_no_template_takes_is_told_in_its_words(refusing):
    task = Task(history=(SYSTEM, {"role": "assistant", "content": "Hm."}), turns=("Hi",))
    with pytest.raises(RequestError, match="no system message"):
        prepare(task, refusing, PARAMS)


def test_only_what_is_bounded_must_fit(refusing):
    task = Task(turns=("river " * 200,))
    with pytest.raises(PromptTooLongError):
        prepare(task, refusing, PARAMS)
    assert len(prepare(task, refusing, PARAMS, bounded=False).ids) > 64
    with pytest.raises(RequestError, match="takes a single prompt"):
        prepare(Task(history=(SYSTEM,), turns=("Hi",)), refusing, PARAMS, PromptStyle(raw=True))


@pytest.mark.parametrize("level", [None, "off", "high"])
def test_tokens_think_as_their_text_does(pebble_thinks: Path, level: str | None):
    encoder = FileEncoder(read_model(pebble_thinks), RunnerSettings(context=64))
    params = SamplingParams(max_tokens=4, thinking=level)
    text = Task(turns=("The sea",), raw=True, at="prompt")
    tokens = Task(ids=tuple(encoder.encode("The sea")), raw=True, at="prompt")
    by_text, by_ids = (prepare(task, encoder, params) for task in (text, tokens))
    assert by_text.ids == by_ids.ids
    assert by_text.thinking == by_ids.thinking is not None
    assert by_text.form.params == by_ids.form.params
