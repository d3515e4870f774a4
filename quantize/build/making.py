"""Making each file: source to half-precision export to its type, or source to ONNX."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantize.build.run import BuildJob, Run
from quantize.fromjson import from_json
from quantize.gguf.convert import export_f16
from quantize.gguf.imatrix import prepare_imatrix
from quantize.gguf.quantize import quantize_gguf
from quantize.manifest import Allocation
from quantize.onnx.builder import build_onnx
from quantize.quality.tokens import compare_built, require_parity
from quantize.stages.stages import (
    Stage,
    are_texts,
    calibration,
    export_key,
    imatrix_key,
    stage_key,
)

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
        comparison = compare_built(export.path, run.reference, "gguf", work)
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


def _make_gguf(run: Run, job: BuildJob) -> Stage:
    if run.stages.find("build", job.key, is_build) is None:
        export = export_gguf(run)
        key = imatrix_key(run.inputs, job.recipe, run.options)
        matrix, used = None, None
        if key and run.options.imatrix:
            matrix, used = importance(run, key, run.options.imatrix, export)

    def make(folder: Path) -> dict[str, Any]:
        notes = quantize_gguf(
            export.path,
            folder / job.recipe.output_name(run.base.name),
            job.recipe,
            run.space.root,  # where the export is, which may become the file itself
            imatrix=matrix,
            overrides=run.options.overrides,
            progress=run.progress,
        )
        run.show(notes)
        notes = [*export.notes, *notes]
        return {"notes": notes, "route": "llama.cpp", "runs_here": True, "imatrix": used}

    text = f"quantizing to {job.recipe.name}"
    return run.stages.run("build", job.key, make, text, valid=is_build)


def importance(run: Run, key: str, given: Path, export: Export) -> tuple[Path, str]:
    """The importance matrix of ``given``, and what it was made from with its checksum."""

    def make(folder: Path) -> str:
        return prepare_imatrix(given, run.source, export.path, folder, run.progress).name

    text = f"importance matrix from {given.name}"
    stage = run.stages.run("imatrix", key, make, text, valid=lambda made: made.value in made.files)
    return stage.folder / stage.value, f"{given.name} sha256:{stage.files[stage.value].sha256}"


def _make_onnx(run: Run, job: BuildJob) -> Stage:
    def make(folder: Path) -> dict[str, Any]:
        exports = run.space.work / "float-graph"  # optimum's, kept for the next recipe
        exports.mkdir(exist_ok=True)
        made = build_onnx(
            run.source,
            job.recipe,
            folder,
            run.options.target,
            run.progress,
            calibration=calibration(job.recipe, run.options),
            exports=exports,
        )
        run.show(made.notes)
        kept = {"notes": made.notes, "route": made.route, "runs_here": made.runs_here}
        return {**kept, "imatrix": None}

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
