"""What is written for a row: its answer or its error, as JSON-ready dictionaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.batch.source import Row
from app.batch.tasks import RowProblem
from app.figures import timings_json, usage_json
from runtimes.request import Completion, FinishReason, Timings, Usage


def answer_of(completions: Sequence[Completion]) -> dict[str, Any]:
    """The answer to a row from its completions, one a turn. Counts and times are their sums; the
    time to the first token is that of the first turn."""
    answer: dict[str, Any] = {"response": completions[-1].text}
    if len(completions) > 1:
        answer["responses"] = [completion.text for completion in completions]
    answer["finish_reason"] = str(completions[-1].finish_reason)
    answer["usage"] = usage_json(_usage([completion.usage for completion in completions]))
    answer["timings"] = timings_json(_timings([completion.timings for completion in completions]))
    return answer


def failure_of(problem: RowProblem, completions: Sequence[Completion] = ()) -> dict[str, Any]:
    """The error of a row, with the answers that its earlier turns got."""
    answer: dict[str, Any] = {"error": {"code": problem.code, "message": problem.message}}
    if completions:
        answer["responses"] = [completion.text for completion in completions]
    return answer


def record_of(row: Row, answer: dict[str, Any]) -> dict[str, Any]:
    """The line of the output for ``row``. An error's message names the line of the input."""
    record: dict[str, Any] = {"id": row.id, "index": row.index, **answer}
    if "error" in answer:
        error = answer["error"]
        message = f"line {row.line}: {error['message']}"
        record["error"] = {"code": error["code"], "message": message}
    return record


def is_whole(completion: Completion) -> bool:
    """Whether the completion is an answer, and not the remains of one."""
    return completion.finish_reason not in (FinishReason.ERROR, FinishReason.CANCELLED)


def _usage(parts: Sequence[Usage]) -> Usage:
    return Usage(
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        completion_tokens=sum(part.completion_tokens for part in parts),
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
    )
