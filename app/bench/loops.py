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
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from runtimes.machine.linechild import LineChild, exchange

Prompts = Sequence[list[int]]  # tokens of each
Loop = Callable[[Prompts, int], float]  # seconds by prompts and tokens of each


@dataclass(frozen=True, slots=True)
class NativeLoop:
    """A loop that runs in a child process."""

    child: LineChild

    def __call__(self, prompts: Prompts, tokens: int) -> float:
        """Seconds that it took there."""
        seconds: float = self.child.ask({"prompts": prompts, "tokens": tokens})["seconds"]
        return seconds

    @property
    def pid(self) -> int:
        """The child's process."""
        return self.child.pid


@contextmanager
def native_loop(library: str, path: Path, *numbers: int) -> Iterator[NativeLoop]:
    """The loop of a ``library``, a key of ``_LOOPS``, in a child process with a model that is
    loaded.

    Raises IngotError when the library is not installed or cannot load it.
    """
    words, quiet = (library, path, *numbers), {"ORT_DISABLE_TELEMETRY": "1"}
    with LineChild("app.bench.loops", *words, name=library, environment=quiet) as child:
        child.answer()
        yield NativeLoop(child)


def _genai(folder: str, threads: int, *, prefill: bool = True) -> Loop:
    """A batch of onnxruntime-genai's generator; with 0 threads as any program has it that does not
    say how many. Without ``prefill`` the first token of each prompt, which comes with that, is not
    timed either."""
    import onnxruntime_genai as og

    og.disable_telemetry_events()
    config = og.Config(folder)
    if threads:
        session = {"intra_op_num_threads": threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
    model = og.Model(config)

    def run(prompts: Prompts, tokens: int) -> float:
        begin = time.perf_counter()
        params = og.GeneratorParams(model)
        # As long at least as at most: the end-of-sequence token does not end it.
        length = len(prompts[0]) + tokens + (not prefill)
        params.set_search_options(
            do_sample=False, max_length=length, min_length=length, batch_size=len(prompts)
        )
        generator = og.Generator(model, params)
        generator.append_tokens(list(map(list, prompts)))
        if not prefill:
            generator.generate_next_token()
            begin = time.perf_counter()
        for _ in range(tokens):
            generator.generate_next_token()
        return time.perf_counter() - begin

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

    def run(prompts: Prompts, tokens: int) -> float:
        begin = time.perf_counter()
        for prompt in prompts:
            # Below create_completion: an end-of-sequence token does not end it.
            for made, _ in enumerate(llama.generate(prompt, temp=0.0), start=1):
                if made == tokens:
                    break
        return time.perf_counter() - begin

    return run


def _openvino(folder: str, threads: int) -> Loop:
    """A batch of OpenVINO GenAI's pipeline, of a GGUF file or a folder of optimum-intel's."""
    import numpy as np
    import openvino_genai as ov
    from openvino import Tensor

    pipeline = ov.LLMPipeline(folder, "CPU", INFERENCE_NUM_THREADS=threads)

    def run(prompts: Prompts, tokens: int) -> float:
        config = ov.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = tokens
        config.ignore_eos = True
        ids = np.asarray(prompts, np.int64)
        inputs = ov.TokenizedInputs(Tensor(ids), Tensor(np.ones_like(ids)))
        begin = time.perf_counter()
        pipeline.generate(inputs, config)
        return time.perf_counter() - begin

    return run


def _transformers(folder: str, threads: int) -> Loop:
    """A batch of transformers' `generate`, in the type that the model is stored in."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")

    def run(prompts: Prompts, tokens: int) -> float:
        ids = torch.tensor(prompts)
        begin = time.perf_counter()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return time.perf_counter() - begin

    return run


_LOOPS: dict[str, Callable[..., Loop]] = {
    "onnxruntime-genai": partial(_genai, prefill=False),
    "llama_cpp.Llama": _llama,
    "batched onnxruntime-genai": _genai,
    "openvino-genai": _openvino,
    "transformers": _transformers,
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
