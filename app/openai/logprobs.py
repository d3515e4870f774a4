"""Log-probabilities with the text of their tokens, as OpenAI's API writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from runtimes.errors import ModelError
from runtimes.machine.linechild import LineChild, LineChildError
from runtimes.request import Completion, FinishReason


class TokenTexts:
    """The bytes of token ids, from a process that has loaded the model's tokenizer: this one loads
    no native library. The process starts with the first question."""

    def __init__(self, path: Path) -> None:
        """``path`` is the model file."""
        self._path = path
        self._known: dict[int, bytes] = {}
        self._child: LineChild | None = None

    def learn(self, ids: Iterable[int]) -> None:
        """Look up the ids that are not known yet. Raises ModelError when that is not possible."""
        missing = sorted(set(ids) - self._known.keys())
        if not missing:
            return
        self._child = self._child or LineChild(
            "app.openai.logprobs_child", self._path, name=f"the tokenizer of {self._path}"
        )
        try:
            found = self._child.ask(missing)
        except LineChildError as error:
            raise ModelError(str(error)) from error
        for token, piece in zip(missing, found, strict=True):
            self._known[token] = bytes.fromhex(piece)

    def __getitem__(self, token: int) -> bytes:
        return self._known[token]

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def __enter__(self) -> TokenTexts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def token_logprobs(choices: Sequence[Completion], texts: TokenTexts) -> list[list[dict[str, Any]]]:
    """For each choice, an entry for each token of its text. Raises ModelError."""
    texts.learn(
        token
        for choice in choices
        for ids in (choice.token_ids, *(choice.top_logprobs or ()))
        for token in ids
    )
    return [_entries(choice, texts) for choice in choices]


def _entries(choice: Completion, texts: TokenTexts) -> list[dict[str, Any]]:
    logprobs = choice.logprobs or ()
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
