"""Whether there is room for a run, on the disk and in memory, before any work is done."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from quantize.errors import DiskFullError
from quantize.lora.merge import merge_bytes
from quantize.onnx.build import builder_may_know
from quantize.options import Options
from quantize.quality.store import reference_bytes
from quantize.quality.text import scored_tokens
from quantize.recipes.recipe import Recipe
from quantize.source import SourceModel
from runtimes.errors import OutOfMemoryError
from runtimes.machine.hardware import detect

_SPARE = 64_000_000  # vocabularies, tokenizer files, logs
_TORCH = 700_000_000  # torch and transformers themselves
_USUAL_VOCABULARY = 152_000  # where the configuration does not tell


def space_parts(source: SourceModel, recipes: Sequence[Recipe], options: Options) -> dict[str, int]:
    """Bytes that a run writes at most, by what they are for."""
    parts = {}
    if options.source.lora is not None:
        parts["merged model"] = merge_bytes(source)
    if source.kind == "hf" and any(recipe.format == "gguf" for recipe in recipes):
        parts["half-precision GGUF"] = int(source.parameters * 2 * 1.05)
    if options.measure.enabled:
        tokens = scored_tokens(options.measure.limit)
        parts["float model's predictions"] = reference_bytes(_vocabulary(source), tokens)
    onnx = [recipe for recipe in recipes if recipe.format == "onnx"]
    if onnx and not builder_may_know(source.architecture):
        parts["float graph"] = int(source.parameters * 4 * 1.05)
    # An ONNX graph whose embedding is rewritten exists twice for a moment.
    rewrite = max((_scratch_bits(r) / 8 for r in onnx), default=0)
    parts["scratch"] = int(source.parameters * rewrite * 1.05) + _SPARE
    for recipe in recipes:
        parts[recipe.name] = int(source.parameters * recipe.bits_per_weight / 8 * 1.05)
    return parts


def memory_parts(
    source: SourceModel, recipes: Sequence[Recipe], options: Options
) -> dict[str, int]:
    """Bytes of memory that each step takes at least, about.

    The float model computes with its weights as they are where single precision does not fit. The
    ONNX builder holds the checkpoint and its single-precision weights twice: as arrays, and as the
    graph that it quantizes.
    """
    parts = {}
    if options.source.lora is not None:
        parts["merging the adapter"] = source.bytes + _TORCH
    if options.measure.enabled:
        parts["running the float model"] = int(source.bytes * 1.1) + _TORCH
    if any(recipe.format == "onnx" for recipe in recipes):
        parts["building ONNX files"] = source.bytes + 2 * 4 * source.parameters + _TORCH
    return parts


def require_space(folder: Path, parts: Mapping[str, int], *, reusable: int = 0) -> None:
    """Raise DiskFullError unless the disk of ``folder`` (which need not exist yet) has room.

    ``reusable`` bytes are taken already by an earlier run's work, which is used again or removed.
    """
    existing = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free + reusable
    needed = sum(parts.values())
    if needed > free:
        raise DiskFullError(
            f"{folder} needs {_told(needed)} free to build in ({_list(parts)}) and has"
            f" {_told(free)}: make room, build fewer recipes at a time, or choose another"
            " disk with --out"
        )


def require_memory(parts: Mapping[str, int]) -> None:
    """Raise OutOfMemoryError when the largest of ``parts``, which are needed one after the other,
    is more than there is."""
    what = max(parts, key=lambda name: parts[name], default=None)
    available = detect().ram_available
    if what is not None and parts[what] > available:
        raise OutOfMemoryError(
            f"{what} needs about {_told(parts[what])} of memory and {_told(available)} are free:"
            f" close other programs, or leave it out ({_list(parts)})"
        )


def _scratch_bits(recipe: Recipe) -> float:
    """Bits per weight of what exists beside the output for a moment."""
    return 32.0 if recipe.precision == "w8a8" else recipe.bits_per_weight


def _vocabulary(source: SourceModel) -> int:
    """The number of tokens by the model's configuration, which may be nested."""
    try:
        config = json.loads((source.folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return _USUAL_VOCABULARY
    for part in (config, config.get("text_config") or {}):
        if isinstance(size := part.get("vocab_size"), int):
            return size
    return _USUAL_VOCABULARY


def _list(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {_told(size)}" for name, size in parts.items())


def _told(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
