"""The door to an engine: from a task to the tokens and parameters that one model is asked with.

Chat, run, batch, compare and the server pass it; ``result`` is the door back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from app.openai.task import Task, merged
from app.openai.tool_forms import ToolForm, form_messages, form_of, own_messages, tools_constraint
from app.openai.tool_parser import ToolParser
from app.openai.validation import Given, JsonObject
from app.prompts import PromptStyle, PromptTooLongError, require_short
from runtimes.api import Encoder
from runtimes.chat import Message
from runtimes.errors import RequestError
from runtimes.models.registry import gives_embeddings
from runtimes.request import Priority, Request, SamplingParams, Thinking, ThinkingPlace
from runtimes.thinking import choice_of, switched_off, thought_form

_PLAIN, _RAW = PromptStyle(), PromptStyle(raw=True)
# Nothing is generated; the likeliest token at each place tells what greedy decoding would take.
_SCORED = SamplingParams(max_tokens=0, prompt_logprobs=1)
_Tokens = TypeVar("_Tokens")


@dataclass(frozen=True, slots=True)
class PromptForm:
    """A conversation in the form in which one model is asked it."""

    messages: Sequence[Message]
    params: SamplingParams  # with what the tools allow
    tools: list[JsonObject] | None = None  # for the template
    calls: ToolForm | None = None  # how the answer calls tools; None: it calls none
    names: tuple[str, ...] = ()  # of the tools

    def parser(self) -> ToolParser | None:
        """A reader of one answer; None where it is a text."""
        return None if self.calls is None else ToolParser(self.calls, self.names)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Tokens and parameters of a request, and how its answer is read."""

    ids: list[int]
    form: PromptForm
    scored_from: int = 1
    embed: bool = False
    thinking: Thinking | None = None
    variables: Given = field(default_factory=dict)  # that the template was given

    def changed(self, params: SamplingParams) -> SamplingParams:
        """``params`` in the place of those that it was prepared with, bound to what the tools
        allow."""
        if self.form.calls is not None:
            params = replace(params, constraint=self.params.constraint)
        if params.think_tokens is not None:
            return params
        return replace(params, think_tokens=self.params.think_tokens)

    def request(
        self,
        *,
        priority: Priority = Priority.NORMAL,
        timeout_s: float | None = None,
        adapter: str | None = None,
        followed: bool = True,
    ) -> Request:
        """The request to the engine. Raises RequestError for an empty prompt."""
        return Request(
            self.ids,
            self.params,
            priority,
            timeout_s,
            adapter=adapter,
            scored_from=self.scored_from,
            embed=self.embed,
            thinking=self.thinking,
            followed=followed,
        )

    @property
    def params(self) -> SamplingParams:
        """How it is sampled."""
        return self.form.params


def prepare(
    task: Task,
    encoder: Encoder,
    params: SamplingParams,
    style: PromptStyle = _PLAIN,
    *,
    messages: Sequence[Message] | None = None,
    template: str | None = None,
    bounded: bool = True,
) -> Prepared:
    """``task`` as the model is asked it, sampled by ``params``.

    ``messages`` are those of a later turn, by default the task's own. ``template`` takes the place
    of the model's. Where it refuses the messages, those that follow each other are joined, and that
    of the system stands before the first one of the user. Blocks while tokens are made.

    Raises RequestError for what cannot be asked: raw text of more than one message, a template that
    refuses the conversation, no tokens, the beginning of an answer that could break its form;
    and, where ``bounded``, PromptTooLongError for what leaves no room in the context.
    """
    if task.raw:  # what was written for completions has its own form already
        style = _RAW
    if task.embed is not None:
        return _embedded(task, encoder)
    if task.then is not None:
        params = _SCORED
    known = template or encoder.model.chat_template
    if style.raw and task.at is None:
        known = None
    choice = choice_of(known, "off" if task.then is not None else params.thinking)
    variables = {**choice.variables, **(task.variables or {})}
    if choice.budget is not None and params.think_tokens is None:
        params = replace(params, think_tokens=choice.budget)
    if task.ids:
        ids = _fitting(list(task.ids), encoder)
        thinking = _thinking(known, (), variables, task.at) if task.at else None
        return Prepared(ids, PromptForm((), params), thinking=thinking)
    given = conversation(style, task.opening if messages is None else messages)
    said = form_prompt(task, given, template or encoder.model.chat_template, params)
    if bounded:
        require_short(encoder, [task.then or task.suffix or "", *said.messages])
    if style.raw and len(said.messages) != 1:
        raise RequestError("a conversation needs the chat template; --raw takes a single prompt")

    def encode(messages: Sequence[Message]) -> tuple[list[int], int]:
        """The tokens, and where those that are scored begin."""
        prompt = str(messages[0]["content"]) if style.raw else messages
        if task.then is not None:
            return encoder.encode_continuation(prompt, task.then, variables)
        if isinstance(prompt, str):
            return encoder.encode(prompt, task.suffix), 1
        return encoder.encode_chat(prompt, template, said.tools, variables), 1

    (ids, first), sent = _by_template(encode, said.messages)
    if bounded:
        if not ids:
            raise RequestError("the prompt has no tokens")
        _fitting(ids, encoder)
    thinking = _thinking(known, sent, variables, task.at) if task.then is None else None
    form = replace(said, messages=sent)
    return Prepared(ids, form, first, thinking=thinking, variables=variables)


def _thinking(
    template: str | None,
    sent: Sequence[Message],
    variables: Given,
    at: ThinkingPlace | None,
) -> Thinking | None:
    form = thought_form(template)
    if form is None:
        return None
    begun = bool(sent) and sent[-1]["role"] == "assistant"  # the answer goes on with its text
    at = at or ("answer" if begun else "prompt")
    return Thinking(form, at, expected=not switched_off(variables))


def conversation(style: PromptStyle, messages: Sequence[Message]) -> list[Message]:
    """``messages`` after the system message of ``style``, unless they bring their own."""
    if style.system is None or any(m["role"] in ("system", "developer") for m in messages):
        return list(messages)
    return [{"role": "system", "content": style.system}, *messages]


def form_prompt(
    task: Task, messages: Sequence[Message], template: str | None, params: SamplingParams
) -> PromptForm:
    """``messages``, which are those of the task or of a later turn of it, with the tools that it
    may call, and ``params`` with what these allow.

    Raises RequestError where the beginning of an answer is given that could break its form.
    """
    if task.raw:
        return PromptForm(list(messages), params)
    said = [_with_known_role(message, template) for message in messages]
    tools = task.tools
    formed = tools is not None or params.constraint is not None
    if formed and said[-1]["role"] == "assistant":
        raise RequestError(
            "the last message is the assistant's: an answer that is begun so can have neither tools"
            " nor a form that it keeps to"
        )
    if tools is None and not any("tool_calls" in m or m["role"] == "tool" for m in said):
        return PromptForm(said, params)
    form = form_of(template)
    said = form_messages(said, form) if form.told else own_messages(said, tools)
    if tools is None:
        return PromptForm(said, params)
    constraint = tools_constraint(tools, form, params.constraint)
    names = tuple(function["name"] for function in tools.functions)
    told = tools.json() if form.told else None
    return PromptForm(said, replace(params, constraint=constraint), told, form, names)


def _with_known_role(message: Message, template: str | None) -> Message:
    """OpenAI's new name for the system is known to few templates."""
    if message["role"] != "developer" or "developer" in (template or ""):
        return message
    known: Given = {**message, "role": "system"}
    return known


def _by_template(
    encode: Callable[[Sequence[Message]], _Tokens], messages: Sequence[Message]
) -> tuple[_Tokens, Sequence[Message]]:
    """``encode(messages)``, and the messages as they were sent: where the template refuses them,
    those of the system, or of the user, that follow each other are one; where it still does, that
    of the system stands before the first one of the user. Raises what the template said first."""
    try:
        return encode(messages), messages
    except RequestError:
        # Agents send several in a row, and some templates want question and answer by turns.
        joined = merged(messages, ("system", "user"))
        for other in (joined, _without_system(joined)):
            if other is None or other == messages:
                continue
            try:
                return encode(other), other
            except RequestError:
                pass
        raise


def _without_system(messages: Sequence[Message]) -> Sequence[Message] | None:
    """None, if there is no system message that could be joined with what follows."""
    first, *rest = messages
    if first["role"] != "system" or not rest or rest[0]["role"] != "user":
        return None
    joined = {"role": "user", "content": f"{first['content']}\n\n{rest[0]['content']}"}
    return [joined, *rest[1:]]


def _embedded(task: Task, encoder: Encoder) -> Prepared:
    model = encoder.model
    if not gives_embeddings(model):
        raise RequestError(
            f"{model.path.name} gives no embeddings: choose the GGUF file of a model that is no"
            " reranker"
        )
    require_short(encoder, task.turns)
    ids = list(task.ids) or encoder.encode(task.turns[0])
    return Prepared(_fitting(ids, encoder, room=0), PromptForm((), _SCORED), embed=True)


def _fitting(ids: list[int], encoder: Encoder, room: int = 1) -> list[int]:
    """``ids``. Raises PromptTooLongError where the context has no ``room`` beside them."""
    if len(ids) + room > encoder.context:
        raise PromptTooLongError(len(ids), encoder.context, encoder.model.context_length)
    return ids
