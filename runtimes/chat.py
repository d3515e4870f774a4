"""Render a conversation with the model's own chat template, in a sandbox with bounds.

The environment offers what ``transformers`` offers to templates (its ``chat_template_utils``), so
that the rendered text is the same.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from runtimes.errors import RequestError

if TYPE_CHECKING:
    from jinja2 import Template

    from runtimes.runner import Tokenizer

Message = Mapping[str, Any]
Messages = Sequence[Message]
ToolSchemas = Sequence[Mapping[str, Any]]  # as OpenAI's API has them
Variables = Mapping[str, Any]  # of a template, by name

# What models think stands between such tags.
THINKING = ("think", "thinking", "reasoning")
# At the end of a prompt whose template begins the answer with a thought.
THOUGHT_BEGUN = re.compile(rf"(<(?:{'|'.join(THINKING)})>)\s*$", re.IGNORECASE)

_MOST_SOURCE = 2**17  # characters of a template; the longest known has 40,000
_MOST_SAID = 500  # characters of a reason
_MADE_FOR_EACH = 16  # characters that a template may make for each that it is given


@lru_cache(maxsize=8)
def _compile(template: str) -> Template | RequestError:
    """The template; the error for one that does not compile is kept, too."""
    import jinja2
    from jinja2.ext import loopcontrols

    from runtimes.templates.budget import Budget, within
    from runtimes.templates.sandbox import Sandbox

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def strftime_now(form: str) -> str:
        if len(form) > _MOST_SAID or re.search(r"%[^%a-zA-Z]*\d{3}", form):
            raise ValueError("the form of a date is too long")
        return datetime.datetime.now().strftime(form)

    if len(template) > _MOST_SOURCE:
        return RequestError(
            f"the chat template has {len(template):,} characters, and {_MOST_SOURCE:,} are the most"
            " that is taken"
        )
    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    try:
        with within(Budget()):
            return environment.from_string(template)
    except Exception as error:  # what Jinja2 refuses, and what Python does of the code made of it
        line = getattr(error, "lineno", None)
        in_template = isinstance(error, jinja2.TemplateError) and line is not None
        where = f" (line {line})" if in_template else ""
        return RequestError(f"the chat template does not compile{where}: {_reason(error)}")


@lru_cache(maxsize=8)
def template_names(template: str) -> frozenset[str]:
    """Names of the variables that a template reads from outside; none of one that does not
    compile."""
    from jinja2 import meta

    found = _compile(template)
    if isinstance(found, RequestError):
        return frozenset()
    return frozenset(meta.find_undeclared_variables(found.environment.parse(template)))


def _reason(error: Exception) -> str:
    import jinja2

    if isinstance(error, RecursionError):
        return "it is nested too deeply, or calls itself without an end"
    said = str(error)[:_MOST_SAID]
    known = isinstance(error, (jinja2.TemplateError, TypeError, ValueError))
    return said if known and said else f"{type(error).__name__}: {said}"


def render_chat(
    template: str | None,
    messages: Messages,
    *,
    bos_token: str = "",
    eos_token: str = "",
    tools: ToolSchemas | None = None,
    variables: Variables | None = None,
) -> str:
    """The prompt text for ``messages``, in which ``tools``, JSON objects, may be called.
    ``variables`` are further ones of the template, by name.

    Raises RequestError when the model has no template, or the template refuses the conversation
    (an unknown role, two user turns in a row where it forbids them), fails, takes longer than some
    seconds, or builds far more text than it is given.
    """
    if template is None:
        raise RequestError(
            "the model has no chat template; `ingot run` and `ingot batch` send text as it is with"
            " --raw, `ingot chat` does so by itself"
        )
    from runtimes.templates.budget import Budget, within

    found = _compile(template)
    if isinstance(found, RequestError):
        raise RequestError(str(found))  # another one: each has its own traceback
    try:
        with within(Budget(lambda: _MADE_FOR_EACH * (characters(messages) + characters(tools)))):
            return found.render(
                messages=list(messages),
                bos_token=bos_token,
                eos_token=eos_token,
                add_generation_prompt=True,
                tools=list(tools) if tools else None,
                documents=None,
                **(variables or {}),
            )
    except Exception as error:  # whatever an expression of the template runs into
        raise RequestError(
            f"the chat template refuses this conversation: {_reason(error)}"
        ) from error


def characters(said: object) -> int:
    """Count the characters of all texts in messages or other JSON values, without roles."""
    match said:
        case str():
            return len(said)
        case Mapping():
            return sum(characters(value) for key, value in said.items() if key != "role")
        case list() | tuple():
            return sum(map(characters, said))
    return 0


def encode_text(tokenizer: Tokenizer, text: str, suffix: str | None = None) -> list[int]:
    """Ids of a plain text; with ``suffix``, of a prompt to fill in what is between both. Neither
    then means special tokens by their names: it may be any file. Raises RequestError for a model
    that has no tokens for it."""
    if suffix is None:
        return tokenizer.encode(text, add_special=True, parse_special=True)
    if tokenizer.infill is None:
        raise RequestError(
            "suffix: the model has no tokens that mark what is to be filled in; models for code"
            " have them"
        )
    ids = tokenizer.encode("", add_special=True)
    for token, part in zip(tokenizer.infill, (text, suffix, ""), strict=True):
        ids += [token, *tokenizer.encode(part, parse_special=False)]
    return ids


def encode_chat(
    tokenizer: Tokenizer,
    template: str | None,
    messages: Messages,
    tools: ToolSchemas | None = None,
    variables: Variables | None = None,
) -> list[int]:
    """Ids of a rendered conversation; raises RequestError. ``tools`` and ``variables`` are those of
    ``render_chat``. The text of a last message of the assistant is what the answer begins with: it
    stands behind the template's prompt for an answer.

    No BOS is added beyond the template's own, as ``apply_chat_template`` of transformers does it.
    """
    text = _rendered(tokenizer, template, messages, tools, variables)
    return tokenizer.encode(text, add_special=False, parse_special=True)


def encode_continuation(
    tokenizer: Tokenizer,
    template: str | None,
    context: str | Messages,
    continuation: str,
    variables: Variables | None = None,
) -> tuple[list[int], int]:
    """Ids of a text, or of a conversation by the template, with what follows it, and where that
    begins: as lm-evaluation-harness does it. Both are encoded as one text; the first so many tokens
    are the context's as it has by itself, and white space at its end belongs to what follows. A
    thought that the template begins is ended before it.

    Raises RequestError, also where nothing would be left that follows.
    """
    plain = isinstance(context, str)
    if isinstance(context, str):
        text = context
    else:
        text = _rendered(tokenizer, template, context, variables=variables)
        if begun := THOUGHT_BEGUN.search(text):
            text = f"{text.rstrip()}\n\n</{begun[1][1:]}\n\n"
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
    messages: Messages,
    tools: ToolSchemas | None = None,
    variables: Variables | None = None,
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
        variables=variables,
    )
    if begun and THOUGHT_BEGUN.search(text):
        raise RequestError(
            "the last message is the assistant's, and the model's chat template has it think before"
            " it answers: such an answer cannot be begun"
        )
    return text + begun
