"""Render a conversation with the model's own chat template, in a sandbox.

The environment offers what ``transformers`` offers to templates (its ``chat_template_utils``), so
that the rendered text is the same.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from runtimes.errors import RequestError

if TYPE_CHECKING:
    from runtimes.runner import Tokenizer

Message = Mapping[str, Any]

# What models think stands between such tags.
THINKING = ("think", "thinking", "reasoning")
# At the end of a prompt whose template begins the answer with a thought.
THOUGHT_BEGUN = re.compile(rf"(<(?:{'|'.join(THINKING)})>)\s*$", re.IGNORECASE)


@lru_cache(maxsize=8)
def _compile(template: str) -> Any:
    import jinja2
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return environment.from_string(template)
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None)
        where = "" if line is None else f" (line {line})"
        raise RequestError(f"the chat template does not compile{where}: {error}") from error


def render_chat(
    template: str | None,
    messages: Sequence[Message],
    *,
    bos_token: str = "",
    eos_token: str = "",
    add_generation_prompt: bool = True,
    tools: Sequence[Message] | None = None,
) -> str:
    """The prompt text for ``messages``, in which ``tools``, JSON objects, may be called.

    Raises RequestError when the model has no template, or the template refuses the conversation
    (an unknown role, two user turns in a row where it forbids them).
    """
    if template is None:
        raise RequestError(
            "the model has no chat template; `ingot run` and `ingot batch` send text as it is with"
            " --raw, `ingot chat` does so by itself"
        )
    import jinja2

    try:
        return str(
            _compile(template).render(
                messages=list(messages),
                bos_token=bos_token,
                eos_token=eos_token,
                add_generation_prompt=add_generation_prompt,
                tools=list(tools) if tools else None,
                documents=None,
            )
        )
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise RequestError(f"the chat template refuses this conversation: {error}") from error


def characters(said: object) -> int:
    """Of all the texts in messages, or in what else JSON can say; roles do not count."""
    match said:
        case str():
            return len(said)
        case Mapping():
            return sum(characters(value) for key, value in said.items() if key != "role")
        case list() | tuple():
            return sum(map(characters, said))
    return 0


def encode_chat(
    tokenizer: Tokenizer,
    template: str | None,
    messages: Sequence[Message],
    tools: Sequence[Message] | None = None,
) -> list[int]:
    """Ids of a rendered conversation; raises RequestError. ``tools``: see ``render_chat``. The text
    of a last message of the assistant is what the answer begins with: it stands behind the
    template's prompt for an answer.

    No BOS is added beyond the template's own, as ``apply_chat_template`` of transformers does it.
    """
    text = _rendered(tokenizer, template, messages, tools)
    return tokenizer.encode(text, add_special=False, parse_special=True)


def encode_continuation(
    tokenizer: Tokenizer,
    template: str | None,
    context: str | Sequence[Message],
    continuation: str,
) -> tuple[list[int], int]:
    """Ids of a text, or of a conversation by the template, with what follows it, and where that
    begins: as lm-evaluation-harness does it. Both are encoded as one text; the first so many tokens
    are the context's as it has by itself, and white space at its end belongs to what follows.

    Raises RequestError, also where nothing would be left that follows.
    """
    plain = isinstance(context, str)
    text = context if isinstance(context, str) else _rendered(tokenizer, template, context)
    before = text.rstrip()
    first = len(tokenizer.encode(before, add_special=plain, parse_special=True))
    ids = tokenizer.encode(text + continuation, add_special=plain, parse_special=True)
    if not 0 < first < len(ids):
        raise RequestError(
            f"{continuation[:40]!r} has no token of its own behind the prompt: begin it with a"
            " space"
        )
    return ids, first


def _rendered(
    tokenizer: Tokenizer,
    template: str | None,
    messages: Sequence[Message],
    tools: Sequence[Message] | None = None,
) -> str:
    begun = ""
    if messages and messages[-1].get("role") == "assistant":
        *messages, last = messages
        begun = str(last["content"])
    text = render_chat(
        template,
        messages,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        tools=tools,
    )
    if begun and THOUGHT_BEGUN.search(text):
        raise RequestError(
            "the last message is the assistant's, and the model's chat template has it think before"
            " it answers: such an answer cannot be begun"
        )
    return text + begun
