"""Checks and measurements of one built file, each in a child process of its own."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from quantize.children.process import PATIENT, Progress, run_child
from quantize.errors import CheckError, ToolError
from quantize.manifest import Fidelity, Quality, Speed
from quantize.options import MeasureOptions
from quantize.quality import built_child, fidelity_child, float_child
from quantize.quality.store import FloatReference, load_reference
from quantize.quality.tasks import Question, grade
from quantize.quality.text import read_text, scored_tokens
from quantize.source import SourceModel
from runtimes.machine.gpus import find_gpus

REFERENCE = "float-reference"  # the folder of the float model's distributions, in the work folder
_ROWS = 16


def check_answers(path: Path, work: Path) -> None:
    """Load the file on its runtime and ask one question. Raises CheckError."""
    what = f"loading {path.name} and asking it a question"
    try:
        run_child(partial(built_child.ask, path), what=what, work=work)
    except ToolError as error:
        raise CheckError(f"{error}\nNothing was published for it") from error


def float_accuracy(
    source: SourceModel, questions: Sequence[Question], work: Path, progress: Progress | None = None
) -> Quality:
    """How many questions the original model answers."""
    answers = run_child(
        partial(float_child.answer, source, questions),
        what="asking the float model the graded questions",
        work=work,
        progress=progress,
        torch=True,
    )
    return grade(questions, answers)


def built_accuracy(path: Path, questions: Sequence[Question], work: Path) -> Quality:
    """How many questions a built file answers."""
    answers = run_child(
        partial(built_child.answer, path, questions, slots=_ROWS),
        what=f"asking {path.name} the graded questions",
        work=work,
        environment=_devices(),
    )
    return grade(questions, answers)


def float_reference(
    source: SourceModel, options: MeasureOptions, work: Path, progress: Progress | None = None
) -> FloatReference:
    """Run the original model over the text; its distributions go to the folder ``REFERENCE`` in
    ``work``, where `store.load_reference` finds them. `store.reference_bytes` says how large.

    A source that is a GGUF file is its own float model, on llama.cpp. Raises UsageError for a text
    that cannot be used, ToolError and OutOfMemoryError for a model that does not run.
    """
    scored_tokens(options.limit)
    read_text(options.text)  # what is wrong with it should not wait for a child
    out = work / REFERENCE
    what = "running the float model over the text to measure with"
    text, limit = options.text, options.limit
    if source.kind == "gguf":
        call = partial(fidelity_child.from_gguf, source.weights[0], out, text, limit)
        run_child(call, what=what, work=work, environment=PATIENT, progress=progress)
    else:
        original = partial(float_child.from_checkpoint, source, out, text, limit)
        run_child(original, what=what, work=work, progress=progress, torch=True)
    return load_reference(out)


def fidelity(
    path: Path, reference: FloatReference, work: Path, progress: Progress | None = None
) -> Fidelity:
    """A built file against the float model, on its own runtime and the same token ids.

    Raises ToolError and OutOfMemoryError.
    """
    return run_child(
        partial(fidelity_child.compare_with, path, reference),
        what=f"comparing {path.name} with the float model",
        work=work,
        environment=_devices(),
        progress=progress,
    )


def built_speed(path: Path, work: Path) -> Speed:
    """Speed, load time and peak memory of a built file."""
    return run_child(
        partial(built_child.speed, path),
        what=f"measuring the speed of {path.name}",
        work=work,
        environment=_devices(),
    )


def _devices() -> Mapping[str, str]:
    """The GPUs that this process may use: files are measured where they will run."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        allowed = ",".join(str(gpu.index) for gpu in find_gpus())
    return {"CUDA_VISIBLE_DEVICES": allowed}
