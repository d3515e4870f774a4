"""Chat templates that begin with thinking, or know no system message; with Pebble's weights."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.chat.conversation import Conversation
from app.chat.host import EngineHost
from app.options import ModelOptions
from tests.app.chat.conftest import answer

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n<think>\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def thinker(
    pebble_built: Path, tmp_path_factory: pytest.TempPathFactory, home: None
) -> Iterator[EngineHost]:
    folder = tmp_path_factory.mktemp("models") / "thinker"
    folder.mkdir()
    for file in (pebble_built / "onnx-int8").iterdir():
        if file.name != "chat_template.jinja":
            (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    found = EngineHost()
    found.load(str(folder), ModelOptions(context=256, threads=1))
    yield found
    found.close()


def test_thinking_that_the_template_opens_belongs_to_the_answer(
    thinker: EngineHost, conversation: Conversation
):
    message = answer(thinker, conversation, "What is 2 + 2?", max_tokens=6)
    assert message.text.startswith("<think>\n")
    assert message.figures.completion_tokens <= 6
    # It has not ended, so that nothing of it is in the next prompt.
    asked = conversation.say("And 3 + 3?")
    (only,) = conversation.prompt(asked.id)
    assert only == {"role": "user", "content": "What is 2 + 2?\n\nAnd 3 + 3?"}
