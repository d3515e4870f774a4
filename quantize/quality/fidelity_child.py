"""Runs in a child process: model files on their own runtimes over a text."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from quantize.children.child import report_progress
from quantize.manifest import Fidelity
from quantize.quality.divergence import Floats, Scores, compare, mean, perplexity
from quantize.quality.store import FloatReference, Recorder
from quantize.quality.text import Windows, cut, read_text
from runtimes.engine.loading import load_runner
from runtimes.engine.tokenizer import load_tokenizer
from runtimes.models.modelfile import ModelFile
from runtimes.runner import Runner
from runtimes.settings import RunnerSettings

# With fewer tokens in a call ggml's attention on a CPU adds up in half precision, which shows in
# small divergences (GGML_FA_TILE_Q).
_AT_ONCE = 64


def compare_with(path: Path, reference: FloatReference) -> Fidelity:
    """Figures of the file or folder ``path`` against the distributions in ``reference``."""
    scores = _score(ModelFile.read(path), reference)
    kl, found = mean(scores.kl), perplexity(scores.nll)
    return Fidelity(
        perplexity=replace(reference.perplexity, value=found.value, error=found.error),
        kl_mean=kl.value,
        kl_error=kl.error,
        kl_p99=float(np.percentile(scores.kl, 99)),
        same_top=float(scores.same.mean()),
    )


def _score(model: ModelFile, known: FloatReference) -> Scores:
    """Window after window: no more than one window's logits of each model are held."""
    runner = _open_runner(model, known.windows)
    parts = []
    rows = _scored_logits(runner, known.windows)
    for (ids, logits), (_, base, tops) in zip(rows, known.blocks(), strict=True):
        targets = np.array(ids[known.windows.first + 1 :], np.int64)
        parts.append(compare(base, tops, logits, targets))
    runner.close()
    return Scores(
        np.concatenate([part.nll for part in parts]),
        np.concatenate([part.kl for part in parts]),
        np.concatenate([part.same for part in parts]),
    )


def from_gguf(path: Path, out: Path, text: Path | None, limit: int | None) -> None:
    """Run a GGUF file of half or single precision, which is its own float model, over the text;
    what it gives goes to the folder ``out``."""
    given = read_text(text, limit)
    model = ModelFile.read(path)
    tokenizer = load_tokenizer(path)
    ids = tokenizer.encode(given.content, add_special=True, parse_special=False)
    alone = tokenizer.encode("", add_special=True)  # BOS, if it begins every text
    bos = alone[0] if alone and ids and ids[0] == alone[0] else None
    windows = cut(ids, model.context_length, bos, limit)
    runner = _open_runner(model, windows)
    with Recorder(out, windows, given) as recorder:
        for window, logits in _scored_logits(runner, windows):
            recorder.add(window, logits)
        recorder.finish(model.quantization.lower())
    runner.close()


def _open_runner(model: ModelFile, windows: Windows) -> Runner:
    """The file on its runtime with one slot that holds a window. Raises as ``load_runner``."""
    settings = RunnerSettings(
        slots=1, context=windows.length, batch=windows.length, scored=_AT_ONCE
    )
    runner, _ = load_runner(model, settings)
    return runner


def _scored_logits(runner: Runner, windows: Windows) -> Iterator[tuple[tuple[int, ...], Floats]]:
    """Each window's ids and the float32 logits [scored, vocab] after its scored positions."""
    for done, ids in enumerate(windows.ids):
        report_progress(done, len(windows.ids), "windows")
        yield ids, runner.score(ids)[windows.first : -1]
    report_progress(len(windows.ids), len(windows.ids), "windows")
