"""Rows in the form of OpenAI's batch output files.

Source of the format: the request output object of OpenAI's Batch API reference, and the chat
completion, completion and error objects of its API reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.batch.input.source import Row
from app.batch.output.records import located

# Errors that are no fault of the request; every other one is answered as a bad request.
_STATUS = {"engine_error": 500, "worker_crash": 500, "timeout": 504}
_KEY_DIGITS = 24


def openai_record(
    row: Row, answer: Mapping[str, Any], key: bytes, *, model: str, raw: bool = False
) -> dict[str, Any]:
    """The output line of ``row``. ``raw`` says that prompts go in without the chat template, which
    makes the answer to a plain row a text completion.

    An error has both forms that readers look for: ``error``, and a response whose status is not 200
    and whose body is an error object.
    """
    name = f"{key.hex()[:_KEY_DIGITS]}_{row.index}"
    error = None
    if "error" in answer:
        code, message = answer["error"]["code"], located(row, answer["error"])
        error = {"code": code, "message": message}
        status = _STATUS.get(code, 400)
        kind = "invalid_request_error" if status == 400 else "server_error"
        body: dict[str, Any] = {
            "error": {"message": message, "type": kind, "param": None, "code": code}
        }
    else:
        status = 200
        text = _is_text(row, raw)
        body = (_completion if text else _chat_completion)(answer, name)
        body["model"] = model
        body["usage"] = _usage(answer["usage"])
        if "timings" in answer:
            body["timings"] = answer["timings"]
    return {
        "id": f"batch_req_{name}",
        "custom_id": str(row.id),
        "response": {"status_code": status, "request_id": f"req_{name}", "body": body},
        "error": error,
    }


def index_of(line_id: str) -> int | None:
    """The row's index in the ``id`` of an output line; None for an id that is not ours."""
    head, _, index = line_id.rpartition("_")
    good = head.startswith("batch_req_") and index.isascii() and index.isdigit()
    return int(index) if good else None


def _is_text(row: Row, raw: bool) -> bool:
    if row.task.style == "flat":
        return raw
    return row.task.style == "openai-completions"


def _chat_completion(answer: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{name}",
        "object": "chat.completion",
        "created": int(answer.get("created", 0)),
        "choices": [
            {
                "index": index,
                "message": {"role": "assistant", "content": choice["text"], "refusal": None},
                "logprobs": _chat_logprobs(choice.get("logprobs")),
                "finish_reason": _reason(choice["finish_reason"]),
            }
            for index, choice in enumerate(_choices(answer))
        ],
    }


def _completion(answer: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {
        "id": f"cmpl-{name}",
        "object": "text_completion",
        "created": int(answer.get("created", 0)),
        "choices": [
            {
                "index": index,
                "text": choice["text"],
                "logprobs": _text_logprobs(choice.get("logprobs")),
                "finish_reason": _reason(choice["finish_reason"]),
            }
            for index, choice in enumerate(_choices(answer))
        ],
    }


def _choices(answer: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    choices: Sequence[Mapping[str, Any]] | None = answer.get("choices")
    return choices or [{**answer, "text": answer["response"]}]


def _usage(usage: Mapping[str, int]) -> dict[str, Any]:
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": {"cached_tokens": usage.get("cached_tokens", 0)},
    }


def _reason(reason: str) -> str:
    """A full context is a length to OpenAI's clients."""
    return "length" if reason == "context" else reason


def _chat_logprobs(tokens: Sequence[Mapping[str, Any]] | None) -> dict[str, Any] | None:
    return None if tokens is None else {"content": list(tokens), "refusal": None}


def _text_logprobs(tokens: Sequence[Mapping[str, Any]] | None) -> dict[str, Any] | None:
    if tokens is None:
        return None
    offsets, end = [], 0
    for token in tokens:
        offsets.append(end)
        end += len(token["token"])
    return {
        "tokens": [token["token"] for token in tokens],
        "token_logprobs": [token["logprob"] for token in tokens],
        "top_logprobs": [
            {top["token"]: top["logprob"] for top in token["top_logprobs"]} for token in tokens
        ],
        "text_offset": offsets,
    }
