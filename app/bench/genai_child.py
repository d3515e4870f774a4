"""onnxruntime-genai's own loop, timed in a process of its own.

``python -m app.bench.genai_child FOLDER THREADS`` loads the folder (with 0 THREADS as any program
that does not say how many), answers ``"ready"``, and each line
``{"prompt": [...], "tokens": n}`` on stdin with ``{"seconds": s}``: the time of ``n`` tokens after
the first, which comes with the prefill. It ends when stdin does.
"""

import json
import sys
import time
from typing import Any

from runtimes.machine.linechild import exchange


def main() -> None:
    """Serve the requests on stdin."""
    questions, answer = exchange()
    import onnxruntime_genai as og

    og.disable_telemetry_events()
    folder, threads = sys.argv[1], int(sys.argv[2])
    config = og.Config(folder)
    if threads:
        session = {"intra_op_num_threads": threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
    model = og.Model(config)
    answer("ready")
    for work in questions:
        answer({"seconds": _decode(og, model, work["prompt"], work["tokens"])})


def _decode(og: Any, model: Any, prompt: list[int], tokens: int) -> float:
    params = og.GeneratorParams(model)
    length = len(prompt) + tokens + 1
    # As long at least as at most: the end-of-sequence token does not end it.
    params.set_search_options(do_sample=False, max_length=length, min_length=length)
    generator = og.Generator(model, params)
    generator.append_tokens(prompt)
    generator.generate_next_token()
    begin = time.perf_counter()
    for _ in range(tokens):
        generator.generate_next_token()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
