"""Runs in a child process: the float model reads a text, and its activations are summed up."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quantize.children.child import report_progress
from quantize.gguf.activations import Collector
from quantize.gguf.imatrixfile import ImportanceMatrix, write_matrix
from runtimes.errors import ModelError, OutOfMemoryError
from runtimes.llamacpp.batch import Batch
from runtimes.llamacpp.context import load_model
from runtimes.llamacpp.native import library, recent_errors
from runtimes.llamacpp.omp_wait import OmpWaitPolicy
from runtimes.llamacpp.tokenizer import LlamaTokenizer
from runtimes.machine.cpu import available_cores
from runtimes.models.modelfile import ModelFile
from runtimes.settings import RunnerSettings

CHUNK = 512  # tokens that see each other, as llama-imatrix has it
_STEP = 128  # tokens at once: bounds the logits, which must be computed for every token


def compute(model: Path, text: Path, out: Path, fewest: int) -> int:
    """Write the importance matrix of the GGUF file ``model`` over the file ``text`` to ``out``.

    Each chunk begins with BOS where the model's vocabulary says so. Returns the number of the
    text's tokens; with fewer than ``fewest`` nothing is computed.
    """
    file = ModelFile.read(model)
    # Weights in their plain layout, on the processor: nothing is gained from other kernels here.
    native = load_model(file, RunnerSettings(gpu_layers=0, extra_buffers=False))
    tokenizer = LlamaTokenizer(native)
    tokens = tokenizer.encode(text.read_text(encoding="utf-8", errors="replace"))
    if len(tokens) < fewest:
        return len(tokens)
    chunks = chunked(tokens, min(CHUNK, file.context_length), _bos(native))
    collector = Collector()
    context = _context(native, collector, len(chunks[0]))
    batch = Batch(_STEP)
    omp_wait = OmpWaitPolicy(available_cores())
    omp_wait.begin()
    done = 0
    for chunk in chunks:
        _forget(context)
        for start in range(0, len(chunk), _STEP):
            _run(context, batch, chunk[start : start + _STEP], start, collector)
        done += len(chunk)
        report_progress(done, sum(map(len, chunks)), "tokens")
    omp_wait.close()
    matrix = ImportanceMatrix(collector.entries(), text.name, len(chunks), len(chunks[0]))
    write_matrix(out, matrix)
    return len(tokens)


def chunked(tokens: Sequence[int], size: int, bos: int | None) -> list[list[int]]:
    """``tokens`` in pieces of ``size`` at most, each with ``bos`` in front."""
    front = [] if bos is None else [bos]
    step = size - len(front)
    return [[*front, *tokens[i : i + step]] for i in range(0, len(tokens), step)]


def _bos(model: Any) -> int | None:
    lib = library()
    vocab = lib.llama_model_get_vocab(model)
    return int(lib.llama_vocab_bos(vocab)) if lib.llama_vocab_get_add_bos(vocab) else None


def _context(model: Any, collector: Collector, length: int) -> Any:
    lib = library()
    params = lib.llama_context_default_params()
    params.n_ctx = length
    params.n_batch = params.n_ubatch = params.n_outputs_max = _STEP
    params.n_threads = params.n_threads_batch = available_cores()
    params.n_seq_max = 1
    params.no_perf = True
    params.op_offload = params.offload_kqv = False
    params.cb_eval = collector.callback
    context = lib.llama_init_from_model(model, params)
    if not context:
        raise OutOfMemoryError(f"no memory for a context of {length} tokens: {recent_errors()}")
    return context


def _forget(context: Any) -> None:
    lib = library()
    memory = lib.llama_get_memory(context)
    if memory:
        lib.llama_memory_clear(memory, True)


def _run(
    context: Any, batch: Batch, tokens: list[int], position: int, collector: Collector
) -> None:
    # Logits for each token: llama.cpp leaves the others out of the last layer.
    batch.fill_scored(tokens, position)
    code = library().llama_decode(context, batch.native)
    collector.raise_error()
    if code != 0:
        raise ModelError(f"llama.cpp failed in a step: {recent_errors() or f'code {code}'}")
