"""Runs in a child process: a model file on its own runtime."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from quantize.arrays import Floats
from quantize.children import counted
from quantize.manifest import Fidelity, FileSpeeds, Quality
from quantize.quality.fidelity import (
    CacheLosses,
    FloatReference,
    compare,
    joined,
    record,
    summed_up,
)
from quantize.quality.peak import gpu_peak, peak_resident
from quantize.quality.text import WINDOW, GradedQuestion, Windows, cut, grade, read_text
from runtimes.engine.engine import Engine
from runtimes.engine.loading import load_runner
from runtimes.errors import ModelError
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import read_model, tokenizer_of
from runtimes.request import FinishReason, Request, SamplingParams
from runtimes.settings import KV_BITS, KvType, RunnerSettings

_QUESTION = "What is the capital of France?"
_CONTEXT = 1024
_ROWS = 16
_SAMPLE_S = 1.0
# With fewer tokens in a call ggml's attention on a CPU adds up in half precision, which shows in
# small divergences (GGML_FA_TILE_Q).
_AT_ONCE = 64
SMALLER = [kind for kind, bits in KV_BITS.items() if bits < 16]  # types of keys and values


def ask(path: Path) -> str:
    """Load ``path`` and ask one question; raises ModelError unless tokens come back."""
    with Engine.load(path, RunnerSettings(slots=1, context=256)) as engine:
        if engine.model.chat_template:
            prompt = engine.encode_chat([{"role": "user", "content": _QUESTION}])
        else:
            prompt = engine.encode(_QUESTION)
        done = engine.submit(Request(prompt, SamplingParams(max_tokens=12))).result()
        if done.finish_reason is FinishReason.ERROR or not done.token_ids:
            raise ModelError(f"no answer to a question: {done.error or done.finish_reason}")
        return done.text


def accuracy(path: Path, questions: Sequence[GradedQuestion]) -> Quality:
    """How many of the graded questions ``path`` answers rightly, decoding greedily."""
    context = min(read_model(path).context_length, _CONTEXT)
    with Engine.load(path, RunnerSettings(slots=_ROWS, context=context)) as engine:
        requests = (
            Request(engine.encode_chat(q.messages), SamplingParams(max_tokens=q.max_tokens))
            for q in questions
        )
        streams = [engine.submit(request) for request in requests]
        completions = [stream.result() for stream in streams]
    failed = [done for done in completions if done.finish_reason is FinishReason.ERROR]
    if failed:
        raise ModelError(f"{len(failed)} graded questions failed, the first: {failed[0].error}")
    return grade(questions, [done.text for done in completions])


def speed(path: Path) -> FileSpeeds:
    """Prefill and decode with 1 and 16 rows, load time and peak memory."""
    from runtimes.planner.measure import Workload, measure_depths

    with gpu_peak() as gpu:
        workload = Workload(rows=(1, _ROWS), sample_s=_SAMPLE_S)
        (figures,) = measure_depths(path, workload, repeats=3, batch_prefill=True).values()
    laps = {
        "prefill_tps": figures.prefill_samples,
        "decode_tps_1": figures.decode_samples[1],
        "decode_tps_16": figures.decode_samples[_ROWS],
    }
    return FileSpeeds(
        prefill_tps=float(figures.prefill_tps),
        prefill_tps_16=float(figures.batch_prefill[_ROWS]),
        decode_tps_1=float(figures.decode_tps[1]),
        decode_tps_16=float(figures.decode_tps[_ROWS]),
        load_s=figures.load_s,
        peak_bytes=peak_resident() + gpu.nbytes,
        ranges={name: (min(samples), max(samples)) for name, samples in laps.items()},
        others=figures.others,
    )


def fidelity(path: Path, reference: FloatReference, kv_type: KvType = "f16") -> Fidelity:
    """Figures of the file or folder ``path`` with this type of cache against the distributions in
    ``reference``. No more than one window's logits of each model are held."""
    windows = reference.windows
    rows = _scored_logits(read_model(path), windows, kv_type)
    parts = [
        compare(base, tops, logits, targets)
        for targets, logits, (base, tops) in zip(
            windows.targets, rows, reference.blocks(), strict=True
        )
    ]
    return summed_up(joined(parts), reference.perplexity)


def cache_losses(path: Path, reference: FloatReference) -> CacheLosses:
    """Divergences of the GGUF file ``path`` from its own ``reference``, with each smaller type of
    the keys alone, and of the values alone."""
    kinds = [pair for kind in SMALLER for pair in (f"{kind}:f16", f"f16:{kind}")]
    losses = {kind: fidelity(path, reference, kind).kl_mean for kind in kinds}
    return CacheLosses(reference.windows.length, losses)


def refer(path: Path, out: Path, text: Path | None, limit: int, window: int) -> None:
    """Run a GGUF file of half or single precision, which is its own float model, over the text in
    pieces of ``window`` tokens; what it gives goes to the folder ``out``."""
    given = read_text(text, limit)
    model = read_model(path)
    tokenizer = tokenizer_of(model)
    ids = tokenizer.encode(given.content, add_special=True, parse_special=False)
    alone = tokenizer.encode("", add_special=True)  # BOS, if it begins every text
    bos = alone[0] if alone and ids and ids[0] == alone[0] else None
    windows = cut(ids, model.context_length, bos, limit, window)
    record(out, windows, given, _scored_logits(model, windows))


def _scored_logits(model: ModelFile, windows: Windows, kv_type: KvType = "f16") -> Iterator[Floats]:
    """Each window's float32 logits [scored, vocab] after its scored positions, by the runtime with
    one slot that holds a window. Raises as ``load_runner``."""
    settings = RunnerSettings(
        slots=1,
        context=windows.length,
        batch=min(windows.length, WINDOW),
        scored=_AT_ONCE,
        kv_type=kv_type,
    )
    runner = load_runner(model, settings)
    for ids in counted(windows.ids, "windows"):
        yield runner.score(ids, windows.first)[:-1]
    runner.close()
