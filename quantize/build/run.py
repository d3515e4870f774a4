"""A run: what every step needs, and how each file is made (source to half-precision export to its
type, or source to ONNX).
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from quantize.allocate.measure import calibration_text
from quantize.allocate.moments import write_moments
from quantize.allocate.solve import Types
from quantize.build.workspace import Workspace
from quantize.children import run_child
from quantize.fromjson import from_json
from quantize.gguf.codes import COMPENSATED, compensate_file
from quantize.gguf.converter import export_f16
from quantize.gguf.imatrix import prepare_imatrix
from quantize.gguf.imatrixfile import columns_of, read_matrix
from quantize.gguf.quantize import quantize_gguf
from quantize.lora import merged_source
from quantize.manifest import Allocation, FileEntry, ModelOrigin, digest
from quantize.onnx.builder import build_onnx
from quantize.options import Options
from quantize.progress import Reporter
from quantize.quality.fidelity import FloatReference
from quantize.quality.text import GradedQuestion
from quantize.quality.tokens import Reference, compare_built, read_reference, require_parity
from quantize.recipes import Mix, Recipe
from quantize.source import SourceModel
from quantize.stages import (
    JsonObject,
    Stage,
    Stages,
    are_texts,
    calibration,
    export_key,
    imatrix_key,
    stage_key,
)


@dataclass
class Measuring:
    """How the files of one run are measured."""

    text: Mapping[str, Any]
    # Everything besides a file that decides its figures: float model, text, questions, programs,
    # machine.
    key: str
    questions: Sequence[GradedQuestion] = ()
    # Once a file is measured: what the float model made of the text, and what could be asked.
    reference: FloatReference | None = None
    asked: Sequence[GradedQuestion] = ()


@dataclass
class Run:
    """One run, from the moment at which its source is known and its output folder is held.

    ``base`` is the model as it was found, without an adapter. ``fingerprint`` and ``inputs``
    identify what is built from, an adapter included, in the manifest and in the keys of stages.
    """

    options: Options
    base: SourceModel
    fingerprint: ModelOrigin
    inputs: JsonObject
    space: Workspace
    stages: Stages
    progress: Reporter
    plan: Measuring | None = None  # None with --no-measure

    def show(self, notes: Iterable[str]) -> None:
        """Tell the user."""
        for note in notes:
            self.progress.note(note)

    @cached_property
    def source(self) -> SourceModel:
        """Model that is built from; an adapter is merged when this is first needed."""
        lora = self.options.source.lora
        if lora is None:
            return self.base
        made = self.fingerprint, self.stages, self.space.work, self.progress
        return merged_source(self.base, lora, *made)

    @cached_property
    def reference(self) -> Reference:
        """Readings of the test lines by the original tokenizer; made when it is first needed."""
        with self.progress.stage("reading the original tokenizer"):
            call, what = partial(read_reference, self.source), "loading the original tokenizer"
            return run_child(call, what, self.space.work, self.progress, torch=True)


@dataclass
class BuildJob:
    """One file of a run: its recipe and the key of its build. ``entry`` is the file in the output
    folder once it is there with that key."""

    recipe: Recipe
    key: str
    entry: FileEntry | None = None


_EXPORT = "export-f16.gguf"


def make_file(run: Run, job: BuildJob) -> Stage:
    """The stage of ``job``'s file or folder, which is called as its recipe says. The value has
    ``notes``, ``route``, ``runs_here`` (whether this machine can load it) and ``imatrix`` (the
    matrix used, in words)."""
    return _make_gguf(run, job) if job.recipe.format == "gguf" else _make_onnx(run, job)


@dataclass(frozen=True, slots=True)
class Export:
    """The half-precision GGUF file that others are made from, and what the user should know."""

    path: Path
    sha256: str
    notes: list[str]


def export_gguf(run: Run) -> Export:
    """The half-precision GGUF file, whose tokens are compared before hours of quantizing. A source
    that is a GGUF file is its own."""
    if run.base.kind == "gguf":
        note = (
            f"made from a file that was quantized before ({run.base.quantized}): figures compare"
            " with that file, and what it had lost itself comes on top"
        )
        notes = [note] if run.base.quantized else []
        run.show(notes)
        return Export(run.base.weights[0], run.fingerprint.hash, notes)
    key, work = export_key(run.inputs), run.space.work

    def make(folder: Path) -> list[str]:
        notes = export_f16(source.folder, folder / _EXPORT, reference, work, run.progress)
        run.show(notes)
        return notes

    def compare(_folder: Path) -> None:
        comparison = compare_built(export.path, run.reference, work)
        require_parity(comparison, "the GGUF export")

    if run.stages.find("export", key, _is_export) is None:  # stages of their own, shown before this
        source, reference = run.source, run.reference
    stage = run.stages.run(
        "export", key, make, "converting to GGUF, half precision", valid=_is_export
    )
    export = Export(stage.folder / _EXPORT, stage.files[_EXPORT].sha256, stage.value)
    if not run.options.allow_token_mismatch:
        checked = stage_key("check", {"export": export.sha256, "source": run.inputs})
        run.stages.run("check", checked, compare, "checking the export: tokens", told=False)
    return export


def _given_importance(run: Run, recipe: Recipe) -> tuple[Path | None, str | None]:
    """As `importance` has the matrix that the user gave, if there is one for ``recipe``."""
    key, given = imatrix_key(run.inputs, recipe, run.options), run.options.imatrix
    return importance(run, key, given, export_gguf(run)) if key and given else (None, None)


def _make_gguf(run: Run, job: BuildJob) -> Stage:
    if run.stages.find("build", job.key, is_build) is None:
        export = export_gguf(run)
        matrix, used = _given_importance(run, job.recipe)

    def make(folder: Path) -> JsonObject:
        text = calibration_text(run.options, run.base)
        told = quantize_export(run, job.recipe, export, folder, matrix, text)
        run.show(told)
        return {
            "notes": [*export.notes, *told],
            "route": "llama.cpp",
            "runs_here": True,
            "imatrix": used,
        }

    text = f"quantizing to {job.recipe.name}"
    return run.stages.run("build", job.key, make, text, valid=is_build)


def quantize_export(
    run: Run,
    recipe: Recipe,
    export: Export,
    folder: Path,
    matrix: Path | None,
    text: Path,
    types: Types = MappingProxyType({}),
    metadata: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """The file of ``recipe`` in ``folder``, tensors in ``types`` of their own by patterns of their
    names, described by ``metadata``; what the user should know of it. ``text`` is for --gptq."""
    out = folder / recipe.output_name(run.base.name)
    moments = moments_of(run, text) if recipe.takes_gptq else None
    if moments is not None:
        metadata = {**metadata, COMPENSATED: "true"}
    notes = quantize_gguf(
        export.path,
        out,
        recipe,
        run.space.root,  # where the export is, which may become the file itself
        imatrix=matrix,
        overrides={**run.options.overrides, **types},
        progress=run.progress,
        metadata=metadata,
    )
    if moments is not None:
        call = partial(compensate_file, out, export.path, moments, matrix)
        made = run_child(call, "making up for rounding", run.space.work, run.progress)
        notes = [*notes, f"{made} tensors were rounded so that errors are made up for (--gptq)"]
    return notes


def importance(run: Run, key: str, given: Path, export: Export) -> tuple[Path, str]:
    """The importance matrix of ``given``, and what it was made from with its checksum."""

    def make(folder: Path) -> str:
        return prepare_imatrix(given, run.source, export.path, folder, run.progress).name

    text = f"importance matrix from {given.name}"
    stage = run.stages.run("imatrix", key, make, text, valid=lambda made: made.value in made.files)
    return stage.folder / stage.value, f"{given.name} sha256:{stage.files[stage.value].sha256}"


def moments_of(run: Run, text: Path) -> Path | None:
    """The folder of the moments of ``text``, for --gptq; made when it is first needed."""
    if not run.options.gptq:
        return None
    folder = run.space.work / f"moments-{digest(text).sha256[:16]}"
    if not folder.exists():
        made = folder.with_suffix(".partial")
        shutil.rmtree(made, ignore_errors=True)
        with run.progress.stage(f"reading {text.name} for --gptq"):
            call = partial(write_moments, run.source, text, made)
            run_child(call, "reading the text", run.space.work, run.progress, torch=True)
        made.rename(folder)
    return folder


def make_graph(run: Run, recipe: Recipe, folder: Path, mix: Mix | None) -> JsonObject:
    """The ONNX folder of ``recipe``, or of the ``mix``, in ``folder``; the value of its stage."""
    exports = run.space.work / "float-graph"  # optimum's, kept for the next recipe
    exports.mkdir(exist_ok=True)
    text = calibration(recipe, run.options)
    where = run.options.target, run.progress, text, exports
    made = build_onnx(run.source, recipe, folder, *where, mix)
    return {**asdict(made), "imatrix": None}


def _make_onnx(run: Run, job: BuildJob) -> Stage:
    mix, used = None, None
    if run.stages.find("build", job.key, is_build) is None:
        (matrix, used), columns, moments = _given_importance(run, job.recipe), None, None
        if matrix is not None:
            columns = run.space.work / "matrix.npz"
            np.savez(columns, **columns_of(read_matrix(matrix)))  # type: ignore[arg-type]
        if job.recipe.takes_gptq:
            moments = moments_of(run, calibration_text(run.options, run.base))
        if columns or moments:
            mix = Mix({}, columns, moments)

    def make(folder: Path) -> JsonObject:
        made = make_graph(run, job.recipe, folder, mix)
        run.show(made["notes"])
        return {**made, "imatrix": used}

    return run.stages.run("build", job.key, make, f"building {job.recipe.name}", valid=is_build)


def is_build(stage: Stage) -> bool:
    """Whether ``stage`` holds a file, and what its maker says of it, as `make_file` does."""
    value, used = stage.value, stage.value["imatrix"]
    if (given := value.get("allocation")) is not None:
        from_json(Allocation, given)
    told = are_texts(value["notes"]) and isinstance(value["route"], str)
    return bool(stage.files) and told and (used is None or isinstance(used, str))


def _is_export(stage: Stage) -> bool:
    return are_texts(stage.value) and _EXPORT in stage.files
