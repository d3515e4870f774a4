"""Half-precision GGUF file to a smaller type."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from quantize.build.process import Progress, run_child
from quantize.gguf.overrides import TYPES, kept_otherwise, resolve_overrides
from quantize.recipes.bits import gguf_bits
from quantize.recipes.recipe import Recipe, require_matrix
from runtimes.models.gguf import read_header

_F16 = 1  # both the llama_ftype and the ggml_type


def quantize_gguf(
    source: Path,
    out: Path,
    recipe: Recipe,
    work: Path,
    imatrix: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> list[str]:
    """Write ``source`` to ``out`` in the recipe's type; returns what the user should know.

    ``imatrix`` is what `prepare_imatrix` gave. ``overrides`` maps regular expressions over tensor
    names to types. ``progress`` hears of each tensor. Raises UsageError for overrides that cannot
    be carried out or a matrix that is needed and missing, ToolError for what llama.cpp refuses.
    """
    require_matrix([recipe], imatrix)
    header = read_header(source)
    asked = resolve_overrides(overrides or {}, header, has_matrix=imatrix is not None)
    notes: list[str] = []
    if recipe.is_float and asked:
        notes = [f"{recipe.name} is not quantized, single tensors neither"]
        asked = {}
    if recipe.ftype == _F16 and header.metadata.get("general.file_type") == _F16:
        _copy(source, out, work)
        return notes
    fallbacks: list[str] = run_child(
        "quantize.gguf.quantize_child:quantize",
        {
            "source": str(source),
            "out": str(out),
            "ftype": recipe.ftype,
            "imatrix": str(imatrix) if imatrix else None,
            "types": {name: TYPES[kind] for name, kind in asked.items()},
        },
        what=f"quantizing to {recipe.name}",
        work=work,
        progress=progress,
    )
    made = read_header(out)
    notes += [f"{told}; the file has {gguf_bits(made):.1f} bits a weight" for told in fallbacks]
    return [*notes, *kept_otherwise(asked, made)] if asked else notes


def _copy(source: Path, out: Path, work: Path) -> None:
    """Our own export, which lies near the work folder and which other recipes still read, need not
    exist twice; a file of the user's must not share its bytes with ours."""
    if source.resolve().is_relative_to(work.resolve().parent):
        out.hardlink_to(source)
    else:
        shutil.copyfile(source, out)
