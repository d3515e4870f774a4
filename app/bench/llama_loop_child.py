"""`llama_cpp.Llama` called for one prompt after another, timed in a process of its own.

``python -m app.bench.llama_loop_child FILE THREADS CONTEXT BATCH`` loads the model, answers
``"ready"``, and each line ``{"prompts": [[...], ...], "tokens": n}`` with ``{"seconds": s}``: how
long ``n`` greedy tokens behind each prompt took.
"""

import sys
import time

from runtimes.machine.linechild import exchange


def main() -> None:
    """Serve the requests on stdin."""
    questions, answer = exchange()
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
    answer("ready")
    for work in questions:
        begin = time.perf_counter()
        for prompt in work["prompts"]:
            # Below create_completion: an end-of-sequence token does not end it.
            for made, _ in enumerate(llama.generate(prompt, temp=0.0), start=1):
                if made == work["tokens"]:
                    break
        answer({"seconds": time.perf_counter() - begin})


if __name__ == "__main__":
    main()
