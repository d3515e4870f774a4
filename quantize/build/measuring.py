"""Checking and measuring each file; what was found is kept like the files themselves."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from quantize.build.run import Run
from quantize.fromjson import from_json
from quantize.manifest import (
    Fidelity,
    FileEntry,
    Quality,
    Speed,
    TokenParity,
)
from quantize.quality import children
from quantize.quality.gates import require_quality
from quantize.quality.store import FloatReference, load_reference
from quantize.quality.tasks import Question
from quantize.quality.text import read_text, scored_tokens
from quantize.quality.tokens import compare_built, require_parity
from quantize.recipes.recipe import FORMATS, Recipe
from quantize.stages.keys import versions
from quantize.stages.stages import VERSIONS, stage_key
from runtimes.machine.cpu import available_cores, cpu_identity
from runtimes.machine.gpus import find_gpus

_Measured = TypeVar("_Measured", Quality, Fidelity, Speed)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a file's entry says about it; ``measurement`` is empty if nothing was measured."""

    quality: Quality | None = None
    fidelity: Fidelity | None = None
    speed: Speed | None = None
    measurement: str = ""

    def entered(self, entry: FileEntry) -> FileEntry:
        """``entry`` with these figures."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return dataclasses.replace(entry, **values)


@dataclass(slots=True)
class Measuring:
    """How the files of one run are measured."""

    text: Mapping[str, Any]
    # Everything besides a file that decides its figures: float model, text, questions, programs,
    # machine.
    key: str
    questions: Sequence[Question] = ()
    # Once a file is measured: what the float model made of the text, and what could be asked.
    reference: FloatReference | None = None
    asked: Sequence[Question] = ()


def plan_measuring(run: Run, questions: Sequence[Question]) -> Measuring | None:
    """What will be measured; None with --no-measure. Raises UsageError for a text that cannot be
    read."""
    options = run.options.measure
    if not options.enabled:
        return None
    text = {"text": read_text(options.text).sha256, "limit": scored_tokens(options.limit)}
    if questions and run.base.kind == "gguf":
        run.progress.note("the graded questions are left out: the source has no float model to ask")
        questions = ()
    inputs = {
        "source": run.fingerprint.hash,
        "text": text,
        "questions": _described(questions),
        "tools": versions(FORMATS),
        "machine": [cpu_identity(), available_cores(), [gpu.name for gpu in find_gpus()]],
        "stages": [VERSIONS[name] for name in ("reference", "fidelity", "speed", "tasks")],
    }
    return Measuring(text, stage_key("measure", inputs), questions)


def _know_original(run: Run, plan: Measuring) -> FloatReference:
    """Run the float model over the text and the questions, when this is first needed: what no
    runtime can use should fail before."""
    if plan.reference is not None:
        return plan.reference
    source, options, questions = run.source, run.options.measure, plan.questions
    inputs = {"source": run.inputs, "text": plan.text, "tools": versions(["gguf"])}

    def refer(folder: Path) -> None:
        children.float_reference(source, options, folder, run.progress)

    stage = run.stage(
        "reference",
        stage_key("reference", inputs),
        "running the float model over the text",
        refer,
    )
    reference = load_reference(stage.folder / children.REFERENCE)
    quality = None
    if questions and not run.reference.chats:
        run.progress.note("the graded questions are left out: the tokenizer has no chat template")
        questions = ()
    if questions:
        quality = _kept(
            *(run, "float-tasks", {**inputs, "questions": _described(questions)}),
            *(f"asking the float model {len(questions)} graded questions", Quality),
            lambda: children.float_accuracy(source, questions, run.space.work, run.progress),
        )
    run.publisher.describe(quality, reference.perplexity, plan.key)
    plan.reference, plan.asked = reference, questions
    return reference


def check(
    run: Run, recipe: Recipe, path: Path, sha256: Mapping[str, str]
) -> tuple[TokenParity | None, list[str]]:
    """Tokens, loading, one question. Raises TokenMismatchError or CheckError. Without an original
    tokenizer there is no figure for the first."""
    allowed, work = run.options.allow_token_mismatch, run.space.work

    def make(_folder: Path) -> dict[str, Any]:
        children.check_answers(path, work)
        if run.base.kind == "gguf":
            return {"parity": None, "notes": []}
        comparison = compare_built(path, run.reference, recipe.format, work)
        if not allowed:
            require_parity(comparison, path.name)
        notes = [comparison.note] if comparison.note else []
        run.show(notes)
        return {"parity": dataclasses.asdict(comparison.parity), "notes": notes}

    inputs = {**_file(recipe, sha256), "source": run.inputs, "allowed": allowed}
    text = f"checking {recipe.name}: tokens, load, one question"
    found = run.stage("check", stage_key("check", inputs), text, make).value
    return TokenParity(**found["parity"]) if found["parity"] else None, found["notes"]


def measure(
    run: Run,
    plan: Measuring,
    recipe: Recipe,
    path: Path,
    sha256: Mapping[str, str],
    *,
    gates: bool,
) -> Figures:
    """All figures of one file. With ``gates`` raises QualityError, before what takes longest, when
    it is further from the float model than its recipe allows."""
    name, work, inputs = recipe.name, run.space.work, _file(recipe, sha256)
    reference = _know_original(run, plan)
    fidelity = _kept(
        *(run, "fidelity", {**inputs, "source": run.inputs, "text": plan.text}),
        *(f"comparing {name} with the float model", Fidelity),
        lambda: children.fidelity(path, reference, work, run.progress),
    )
    if gates:
        require_quality(recipe, fidelity)
    if run.options.measure.again:
        run.stages.drop("speed", stage_key("speed", inputs))
    speed = _kept(
        *(run, "speed", inputs, f"measuring the speed of {name}", Speed),
        lambda: children.built_speed(path, work),
    )
    quality = None
    if plan.asked:
        quality = _kept(
            *(run, "tasks", {**inputs, "questions": _described(plan.asked)}),
            *(f"asking {name} {len(plan.asked)} graded questions", Quality),
            lambda: children.built_accuracy(path, plan.asked, work),
        )
    return Figures(quality, fidelity, speed, plan.key)


def _kept(
    run: Run,
    stage: str,
    inputs: Mapping[str, Any],
    text: str,
    kind: type[_Measured],
    measure: Callable[[], _Measured],
) -> _Measured:
    """What ``measure`` finds, or has found in an earlier run with the same inputs."""
    made = run.stage(stage, stage_key(stage, inputs), text, lambda _: dataclasses.asdict(measure()))
    return from_json(kind, made.value)


def _file(recipe: Recipe, sha256: Mapping[str, str]) -> dict[str, Any]:
    return {"file": dict(sha256), "with": versions([recipe.format])}


def _described(questions: Sequence[Question]) -> list[Any]:
    return [dataclasses.asdict(question) for question in questions]
