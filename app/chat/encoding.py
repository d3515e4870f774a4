"""Token ids of a conversation, and of an answer that is to go on."""

from collections.abc import Sequence

from app.chat.store.records import Message
from runtimes import chat
from runtimes.api import EngineApi
from runtimes.errors import RequestError


def encode(
    engine: EngineApi,
    messages: Sequence[chat.Message],
    *,
    plain: bool = False,
    template: str | None = None,
) -> tuple[list[int], Sequence[chat.Message]]:
    """Ids of a conversation by the model's template, or by ``template``, and the messages as they
    were sent: a system message that the template refuses stands before the first message of the
    user instead. With ``plain`` the ids are of one text, without the template. Blocks.

    Raises RequestError for no messages, or a template that refuses the conversation.
    """
    if not messages:
        raise RequestError("there is nothing to answer: every message is left out")
    if plain:
        return engine.encode(_text(messages)), messages
    try:
        ids = engine.encode_chat(messages, template)
    except RequestError as error:
        messages = _without_system(messages)
        try:
            ids = engine.encode_chat(messages, template) if messages else []
        except RequestError:
            raise error from None
        if not ids:
            raise
    if not ids:
        raise RequestError("the prompt has no tokens")
    return ids, messages


def answered_ids(engine: EngineApi, message: Message, label: str) -> tuple[list[int], bool]:
    """Ids of what an answer has so far, and whether they are those that were generated: else the
    loaded model (of this ``label``) has others, and the text is tokenized. Blocks."""
    ids = list(message.token_ids)
    known = _model(message.model) == _model(label) and max(ids, default=0) < engine.vocab_size
    if ids and known:
        return ids, True
    begin = engine.encode("")  # the BOS token, where the model wants one
    ids = engine.encode(message.text)
    return ids[len(begin) :] if ids[: len(begin)] == begin else ids, False


def _text(messages: Sequence[chat.Message]) -> str:
    """What was said as one text: an answer continues where its question ends."""
    text = ""
    for message in messages:
        apart = "\n\n" if text and message["role"] != "assistant" else ""
        text += f"{apart}{message['content']}"
    return text


def _without_system(messages: Sequence[chat.Message]) -> Sequence[chat.Message]:
    """None, if there is no system message that could be joined with what follows."""
    first, *rest = messages
    if first["role"] != "system" or not rest or rest[0]["role"] != "user":
        return []
    joined = {"role": "user", "content": f"{first['content']}\n\n{rest[0]['content']}"}
    return [joined, *rest[1:]]


def _model(label: str | None) -> str | None:
    """Of a label such as "pebble · q8_0"; token ids of its builds mean the same."""
    return label and label.partition(" · ")[0]
