"""What is kept of a row in the journal, and the flat record that is written for it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from app.batch.input.source import Row
from app.batch.input.tasks import RowProblem
from app.figures import timings_json, usage_json
from runtimes.request import Completion, FinishReason, Timings, Usage

# Kept for the output's OpenAI form; the flat one leaves it out.
_CREATED = "created"

TokenLogprobs = Sequence[Mapping[str, Any]]


def answer_of(
    completions: Sequence[Completion], logprobs: Sequence[TokenLogprobs] = ()
) -> dict[str, Any]:
    """The answer to a row from its completions, one a turn. Counts and times are their sums; the
    time to the first token is that of the first turn.

    ``logprobs`` has those of each sample of the last turn, as ``app.openai.logprobs`` makes them.
    """
    last = completions[-1]
    answer: dict[str, Any] = {"response": last.text}
    if len(completions) > 1:
        answer["responses"] = [completion.text for completion in completions]
    answer["finish_reason"] = str(last.finish_reason)
    if logprobs:
        answer["logprobs"] = list(logprobs[0])
    if last.others:
        answer["choices"] = [
            {"text": choice.text, "finish_reason": str(choice.finish_reason)}
            | ({"logprobs": list(logprobs[i])} if logprobs else {})
            for i, choice in enumerate(last.choices)
        ]
    usage = _usage(completions)
    answer["usage"] = {**usage_json(usage), "cached_tokens": usage.cached_tokens}
    answer["timings"] = timings_json(_timings([completion.timings for completion in completions]))
    answer[_CREATED] = round(time.time(), 3)
    return answer


def failure_of(
    problem: RowProblem, completions: Sequence[Completion] = (), partial: str = ""
) -> dict[str, Any]:
    """The error of a row, with the answers that its earlier turns got, and what there is of the
    answer that was not finished."""
    answer: dict[str, Any] = {"error": {"code": problem.code, "message": problem.message}}
    if completions:
        answer["responses"] = [completion.text for completion in completions]
    if partial:
        answer["partial"] = partial
    return answer


def lasting(answer: Mapping[str, Any]) -> dict[str, Any]:
    """``answer`` without its times and what happened to be cached, which are of the run."""
    kept = {name: value for name, value in answer.items() if name not in ("timings", _CREATED)}
    if "usage" in kept:
        kept["usage"] = {k: v for k, v in kept["usage"].items() if k != "cached_tokens"}
    return kept


def flat_record(row: Row, answer: Mapping[str, Any], *, fields: bool = True) -> dict[str, Any]:
    """The line of a flat output for ``row``: its id and index, the fields of the input, the answer.

    A field whose name the record needs for something else is called ``input_NAME``. An error's
    message names the place in the input.
    """
    own: dict[str, Any] = {name: value for name, value in answer.items() if name != _CREATED}
    if "error" in own:
        own["error"] = {"code": own["error"]["code"], "message": located(row, own["error"])}
    record: dict[str, Any] = {"id": row.id, "index": row.index}
    if fields:
        taken = record.keys() | own.keys() | _ANSWER_NAMES
        for name, value in row.task.source.items():
            if name in record and record[name] == value:
                continue  # the id that the record has already
            free = name
            while free in taken or free in record:
                free = f"input_{free}"
            record[free] = value
    record.update(own)
    return record


_ANSWER_NAMES = frozenset(
    {"response", "responses", "finish_reason", "logprobs", "choices", "usage", "timings"}
    | {"error", "partial"}
)


def located(row: Row, error: Mapping[str, Any]) -> str:
    """An error's message with the row's place in the input before it."""
    return f"{row.where or f'line {row.line}'}: {error['message']}"


def is_whole(completion: Completion) -> bool:
    """Whether the completion is an answer, and not the remains of one."""
    return completion.finish_reason not in (
        FinishReason.ERROR,
        FinishReason.CANCELLED,
        FinishReason.DEADLINE,
    )


def _usage(completions: Sequence[Completion]) -> Usage:
    """A prompt counts once, however many samples were taken of it."""
    return Usage(
        prompt_tokens=sum(one.usage.prompt_tokens for one in completions),
        completion_tokens=sum(
            choice.usage.completion_tokens for one in completions for choice in one.choices
        ),
        cached_tokens=sum(one.usage.cached_tokens for one in completions),
    )


def _timings(parts: Sequence[Timings]) -> Timings:
    if len(parts) == 1:
        return parts[0]
    return Timings(
        queue_s=sum(part.queue_s for part in parts),
        prefill_s=sum(part.prefill_s for part in parts),
        ttft_s=parts[0].ttft_s,
        decode_s=sum(part.decode_s for part in parts),
        total_s=sum(part.total_s for part in parts),
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        completion_tokens=sum(part.completion_tokens for part in parts),
        cached_tokens=sum(part.cached_tokens for part in parts),
    )
