"""Hugging Face folder to an ONNX folder that our runner and onnxruntime-genai load."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantize.build.process import run_child
from quantize.errors import UsageError
from quantize.onnx.optimum import build_with_optimum
from quantize.options import Target
from quantize.progress.console import Reporter
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


def require_builder() -> None:
    """Raise RuntimeMissingError when onnxruntime-genai is not installed."""
    if importlib.util.find_spec("onnxruntime_genai") is None:
        raise RuntimeMissingError(
            "ONNX files are made with onnxruntime-genai, which is not installed; use --to gguf, or"
            " install it with: pip install 'ingot[cpu,quantize]'"
        )


def build_onnx(
    source: SourceModel,
    recipe: Recipe,
    work: Path,
    target: Target = "cpu",
    progress: Reporter | None = None,
    calibration: Path | None = None,
    exports: Path | None = None,
) -> OnnxBuild:
    """Build ``source`` by ``recipe`` in the folder ``work``, for the processor ``target``.

    onnxruntime-genai's builder writes the graph; optimum's exporter does where the builder does not
    know the architecture. ``calibration`` is a text to smooth activations by, for recipes that
    round them. ``exports`` is a folder where optimum's float export is kept for the next recipe.
    Raises UsageError where the recipe does not fit the target, and what `run_child` and
    `optimum_overlay` raise.
    """
    progress = progress or Reporter()
    if recipe.precision == _W8A8:
        if target == "cuda":
            raise UsageError(f"{recipe.name} is for processors; take another recipe for cuda")
        return _build_w8a8(source, recipe, work, progress, calibration, exports)
    out = work / recipe.name
    return _build(source, recipe, recipe.precision, out, target, progress, exports)


def _build(
    source: SourceModel,
    recipe: Recipe,
    precision: str,
    out: Path,
    target: Target,
    progress: Reporter,
    exports: Path | None,
) -> OnnxBuild:
    shutil.rmtree(out, ignore_errors=True)
    answer = (
        _run_builder(source, recipe, precision, out, target, progress)
        if builder_may_know(source.architecture)
        else {"unknown": source.architecture}
    )
    if unknown := answer.get("unknown"):
        shutil.rmtree(out, ignore_errors=True)
        notes = build_with_optimum(source, unknown, recipe, precision, out, progress, exports)
        if target == "cuda":
            notes.append("the graph is in 32 bits: optimum's export is not shaped for CUDA")
        return OnnxBuild(out, "optimum", notes)
    notes = list(answer["notes"])
    if target == "cuda":
        notes.append("built for CUDA, with half-precision activations: not loaded or measured here")
    return OnnxBuild(out, "onnxruntime-genai", notes, runs_here=target == "cpu")


def builder_may_know(architecture: str) -> bool:
    """Whether the builder's source, a chain of comparisons with names, has this one.

    Loading it to hear that it does not takes seconds.
    """
    spec = importlib.util.find_spec("onnxruntime_genai")
    if spec is None or spec.origin is None:
        return False
    chain = Path(spec.origin).parent / "models" / "builder.py"
    return not chain.is_file() or f'"{architecture}"' in chain.read_text(encoding="utf-8")


def _run_builder(
    source: SourceModel,
    recipe: Recipe,
    precision: str,
    out: Path,
    target: Target,
    progress: Reporter,
) -> dict[str, Any]:
    """See `quantize.onnx.build_child.build`."""
    cache = out.parent / "onnx-cache"
    answer: dict[str, Any] = run_child(
        "quantize.onnx.build_child:build",
        {
            "model": str(source.folder),
            "out": str(out),
            "cache": str(cache),
            "precision": precision,
            "target": target,
            "options": dict(recipe.options),
            "trust_remote_code": source.trust_remote_code,
        },
        what=f"building {recipe.name}",
        work=out.parent,
        progress=progress,
    )
    shutil.rmtree(cache, ignore_errors=True)
    return answer


def _build_w8a8(
    source: SourceModel,
    recipe: Recipe,
    work: Path,
    progress: Reporter,
    calibration: Path | None,
    exports: Path | None,
) -> OnnxBuild:
    """The float graph first, then its matrix products with 8-bit weights and activations."""
    whole, out = work / f"{recipe.name}-fp32", work / recipe.name
    made = _build(source, recipe, "fp32", whole, "cpu", progress, exports)
    shutil.rmtree(out, ignore_errors=True)
    notes: list[str] = run_child(
        "quantize.onnx.build_child:rewrite_w8a8",
        {
            "fp32": str(whole),
            "out": str(out),
            "calibration": str(calibration) if calibration else None,
        },
        what=f"building {recipe.name}",
        work=work,
        progress=progress,
    )
    shutil.rmtree(whole)
    return OnnxBuild(out, made.route, [*made.notes, *notes])
