"""A model to an ONNX folder by optimum's exporter: its float graph, then what we make of it."""

import json
import shutil
from functools import partial
from pathlib import Path

from quantize.children.process import run_child
from quantize.errors import SourceError
from quantize.onnx.optimum.export import export
from quantize.onnx.optimum.finish import finish
from quantize.onnx.optimum.overlay import optimum_overlay, overlay_key
from quantize.progress.console import Reporter
from quantize.recipes.recipe import Recipe
from quantize.source import SourceModel


def build_with_optimum(
    source: SourceModel, recipe: Recipe, out: Path, progress: Reporter, exports: Path
) -> list[str]:
    """Build the folder ``out``; returns what the user should know, the reason for this route first.

    The float export is kept in ``exports`` for the next recipe.
    """
    made, record = exports / "optimum-fp32", exports / "optimum-fp32.json"
    identity = json.dumps({"source": source.fingerprint().hash, "overlay": overlay_key()})
    # The record comes once the export has been compared with the original.
    fresh = not record.is_file() or record.read_text(encoding="utf-8") != identity
    if fresh:
        record.unlink(missing_ok=True)
        shutil.rmtree(made, ignore_errors=True)
        _export(source, made, progress)
    call = partial(finish, source, made, out, recipe, check=fresh)
    notes = run_child(call, f"building {recipe.name}", out.parent, torch=True)
    record.write_text(identity, encoding="utf-8")
    name = source.architecture
    return [f"exported by optimum: onnxruntime-genai's builder does not know {name}", *notes]


def _export(source: SourceModel, out: Path, progress: Reporter) -> None:
    """Write the float export of ``source`` to ``out``."""
    overlay = optimum_overlay(progress)
    with progress.stage(f"exporting {source.architecture} by optimum"):
        call = partial(export, overlay, source.folder, out, code=source.trust_remote_code)
        refused = run_child(call, "exporting by optimum", out.parent)
    if refused:
        raise SourceError(
            f"neither onnxruntime-genai's builder nor optimum knows {source.architecture}; use"
            f" --to gguf\n  {refused}"
        )
