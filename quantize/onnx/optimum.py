"""The route by optimum's exporter, for what onnxruntime-genai's builder does not know."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from quantize.build.process import run_child
from quantize.errors import SourceError
from quantize.onnx.overlay import optimum_overlay, overlay_key
from quantize.progress.console import Reporter
from quantize.recipes.recipe import Recipe
from quantize.source import SourceModel

_EXPORT = "optimum-fp32"
_DONE = "optimum-fp32.json"


def build_with_optimum(
    source: SourceModel,
    architecture: str,
    recipe: Recipe,
    precision: str,
    out: Path,
    progress: Reporter,
    exports: Path | None = None,
) -> list[str]:
    """Build the folder ``out``; returns what the user should know, the reason for this route first.

    The float export is kept in ``exports``, if given, for the next recipe.
    """
    work = exports or out.parent
    identity = {"source": source.fingerprint().hash, "overlay": overlay_key()}
    fresh = not _is_done(work, identity)
    if fresh:
        _export(source, architecture, work, progress)
    notes: list[str] = run_child(
        "quantize.onnx.optimum_finish:finish",
        {
            "model": str(source.folder),
            "export": str(work / _EXPORT),
            "out": str(out),
            "precision": precision,
            "options": dict(recipe.options),
            "trust_remote_code": source.trust_remote_code,
            "check": fresh,
        },
        what=f"building {recipe.name}",
        work=out.parent,
    )
    if exports is None:
        _drop(work)
    else:  # only now, when it has been compared with the original
        (work / _DONE).write_text(json.dumps(identity), encoding="utf-8")
    why = f"exported by optimum: onnxruntime-genai's builder does not know {architecture}"
    return [why, *notes]


def _drop(work: Path) -> None:
    (work / _DONE).unlink(missing_ok=True)
    shutil.rmtree(work / _EXPORT, ignore_errors=True)


def _is_done(work: Path, identity: dict[str, str]) -> bool:
    """Whether an earlier recipe has left the export of this very model there."""
    try:
        return bool(json.loads((work / _DONE).read_text(encoding="utf-8")) == identity)
    except (OSError, ValueError):
        return False


def _export(source: SourceModel, architecture: str, work: Path, progress: Reporter) -> None:
    """Write the float export of ``source`` into ``work``."""
    overlay = optimum_overlay(progress)
    _drop(work)
    with progress.stage(f"exporting {architecture} by optimum"):
        refused = run_child(
            "quantize.onnx.optimum_child:export",
            {
                "overlay": str(overlay),
                "model": str(source.folder),
                "out": str(work / _EXPORT),
                "trust_remote_code": source.trust_remote_code,
            },
            what="exporting by optimum",
            work=work,
        )
    shutil.rmtree(work / f"{_EXPORT}-source", ignore_errors=True)
    if refused:
        raise SourceError(
            f"neither onnxruntime-genai's builder nor optimum knows {architecture}; use"
            f" --to gguf\n  {refused}"
        )
