"""The tokenizer of any model file, without its weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from runtimes.chat import Message, render_chat
from runtimes.models.modelfile import ModelFile
from runtimes.runner import Tokenizer


class NamedTokenizer(Tokenizer, Protocol):
    """A tokenizer that also knows the texts that chat templates ask for."""

    @property
    def bos_token(self) -> str:
        """The text of the BOS token, or nothing."""

    @property
    def eos_token(self) -> str:
        """The text of the EOS token, or nothing."""


def load_tokenizer(path: str | Path) -> NamedTokenizer:
    """The tokenizer that the runner of ``path`` uses; raises ModelError."""
    model = ModelFile.read(path)
    return model.backend.tokenizer(model)


def encode_chat(
    tokenizer: NamedTokenizer, template: str | None, messages: Sequence[Message]
) -> list[int]:
    """Ids of a rendered conversation.

    No BOS is added beyond the template's own, as ``apply_chat_template`` of transformers does it.
    """
    text = render_chat(
        template, messages, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token
    )
    return tokenizer.encode(text, add_special=False, parse_special=True)
