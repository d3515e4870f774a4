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
    """A run that reports like this, up to its last event so far."""
    stream, clock = io.StringIO(), Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quantize.progress.time", SimpleNamespace(monotonic=clock, time=clock))
        report(JsonReporter(stream), clock)
    run = QuantizeRun(RECIPE_NAMES)
    for line in stream.getvalue().splitlines():
        run.apply(json.loads(line))
    return run


def entry(recipe: str) -> FileEntry:
    path = f"m-{recipe}.gguf"
    return FileEntry("gguf", recipe, 8, path, 5_300_000, {path: "0"}, ModelOrigin("m", "h"), {})


def test_a_stage_that_runs_has_progress_and_time_left() -> None:
    def report(events: JsonReporter, clock: Clock) -> None:
        with events.stage("quantizing to q8_0"):
            for done in (0, 20, 40):
                events.advance(done, 100, "tensors")
                clock.now += 2.0
            stages.append(run_so_far(events))

    stages: list[QuantizeRun] = []

    def run_so_far(events: JsonReporter) -> QuantizeRun:
        run = QuantizeRun(RECIPE_NAMES)
        for line in events._stream.getvalue().splitlines():  # type: ignore[union-attr]
            run.apply(json.loads(line))
        return run

    reported(report)
    (stage,) = stages[0].stages
    assert (stage.done, stage.total, stage.unit) == (40, 100, "tensors")
    assert stage.rate == 10.0
    assert stage.seconds_left == 6.0
    assert stage_line(stage, 1006.0) == ("▶ quantizing to q8_0 · 40%, 10 tensors/s, 0:06 left")
    assert stages[0].state_of("q8_0") is RunState.RUNNING
    assert recipe_notes(stages[0])[0] == ("q8_0", RunState.RUNNING, "quantizing to q8_0")
    assert "running 0:06, 0 of 4 files ready" in headline(stages[0], 1006.0)


def test_a_whole_run() -> None:
    def report(events: JsonReporter, clock: Clock) -> None:
        with events.stage("converting to GGUF, half precision"):
            clock.now += 4
            with events.stage("reading"):
                events.note("a note")
            events.note("a note")
        with events.stage("quantizing to q4_0"):
            clock.now += 1.5
        events.published(Path("/o"), entry("q4_0"))
        events.note("m-q8_0.gguf is already built (--fresh builds it again)")
        events.done(Path("/o/manifest.json"))

    run = reported(report)
    assert [stage.text for stage in run.stages] == [
        "converting to GGUF, half precision",
        "reading",
        "quantizing to q4_0",
    ]
    assert [stage.depth for stage in run.stages] == [0, 1, 0]
    assert [stage.recipe for stage in run.stages] == [None, None, "q4_0"]
    assert {stage.state for stage in run.stages} == {RunState.DONE}
    assert stage_line(run.stages[2], 0.0) == "✓ quantizing to q4_0 · 1.5 s"
    assert run.notes[0] == "a note"
    assert len(run.notes) == 2  # each once
    assert run.files == {"q4_0": Path("/o/m-q4_0.gguf")}
    assert run.already == {"q8_0"}
    assert run.manifest == Path("/o/manifest.json")
    run.ended(0)
    assert run.state is RunState.DONE
    assert run.finished == 4
    assert headline(run, 0.0) == "done (5.5 s, 4 of 4 files ready)"


def too_far(recipe: str) -> QualityError:
    """As quantize itself says it."""
    text = Perplexity(9.0, 0.1, 100, "text", "0")
    with pytest.raises(QualityError) as caught:
        require_quality(RECIPES[recipe], Fidelity(text, 5.0, 0.1, 9.0, 0.1))
    return caught.value


def test_files_that_are_kept_back_say_why() -> None:
    def report(events: JsonReporter, _clock: Clock) -> None:
        error = QualityError("\n".join(str(too_far(name)) for name in ("q8_0", "onnx-int4")))
        events.published(Path("/o"), entry("q4_0"))
        events.note(str(too_far("q8_0")).splitlines()[0])
        events.failed(error, exit_code(error))

    run = reported(report)
    run.ended(3)
    assert run.state is RunState.PARTLY
    assert set(run.kept_back) == {"q8_0", "onnx-int4"}
    assert run.kept_back["q8_0"].startswith("mean KL divergence 5")
    assert run.state_of("q8_0") is RunState.KEPT_BACK
    assert run.state_of("q4_0") is RunState.DONE
    name, state, why = recipe_notes(run)[0]
    assert (name, state) == ("q8_0", RunState.KEPT_BACK)
    assert why.startswith("mean KL")
    assert "not every file could be made or is good enough" in headline(run, 0.0)


def test_a_format_that_failed_leaves_the_other_done() -> None:
    def report(events: JsonReporter, clock: Clock) -> None:
        with events.stage("converting to GGUF, half precision"):
            events.step("loading torch and the converter")
            clock.now += 4
        events.note("q8_0 is not built: the GGUF export: 12 of 453 test lines give other tokens")
        events.published(Path("/o"), entry("onnx-int8"))
        error = UnfinishedError("1 of 2 files could not be finished", 3)
        events.failed(error, exit_code(error))

    run = reported(report)
    assert run.exit_code == 3
    run.ended(3)
    assert run.state is RunState.PARTLY
    assert run.kept_back["q8_0"].startswith("the GGUF export: 12 of 453")
    assert run.stages[0].step == "loading torch and the converter"
    assert run.stages[0].step not in stage_line(run.stages[0], 0.0)  # it is over
    assert "onnx-int8" in run.files


def test_a_run_that_fails_keeps_its_error() -> None:
    def report(events: JsonReporter, _clock: Clock) -> None:
        error = SourceError("the weights are cut off")
        try:
            with events.stage("reading the model"):
                raise error
        except SourceError:
            events.failed(error, exit_code(error))

    run = reported(report)
    run.ended(3, "something on stderr")
    assert run.state is RunState.FAILED
    assert run.error == "the weights are cut off"
    assert run.stages[0].state is RunState.FAILED
    assert run.state_of("q8_0") is RunState.STOPPED


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143)])
def test_an_interrupted_run_is_stopped_not_failed(error: BaseException) -> None:
    run = reported(lambda events, _clock: events.failed(error, exit_code(error)))
    run.ended(exit_code(error))
    assert (run.state, run.error) == (RunState.STOPPED, "")


def test_a_run_that_dies_without_a_word_says_how() -> None:
    run = QuantizeRun(RECIPE_NAMES)
    run.apply({"event": "stage_begin", "time": 1.0, "stage": 1, "parent": None, "text": "x"})
    run.ended(-9)
    assert run.state is RunState.FAILED
    assert "killed (signal 9)" in run.error
    assert run.stages[0].state is RunState.FAILED
    stopped = QuantizeRun(RECIPE_NAMES)
    stopped.ended(-9, stopped=True)
    assert stopped.state is RunState.STOPPED


def test_events_that_may_come_one_day_are_passed_over() -> None:
    run = QuantizeRun(RECIPE_NAMES)
    run.apply({"event": "surprise", "time": 1.0})
    run.apply({"time": 2.0})
    assert run.state is RunState.RUNNING


@pytest.mark.parametrize(
    ("text", "recipe"),
    [
        ("building onnx-int4", "onnx-int4"),
        ("building onnx-int4-rtn", "onnx-int4-rtn"),
        ("comparing pebble-q8_0.gguf with its checksum", "q8_0"),
        ("checking q4_0: tokens, load, one question", "q4_0"),
        ("quantizing to iq4_0", None),
        ("reading the model", None),
    ],
)
def test_the_recipe_of_a_stage_is_the_one_it_names(text: str, recipe: str | None) -> None:
    assert recipe_in(text, RECIPE_NAMES) == recipe


def test_a_part_of_another_recipes_name_is_none() -> None:
    assert recipe_in("building onnx-int4-rtn", ("onnx-int4",)) is None
