"""Log-probabilities with the text of their tokens, as OpenAI's API writes them."""

from collections.abc import Sequence
from typing import Any

from runtimes.request import Completion, FinishReason


def token_logprobs(choice: Completion) -> list[dict[str, Any]] | None:
    """An entry for each token of the text; None where they were not asked for."""
    texts, logprobs = choice.token_bytes, choice.logprobs
    if texts is None or logprobs is None:
        return None
    tops: Sequence[dict[int, float]] = choice.top_logprobs or [{} for _ in logprobs]
    count = len(logprobs)
    # The token that ended the answer is no part of its text.
    if choice.finish_reason is FinishReason.STOP and count and not texts[choice.token_ids[-1]]:
        count -= 1
    rows = zip(choice.token_ids[:count], logprobs, tops, strict=False)
    return [
        {
            **_entry(texts[token], logprob),
            "top_logprobs": [_entry(texts[other], value) for other, value in top.items()],
        }
        for token, logprob, top in rows
    ]


def _entry(piece: bytes, logprob: float) -> dict[str, Any]:
    return {
        "token": piece.decode("utf-8", errors="replace"),
        "bytes": list(piece),
        # A token that a bias has banned has no finite value; JSON has no infinity.
        "logprob": round(max(logprob, -9999.0), 6),
    }
