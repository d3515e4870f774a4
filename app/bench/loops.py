"""Another library's own loop, timed in a process of its own.

``python -m app.bench.loops LIBRARY MODEL NUMBER...`` loads the model, answers ``"ready"``, and each
line ``{"prompts": [[...], ...], "tokens": n}`` on stdin with ``{"seconds": s}``: how long ``n``
greedy tokens behind each prompt took. It ends when stdin does.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from runtimes.machine.linechild import LineChild, exchange

Loop = Callable[[Sequence[Sequence[int]], int], float]  # seconds by prompts and tokens of each


@contextmanager
def native_loop(library: str, path: Path, *numbers: int) -> Iterator[Loop]:
    """The loop of a ``library`` in a child process with a model that is loaded.

    Raises IngotError when the library is not installed or cannot load it.
    """
    words, quiet = (library, path, *numbers), {"ORT_DISABLE_TELEMETRY": "1"}
    with LineChild("app.bench.loops", *words, name=library, environment=quiet) as child:
        child.answer()
        yield lambda prompts, tokens: child.ask({"prompts": prompts, "tokens": tokens})["seconds"]


def _genai(folder: str, threads: int) -> Loop:
    """The loop of onnxruntime-genai; with 0 threads as any program that does not say how many.
    Without the first token of a prompt, which comes with the prefill."""
    import onnxruntime_genai as og

    og.disable_telemetry_events()
    config = og.Config(folder)
    if threads:
        session = {"intra_op_num_threads": threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
    model = og.Model(config)

    def run(prompts: Sequence[Sequence[int]], tokens: int) -> float:
        seconds = 0.0
        for prompt in prompts:
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
            seconds += time.perf_counter() - begin
        return seconds

    return run


def _llama(path: str, threads: int, context: int, batch: int) -> Loop:
    """The loop of llama-cpp-python."""
    from llama_cpp import Llama

    llama = Llama(
        path,
        n_ctx=context,
        n_batch=batch,
        n_ubatch=batch,
        n_threads=threads,
        n_threads_batch=threads,
        verbose=False,
    )

    def run(prompts: Sequence[Sequence[int]], tokens: int) -> float:
        begin = time.perf_counter()
        for prompt in prompts:
            # Below create_completion: an end-of-sequence token does not end it.
            for made, _ in enumerate(llama.generate(prompt, temp=0.0), start=1):
                if made == tokens:
                    break
        return time.perf_counter() - begin

    return run


_LOOPS: dict[str, Callable[..., Loop]] = {
    "onnxruntime-genai": _genai,
    "llama_cpp.Llama": _llama,
}


def main() -> None:
    """Serve the requests on stdin."""
    _, library, model, *numbers = sys.argv
    questions, answer = exchange()
    run = _LOOPS[library](model, *map(int, numbers))
    answer("ready")
    for work in questions:
        answer({"seconds": run(work["prompts"], work["tokens"])})


if __name__ == "__main__":
    main()
