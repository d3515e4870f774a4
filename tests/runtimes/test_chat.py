"""Chat templates: the sandbox, and equality with transformers on a real template."""

from __future__ import annotations

import pytest

from runtimes.chat import encode_chat, render_chat
from runtimes.errors import RequestError

CONVERSATION = [
    {"role": "user", "content": "My name is Ana."},
    {"role": "assistant", "content": "Nice to meet you, Ana."},
    {"role": "user", "content": "What is my name? \u00e9\U0001f600 <b>"},
]


def test_a_conversation_and_a_begun_answer_are_those_of_transformers(pebble, pebble_built):
    from transformers import AutoTokenizer

    from runtimes.onnx.tokenizer import OnnxTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(pebble), OnnxTokenizer(pebble_built / "onnx-int8")
    expected = theirs.apply_chat_template(
        CONVERSATION, add_generation_prompt=True, return_dict=False
    )
    assert encode_chat(ours, theirs.chat_template, CONVERSATION) == expected
    begun = CONVERSATION[:2]
    expected = theirs.apply_chat_template(begun, continue_final_message=True, return_dict=False)
    assert encode_chat(ours, theirs.chat_template, begun) == expected
    thinks = theirs.chat_template + "{{ '<think>\n' }}"
    assert encode_chat(ours, thinks, begun[:1])
    with pytest.raises(RequestError, match="think before"):
        encode_chat(ours, thinks, begun)


def test_without_a_template_the_message_says_what_to_do():
    with pytest.raises(RequestError, match="--raw"):
        render_chat(None, CONVERSATION)
