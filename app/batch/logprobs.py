"""Log-probabilities with the text of their tokens, as OpenAI's API writes them."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from runtimes.errors import ModelError
from runtimes.request import Completion, FinishReason

_log = logging.getLogger(__name__)


class TokenTexts:
    """The bytes of token ids, from a process that has loaded the model's tokenizer: this one loads
    no native library. The process starts with the first question."""

    def __init__(self, path: Path) -> None:
        """``path`` is the model file."""
        self._path = path
        self._known: dict[int, bytes] = {}
        self._child: subprocess.Popen[bytes] | None = None

    def learn(self, ids: Iterable[int]) -> None:
        """Look up the ids that are not known yet. Raises ModelError when that is not possible."""
        missing = sorted(set(ids) - self._known.keys())
        if not missing:
            return
        child = self._child = self._child or self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(json.dumps(missing).encode() + b"\n")
            child.stdin.flush()
            found = child.stdout.readline()
        except OSError:
            found = b""
        if not found:
            raise ModelError(f"the tokenizer of {self._path} gave no answer (see above)")
        for token, piece in zip(missing, json.loads(found), strict=True):
            self._known[token] = bytes.fromhex(piece)

    def __getitem__(self, token: int) -> bytes:
        return self._known[token]

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            assert self._child.stdin is not None
            self._child.stdin.close()
            self._child.wait()
            assert self._child.stdout is not None
            self._child.stdout.close()
            self._child = None

    def __enter__(self) -> TokenTexts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        _log.debug("starting a process for the texts of tokens")
        return subprocess.Popen(
            [sys.executable, "-m", "app.batch.logprobs_child", str(self._path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A terminal's Ctrl-C is for the job, which ends this process by closing its input.
            start_new_session=True,
        )


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
