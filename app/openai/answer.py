"""Answer of a task: one form for the journal, for records and for OpenAI's bodies."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypedDict, cast

from app.figures import timings_json, usage_json
from app.openai.tool_parser import (
    ArgumentsDelta,
    CallBegin,
    ContentDelta,
    Delta,
    ToolParser,
)
from app.openai.validation import Given, JsonObject, Problem
from runtimes.request import Completion, FinishReason, Timings, Usage

TokenLogprobs = list[JsonObject]
ToolCalls = list[JsonObject]  # as OpenAI's messages have them
IN_REASONING = "within the reasoning"


class Choice(TypedDict, total=False):
    """One of several samples."""

    text: str
    finish_reason: str
    logprobs: TokenLogprobs
    tool_calls: ToolCalls
    reasoning: str
    finish_details: str


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, or the error in its place. Names and order of the fields are those on disk, where
    None is left out."""

    response: str | None = None  # the text; of a conversation the last answer
    error: Problem | None = None  # with it there is no response
    responses: Sequence[str] | None = None  # of each turn of a conversation
    label: str | None = None  # the likeliest, with the probabilities of all
    probabilities: Mapping[str, float] | None = None
    scores: Sequence[Given] | None = None  # of each continuation
    best: int | None = None  # the place of the likeliest in ``scores``
    best_norm: int | None = None  # the same, by the log-probability of a character
    embedding: Sequence[float] | None = None
    embeddings: Sequence[Sequence[float]] | None = None  # of several texts, the first included
    finish_reason: str | None = None
    logprobs: TokenLogprobs | None = None  # of each token of the response
    choices: Sequence[Choice] | None = None  # of several samples all, the response first
    usage: Mapping[str, int] | None = None
    timings: Mapping[str, float | None] | None = None
    tool_calls: ToolCalls | None = None  # beside the response, which may then be empty
    reasoning: str | None = None  # the thought before the response
    finish_details: str | None = None  # IN_REASONING where the answer ended within its thought
    partial: str | None = None  # beside an error: what there was of the response
    certainty: float | None = None  # of a job of two models: the probability of the whole answer,
    answered_by: str | None = None  # and the smaller one's name where it is its answer
    created: float | None = None  # Unix seconds; OpenAI's bodies have it, flat records do not

    def to_json(self) -> JsonObject:
        """Return the journal's form."""
        values = {name: getattr(self, name) for name in _NAMES}
        if self.error is not None:
            values["error"] = asdict(self.error)
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_json(cls, value: Given) -> Answer:
        """From any journal: what an older one lacks is None."""
        known = {name: value[name] for name in _NAMES if name in value}
        if "error" in known:
            known["error"] = Problem(known["error"]["code"], known["error"]["message"])
        return cls(**known)

    def lasting(self) -> Answer:
        """Without its times and what happened to be cached, which are of the run."""
        usage = self.usage
        if usage is not None:
            usage = {name: count for name, count in usage.items() if name != "cached_tokens"}
        return replace(self, usage=usage, timings=None, created=None)

    @property
    def only(self) -> Choice:
        """Return the answer as one of several samples."""
        choice = {"text": self.response or "", "finish_reason": self.finish_reason or ""}
        for name in _BESIDE:
            if (value := getattr(self, name)) is not None:
                choice[name] = value
        return cast(Choice, choice)

    @property
    def texts(self) -> Sequence[str]:
        """Texts of all samples, else of all turns; for scored texts, the likeliest alone."""
        if self.label is not None:
            return [self.label]
        if self.scores is not None and self.best is not None:
            return [self.scores[self.best]["text"]]
        if self.choices is not None:
            return [choice["text"] for choice in self.choices]
        return self.responses or ([] if self.response is None else [self.response])


_NAMES = tuple(field.name for field in fields(Answer))
_BESIDE = ("logprobs", "tool_calls", "reasoning", "finish_details")  # the text of a choice
_MOST_COUNT, _MOST_NUMBER = 2**31, 1e15
_FLOATS: set[type] = {int, float}


def is_answer(value: Given) -> bool:
    """Whether ``Answer.from_json`` can read an object of a journal that anybody may have written,
    and what it makes of it can be shown: every field that it knows is of its kind."""
    # Names without a check are of another version.
    if not all(check(value[name]) for name, check in _CHECKS.items() if name in value):
        return False
    scores = len(value.get("scores", ()))
    return all(value[name] < scores for name in ("best", "best_norm") if name in value)


def is_number(value: Any, most: float = _MOST_NUMBER) -> bool:
    """Whether ``value`` is a finite number from 0 to ``most``."""
    return type(value) in _FLOATS and 0 <= value <= most


def is_count(value: Any, most: int = _MOST_COUNT - 1) -> bool:
    """Whether ``value`` is a whole number from 0 to ``most``."""
    return type(value) is int and 0 <= value <= most


def is_text(value: Any) -> bool:
    """Whether ``value`` is a text."""
    return isinstance(value, str)


def list_of(kinds: set[type]) -> Callable[[Any], bool]:
    """Make a check for lists with values of these types only."""
    return lambda found: isinstance(found, list) and set(map(type, found)) <= kinds


def _all_of(kind: type, check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Make a check for lists, or objects, whose values pass another one."""

    def passes(found: Any) -> bool:
        values = found.values() if isinstance(found, dict) else found
        return isinstance(found, kind) and all(map(check, values))

    return passes


_is_vector = list_of(_FLOATS)


def _is_problem(value: Any) -> bool:
    said = (value.get("code"), value.get("message")) if isinstance(value, dict) else ()
    return len(said) == 2 and all(map(is_text, said))


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(
        ("response label finish_reason partial reasoning finish_details answered_by".split()),
        is_text,
    ),
    **dict.fromkeys(("scores", "logprobs", "choices", "tool_calls"), list_of({dict})),
    **dict.fromkeys(("best", "best_norm"), is_count),
    "error": _is_problem,
    "responses": list_of({str}),
    "probabilities": _all_of(dict, is_number),
    "embedding": _is_vector,
    "embeddings": _all_of(list, _is_vector),
    "usage": _all_of(dict, is_count),
    "timings": _all_of(dict, lambda one: one is None or is_number(one)),
    "created": lambda found: is_number(found, 1e11),  # the year 5138
    "certainty": lambda found: is_number(found, 1),
}
# What only the answers to some tasks have.
TASK_NAMES: Mapping[str, frozenset[str]] = {
    "score": frozenset({"scores", "best", "best_norm"}),
    "classify": frozenset({"label", "probabilities"}),
    "embed": frozenset({"embedding", "embeddings"}),
}
# What a flat record may have beside the fields of the input, whatever the task.
RECORD_NAMES = frozenset(_NAMES).difference({"created"}, *TASK_NAMES.values())


def answer_of(
    completions: Sequence[Completion], parser: Callable[[], ToolParser | None] = lambda: None
) -> Answer:
    """The answer from its completions, one a turn. Counts and times are their sums; the time to the
    first token is that of the first turn, log-probabilities are those of the last, and so are calls
    of tools, which a ``parser`` finds."""
    last = completions[-1]
    choices = [_choice(sample, parser()) for sample in last.choices]
    first = choices[0]
    beside: JsonObject = {name: first.get(name) for name in _BESIDE}
    return Answer(
        first["text"],
        responses=[one.text for one in completions] if len(completions) > 1 else None,
        finish_reason=first["finish_reason"],
        choices=choices if last.others else None,
        **beside,
        **figures_of(completions),
    )


def figures_of(completions: Sequence[Completion]) -> JsonObject:
    """Counts and times of an answer that took all of ``completions``, by their names there."""
    # A prompt counts once, however many samples were taken of it.
    asked = [one.usage for one in completions]
    answered = [choice.usage for one in completions for choice in one.choices]
    usage = Usage(
        prompt_tokens=sum(one.prompt_tokens for one in asked),
        completion_tokens=sum(one.completion_tokens for one in answered),
        cached_tokens=sum(one.cached_tokens for one in asked),
        thought_tokens=sum(one.thought_tokens for one in answered),
    )
    return {
        "usage": {**usage_json(usage), "cached_tokens": usage.cached_tokens},
        "timings": timings_json(_timings([one.timings for one in completions])),
        "created": round(time.time(), 3),
    }


def _choice(sample: Completion, parser: ToolParser | None) -> Choice:
    choice: Choice = {"text": sample.text, "finish_reason": str(sample.finish_reason)}
    if (logprobs := _token_logprobs(sample)) is not None:
        choice["logprobs"] = logprobs
    if sample.thought is not None:
        choice["reasoning"] = sample.thought
    if sample.thinks:
        choice["finish_details"] = IN_REASONING
    if parser is not None:
        text, calls = joined([*parser.feed(sample.text), *parser.end()])
        if calls:
            choice["text"], choice["tool_calls"] = text, calls
            if sample.finish_reason is FinishReason.STOP:
                choice["finish_reason"] = "tool_calls"
    return choice


def joined(deltas: Sequence[Delta]) -> tuple[str, ToolCalls]:
    """The text and the calls that they make together."""
    text, calls = "", list[JsonObject]()
    for delta in deltas:
        match delta:  # no thoughts: a parser is given the answer only
            case ContentDelta():
                text += delta.text
            case CallBegin():
                calls.append(begun_call(delta))
            case ArgumentsDelta():
                calls[delta.index]["function"]["arguments"] += delta.text
    return text, calls


def begun_call(begin: CallBegin) -> JsonObject:
    """A call without its arguments, as OpenAI's messages have it."""
    function = {"name": begin.name, "arguments": ""}
    return {"id": begin.id, "type": "function", "function": function}


def failure_of(
    problem: Problem, completions: Sequence[Completion] = (), partial: str = ""
) -> Answer:
    """An error, with the answers that earlier turns got, and what there is of the answer that was
    not finished."""
    earlier = [completion.text for completion in completions]
    return Answer(error=problem, responses=earlier or None, partial=partial or None)


def _timings(parts: Sequence[Timings]) -> Timings:
    names = [field.name for field in fields(Timings)]
    sums = {name: sum(getattr(part, name) for part in parts) for name in names}
    return Timings(**{**sums, "ttft_s": parts[0].ttft_s})


def _token_logprobs(choice: Completion) -> TokenLogprobs | None:
    """An entry for each token of the text; None where they were not asked for."""
    texts, logprobs = choice.token_bytes, choice.logprobs
    if texts is None or logprobs is None:
        return None
    count, first = len(logprobs), choice.usage.thought_tokens  # the thought has none
    # The token that ended the answer is no part of its text.
    if choice.finish_reason is FinishReason.STOP and count and not texts[choice.token_ids[-1]]:
        count -= 1
    tops = None if choice.top_logprobs is None else choice.top_logprobs[first:]
    return logprob_entries(choice.token_ids[first:count], logprobs[first:], tops, texts)


def logprob_entries(
    tokens: Sequence[int],
    logprobs: Sequence[float | None],
    tops: Sequence[dict[int, float] | None] | None,
    texts: Mapping[int, bytes],
) -> TokenLogprobs:
    """An entry for each token that has a log-probability; the first of a prompt has null."""
    rows = zip(tokens, logprobs, tops or [{} for _ in logprobs], strict=False)
    return [
        {
            **_entry(texts[token], logprob),
            "top_logprobs": [_entry(texts[other], value) for other, value in (top or {}).items()],
        }
        for token, logprob, top in rows
    ]


def _entry(piece: bytes, logprob: float | None) -> JsonObject:
    return {
        "token": piece.decode("utf-8", errors="replace"),
        "bytes": list(piece),
        # A token that a bias has banned has no finite value; JSON has no infinity.
        "logprob": None if logprob is None else round(max(logprob, -9999.0), 6),
    }
