"""Hugging Face folder to an ONNX folder that our runner and onnxruntime-genai load."""

import shutil
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from quantize.children.process import run_child
from quantize.errors import UsageError
from quantize.onnx.builder import build_graph, builder_folder
from quantize.onnx.optimum.export import build_with_optimum
from quantize.onnx.variants import Mix
from quantize.options import Target
from quantize.progress.console import SILENT, Reporter
from quantize.recipes.recipe import Recipe
from quantize.source import SourceModel
from runtimes.errors import RuntimeMissingError

_W8A8 = "w8a8"


@dataclass(frozen=True, slots=True)
class OnnxBuild:
    """A built folder, which tool wrote its graph, and what the user should know.

    ``runs_here`` is False for a file that this machine cannot load, so that it is not measured.
    """

    path: Path
    route: str
    notes: list[str] = field(default_factory=list)
    runs_here: bool = True


def build_onnx(
    source: SourceModel,
    recipe: Recipe,
    work: Path,
    target: Target = "cpu",
    progress: Reporter = SILENT,
    calibration: Path | None = None,
    exports: Path | None = None,
    mix: Mix | None = None,
) -> OnnxBuild:
    """Build ``source`` by ``recipe`` in the folder ``work``, for the processor ``target``.

    onnxruntime-genai's builder writes the graph; optimum's exporter does where the builder does not
    know the architecture. ``calibration`` is a text to smooth activations by, for recipes that
    round them. ``exports`` is a folder where optimum's float export is kept for the next recipe.
    ``mix`` says how each matrix is stored where the recipe does not. Raises UsageError where the
    recipe does not fit the target, and what `run_child` and `optimum_overlay` raise.
    """
    out = work / recipe.name
    make = partial(_build, source, target, progress, exports or work, mix)
    if recipe.precision != _W8A8:
        return make(recipe, out)
    if target != "cpu":
        raise UsageError(f"{recipe.name} is for processors; take another recipe for {target}")
    # The float graph first, then its matrix products with 8-bit weights and activations.
    whole = work / f"{recipe.name}-fp32"
    made = make(replace(recipe, precision="fp32"), whole)
    shutil.rmtree(out, ignore_errors=True)
    call = partial(_rewrite_w8a8, whole, out, calibration)
    notes = run_child(call, f"building {recipe.name}", work, progress)
    shutil.rmtree(whole)
    return replace(made, path=out, notes=[*made.notes, *notes])


def _build(
    source: SourceModel,
    target: Target,
    progress: Reporter,
    exports: Path,
    mix: Mix | None,
    recipe: Recipe,
    out: Path,
) -> OnnxBuild:
    shutil.rmtree(out, ignore_errors=True)
    notes = None
    if builder_may_know(source.architecture):
        call = partial(build_graph, source, recipe, out, target, mix)
        notes = run_child(call, f"building {recipe.name}", out.parent, progress, torch=True)
    if notes is None:
        if recipe.for_gpus:
            raise UsageError(
                f"{recipe.name} cannot be made of {source.architecture}: optimum exports floats of"
                " 32 bits only"
            )
        shutil.rmtree(out, ignore_errors=True)
        notes = build_with_optimum(source, recipe, out, progress, exports, mix)
        if target != "cpu":
            notes.append(f"the graph is in 32 bits: optimum's export is not shaped for {target}")
        return OnnxBuild(out, "optimum", notes)
    # The builder packs the experts of a mixture for CUDA's kernels, which nothing else can read.
    packed = target != "cpu" and b"QMoE" in (out / "model.onnx").read_bytes()
    if target != "cpu":
        more = ": not loaded or measured here" if packed else ""
        notes.append(f"built for {target}, with half-precision activations{more}")
    return OnnxBuild(out, "onnxruntime-genai", notes, runs_here=not packed)


def builder_may_know(architecture: str) -> bool:
    """Whether the builder's source, a chain of comparisons with names, has this one: loading it to
    hear that it does not takes seconds."""
    try:
        chain = builder_folder() / "builder.py"
    except RuntimeMissingError:
        return False
    return f'"{architecture}"' in chain.read_text(encoding="utf-8")


def _rewrite_w8a8(fp32: Path, out: Path, calibration: Path | None) -> list[str]:
    """Runs in a child process."""
    from quantize.onnx.w8a8 import quantize_w8a8

    return quantize_w8a8(fp32, out, calibration)
