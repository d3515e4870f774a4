"""The process behind app.batch.logprobs: lists of token ids in, lists of their bytes in hex out."""

from __future__ import annotations

import sys

from runtimes.linechild import exchange
from runtimes.tokenizer import load_tokenizer


def main() -> None:
    """Answer until the input ends."""
    questions, answer = exchange()
    tokenizer = load_tokenizer(sys.argv[1])
    for tokens in questions:
        answer([tokenizer.token_bytes(token).hex() for token in tokens])


if __name__ == "__main__":
    main()
