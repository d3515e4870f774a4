"""The process behind app.openai.logprobs: lists of token ids in, their bytes in hex out."""

from __future__ import annotations

import sys

from runtimes.engine.tokenizer import load_tokenizer
from runtimes.machine.linechild import exchange


def main() -> None:
    """Answer until the input ends."""
    questions, answer = exchange()
    tokenizer = load_tokenizer(sys.argv[1])
    for tokens in questions:
        answer([tokenizer.token_bytes(token).hex() for token in tokens])


if __name__ == "__main__":
    main()
