"""Events written by quantize's own reporter, and what becomes of them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.builds.run import (
    QuantizeRun,
    RunState,
    headline,
    recipe_in,
    recipe_notes,
    stage_line,
)
from quantize.cli import exit_code
from quantize.errors import QualityError, SourceError, UnfinishedError
from quantize.manifest import Fidelity, FileEntry, ModelOrigin, Perplexity
from quantize.progress import JsonReporter
from quantize.quality.fidelity import require_quality
from quantize.recipes import RECIPES

RECIPE_NAMES = ("q8_0", "q4_0", "onnx-int4", "onnx-int4-rtn")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def reported(report: Callable[[JsonReporter, Clock], None]) -> QuantizeRun:
    """A run that reports like this; whatever it reports is there at once."""
    stream, clock = io.StringIO(), Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quantize.progress.time", SimpleNamespace(monotonic=clock, time=clock))
        report(JsonReporter(stream), clock)
    run = QuantizeRun(RECIPE_NAMES)
    for line in stream.getvalue().splitlines():
        run.apply(json.loads(line))
    return run


def failed(events: JsonReporter, error: BaseException) -> None:
    events.failed(error, exit_code(error))


def published(events: JsonReporter, recipe: str) -> None:
    path = f"m-{recipe}.gguf"
    about = ("gguf", recipe, 8, path, 5_300_000, {path: "0"}, ModelOrigin("m", "h"), {})
    events.published(Path("/o"), FileEntry(*about))  # type: ignore[arg-type]


def test_a_stage_that_runs_has_progress_and_time_left() -> None:
    begun = []

    def report(events: JsonReporter, clock: Clock) -> None:
        begun.append(events.stage("quantizing to q8_0"))
        begun[0].__enter__()
        for done in (0, 20, 40):
            events.advance(done, 100, "tensors")
            clock.now += 2.0

    run = reported(report)
    (stage,) = run.stages
    assert stage_line(stage, 1006.0) == ("▶ quantizing to q8_0 · 40%, 10 tensors/s, 0:06 left")
    assert recipe_notes(run)[0] == ("q8_0", RunState.RUNNING, "quantizing to q8_0")
    assert "running 0:06, 0 of 4 files ready" in headline(run, 1006.0)
    run.ended(1)  # it dies without a word
    assert (run.state, stage.state) == (RunState.FAILED, RunState.FAILED)
    assert "ended with code 1" in run.error


def test_a_whole_run() -> None:
    def report(events: JsonReporter, clock: Clock) -> None:
        with events.stage("converting to GGUF, half precision"):
            clock.now += 4
            with events.stage("reading"):
                events.note("a note")
            events.note("a note")
            events.step("loading torch and the converter")
        with events.stage("quantizing to q4_0"):
            clock.now += 1.5
        published(events, "q4_0")
        events.note("m-q8_0.gguf is already built (--fresh builds it again)")
        events.done(Path("/o/manifest.json"))

    run = reported(report)
    assert [(stage.text, stage.depth, stage.recipe) for stage in run.stages] == [
        ("converting to GGUF, half precision", 0, None),
        ("reading", 1, None),
        ("quantizing to q4_0", 0, "q4_0"),
    ]
    assert {stage.state for stage in run.stages} == {RunState.DONE}
    lines = [stage_line(stage, 0.0) for stage in run.stages]
    assert lines[0].endswith("half precision · 4.0 s")  # its step is over
    assert lines[2] == "✓ quantizing to q4_0 · 1.5 s"
    assert len(run.notes) == 2  # each once
    assert (run.files, run.already) == ({"q4_0": Path("/o/m-q4_0.gguf")}, {"q8_0"})
    assert run.manifest == Path("/o/manifest.json")
    run.ended(0)
    assert (run.state, run.finished) == (RunState.DONE, 4)
    assert headline(run, 0.0) == "done (5.5 s, 4 of 4 files ready)"


def too_far(recipe: str) -> QualityError:
    """As quantize itself says it."""
    text = Perplexity(9.0, 0.1, 100, "text", "0")
    with pytest.raises(QualityError) as caught:
        require_quality(RECIPES[recipe], Fidelity(text, 5.0, 0.1, 9.0, 0.1))
    return caught.value


UNLIKE = "the GGUF export: 12 of 453 test lines give other tokens"
UNFINISHED = UnfinishedError("1 of 2 files could not be finished", 3)


@pytest.mark.parametrize(
    ("note", "error", "why", "kept"),
    [
        (str(too_far("q8_0")), too_far("onnx-int4"), "mean KL divergence 5", {"q8_0", "onnx-int4"}),
        (f"q8_0 is not built: {UNLIKE}", UNFINISHED, UNLIKE, {"q8_0"}),
    ],
)
def test_files_that_are_kept_back_say_why(
    note: str, error: QualityError | UnfinishedError, why: str, kept: set[str]
) -> None:
    def report(events: JsonReporter, _clock: Clock) -> None:
        published(events, "q4_0")
        events.note(note.splitlines()[0])
        failed(events, error)

    run = reported(report)
    run.ended(3)
    assert (run.state, set(run.kept_back)) == (RunState.PARTLY, kept)
    assert run.state_of("q4_0") is RunState.DONE
    name, state, said = recipe_notes(run)[0]
    assert (name, state, said.startswith(why)) == ("q8_0", RunState.KEPT_BACK, True)
    assert "not every file could be made or is good enough" in headline(run, 0.0)


def test_a_run_that_fails_keeps_its_error() -> None:
    def report(events: JsonReporter, _clock: Clock) -> None:
        error = SourceError("the weights are cut off")
        with pytest.raises(SourceError), events.stage("reading the model"):
            raise error
        failed(events, error)

    run = reported(report)
    run.ended(3, "something on stderr")
    assert (run.state, run.error) == (RunState.FAILED, "the weights are cut off")
    assert run.stages[0].state is RunState.FAILED
    assert run.state_of("q8_0") is RunState.STOPPED


def test_an_interrupted_run_is_stopped_not_failed() -> None:
    for error in (KeyboardInterrupt(), SystemExit(143)):
        run = reported(lambda events, _, error=error: failed(events, error))  # type: ignore[misc]
        run.ended(exit_code(error))
        assert (run.state, run.error) == (RunState.STOPPED, "")
    run = QuantizeRun(RECIPE_NAMES)
    run.ended(-9, stopped=True)
    assert run.state is RunState.STOPPED


def test_the_recipe_of_a_stage_is_the_one_it_names() -> None:
    for text, recipe in (
        ("building onnx-int4", "onnx-int4"),
        ("building onnx-int4-rtn", "onnx-int4-rtn"),
        ("comparing pebble-q8_0.gguf with its checksum", "q8_0"),
        ("checking q4_0: tokens, load, one question", "q4_0"),
        ("quantizing to iq4_0", None),
        ("reading the model", None),
    ):
        assert recipe_in(text, RECIPE_NAMES) == recipe
    assert recipe_in("building onnx-int4-rtn", ("onnx-int4",)) is None
