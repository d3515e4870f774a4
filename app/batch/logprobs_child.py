"""The process behind app.batch.logprobs: lists of token ids in, lists of their bytes in hex out."""

from __future__ import annotations

import json
import os
import sys

from runtimes.tokenizer import load_tokenizer


def main() -> None:
    """Answer until the input ends."""
    # What native code prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    tokenizer = load_tokenizer(sys.argv[1])
    for line in sys.stdin:
        pieces = [tokenizer.token_bytes(token).hex() for token in json.loads(line)]
        answers.write(json.dumps(pieces) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
