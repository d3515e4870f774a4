"""The body of a response from one of OpenAI's endpoints.

Source of the format: the chat completion, completion and error objects of OpenAI's API reference.
"""

from collections.abc import Sequence
from itertools import accumulate

from app.openai.answer import Answer, Choice, TokenLogprobs, begun_call
from app.openai.request import Generating
from app.openai.tool_parser import ArgumentsDelta, CallBegin, ContentDelta, Delta, ThoughtDelta
from app.openai.validation import JsonObject, Problem

IDS: dict[Generating, str] = {"chat": "chatcmpl", "completions": "cmpl"}
# Errors that are no fault of the request; every other one is answered as a bad request.
_STATUS = {"engine_error": 500, "worker_crash": 500, "timeout": 504}
_KINDS = {401: "authentication_error", 429: "rate_limit_error"}


def status_of(problem: Problem) -> int:
    """The HTTP status of a request that has no answer."""
    return _STATUS.get(problem.code, 400)


def error_body(status: int, problem: Problem) -> JsonObject:
    """The body of an answer with this ``status``."""
    other = "invalid_request_error" if status < 500 else "server_error"
    kind = _KINDS.get(status, other)
    said = {"message": problem.message, "type": kind, "param": None, "code": problem.code}
    return {"error": said}


def answer_body(answer: Answer, endpoint: Generating, name: str, model: str) -> JsonObject:
    """The body of an answer without an error; its id ends in ``name``."""
    chat = endpoint == "chat"
    counts = answer.usage or {}
    usage: JsonObject = {
        **{k: counts[k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")},
        "prompt_tokens_details": {"cached_tokens": counts.get("cached_tokens", 0)},
    }
    if (thought := counts.get("reasoning_tokens")) is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": thought}
    body: JsonObject = {
        "id": f"{IDS[endpoint]}-{name}",
        "object": "chat.completion" if chat else "text_completion",
        "created": int(answer.created or 0),
        "choices": [
            _choice(index, choice, chat=chat)
            for index, choice in enumerate(answer.choices or [answer.only])
        ],
        "model": model,
        "usage": usage,
    }
    if answer.timings is not None:
        body["timings"] = answer.timings
    return body


def _thought(text: str) -> dict[str, str]:
    """A thought by both names that clients read."""
    return {"reasoning_content": text, "reasoning": text}


def delta_body(delta: Delta) -> JsonObject:
    """A piece of an answer, as a chunk's ``delta``."""
    match delta:
        case ContentDelta():
            return {"content": delta.text}
        case ThoughtDelta():
            return _thought(delta.text)
        case CallBegin():
            call = begun_call(delta)
        case ArgumentsDelta():
            call = {"function": {"arguments": delta.text}}
    return {"tool_calls": [{"index": delta.index, **call}]}


def _choice(index: int, choice: Choice, *, chat: bool) -> JsonObject:
    tokens, text = choice.get("logprobs"), choice["text"]
    thought = _thought(choice["reasoning"]) if "reasoning" in choice else {}
    said: JsonObject
    if chat:
        message: JsonObject = {"role": "assistant", "content": text, "refusal": None}
        if calls := choice.get("tool_calls"):
            message |= {"content": text or None, "tool_calls": calls}
        logprobs = None if tokens is None else {"content": tokens, "refusal": None}
        said = {"message": message | thought, "logprobs": logprobs}
    else:
        said = {"text": text, "logprobs": _text_logprobs(text, tokens), **thought}
    # A full context is a length to OpenAI's clients.
    reason = choice["finish_reason"]
    ended: JsonObject = {"finish_reason": "length" if reason == "context" else reason}
    if "finish_details" in choice:
        ended["finish_details"] = choice["finish_details"]
    return {"index": index, **said, **ended}


def _text_logprobs(text: str, tokens: TokenLogprobs | None) -> JsonObject | None:
    if tokens is None:
        return None
    return {
        "tokens": [token["token"] for token in tokens],
        "token_logprobs": [token["logprob"] for token in tokens],
        "top_logprobs": [
            None if token["logprob"] is None else _by_text([*token["top_logprobs"], token])
            for token in tokens
        ],
        "text_offset": _offsets(text, [bytes(token["bytes"]) for token in tokens]),
    }


def _by_text(tokens: TokenLogprobs) -> dict[str, float]:
    """Map texts to log-probabilities. Of several tokens with one text, such as parts of characters,
    the first and likeliest counts.
    """
    found: dict[str, float] = {}
    for token in tokens:
        found.setdefault(token["token"], token["logprob"])
    return found


def _offsets(text: str, pieces: Sequence[bytes]) -> list[int]:
    """At which character of ``text`` each of its tokens begins. Control tokens have no piece, and
    the text may have theirs, or lack the space that a tokenizer puts before it."""
    data = text.encode("utf-8", errors="replace")
    starts, at = list(accumulate((byte & 0xC0 != 0x80 for byte in data), initial=0)), 0
    offsets = []
    for piece in pieces:
        end = at
        for one in (piece, piece[1:]) if at == 0 and piece.startswith(b" ") else (piece,):
            found = data.find(one, at) if one else -1
            if found >= 0:
                at, end = found, found + len(one)
                break
        inside = at < len(data) and data[at] & 0xC0 == 0x80  # the middle of a character
        offsets.append(starts[at] - inside)
        at = end
    return offsets
