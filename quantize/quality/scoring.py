"""Logits of a model file at the scored positions of a text, by its own runtime."""

from __future__ import annotations

from collections.abc import Iterator

from quantize.build.child import report_progress
from quantize.quality.divergence import Floats
from quantize.quality.text import Windows
from runtimes.engine.loading import load_runner
from runtimes.engine.runner import Runner
from runtimes.models.modelfile import ModelFile
from runtimes.settings import RunnerSettings

# With fewer tokens in a call ggml's attention on a CPU adds up in half precision, which shows in
# small divergences (GGML_FA_TILE_Q).
_AT_ONCE = 64


def open_runner(model: ModelFile, windows: Windows) -> Runner:
    """The file on its runtime with one slot that holds a window. Raises as ``load_runner``."""
    settings = RunnerSettings(
        slots=1, context=windows.length, batch=windows.length, scored=_AT_ONCE
    )
    runner, _ = load_runner(model, settings)
    return runner


def scored_logits(runner: Runner, windows: Windows) -> Iterator[tuple[tuple[int, ...], Floats]]:
    """Each window's ids and the float32 logits [scored, vocab] after its scored positions."""
    for done, ids in enumerate(windows.ids):
        report_progress(done, len(windows.ids), "windows")
        yield ids, runner.score(ids)[windows.first : -1]
    report_progress(len(windows.ids), len(windows.ids), "windows")
