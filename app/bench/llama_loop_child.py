"""`llama_cpp.Llama` called for one prompt after another, timed in a process of its own.

``python -m app.bench.llama_loop_child FILE THREADS CONTEXT BATCH`` loads the model, says ``ready``,
and answers each line ``{"prompts": [[...], ...], "tokens": n}`` with ``{"seconds": s}``: how long
``n`` greedy tokens behind each prompt took.
"""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    """Serve the requests on stdin."""
    from llama_cpp import Llama

    path = sys.argv[1]
    threads, context, batch = (int(word) for word in sys.argv[2:5])
    llama = Llama(
        path,
        n_ctx=context,
        n_batch=batch,
        n_ubatch=batch,
        n_threads=threads,
        n_threads_batch=threads,
        verbose=False,
    )
    _say("ready")
    for line in sys.stdin:
        work = json.loads(line)
        begin = time.perf_counter()
        for prompt in work["prompts"]:
            # Below create_completion: an end-of-sequence token does not end it.
            for made, _ in enumerate(llama.generate(prompt, temp=0.0), start=1):
                if made == work["tokens"]:
                    break
        _say(json.dumps({"seconds": time.perf_counter() - begin}))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
