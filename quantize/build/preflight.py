"""Refusals before any work: wishes that do not fit together, tools, disk, memory."""

import contextlib
import importlib.util
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path

from quantize.allocate.measure import calibration_text, read_calibration, split_texts
from quantize.allocate.moments import moments_bytes
from quantize.allocate.solve import sweep_bytes
from quantize.build.workspace import WORK
from quantize.children import run_child
from quantize.disk import free_space, human
from quantize.errors import DiskFullError, SourceError, UsageError
from quantize.gguf.converter import converter_folder
from quantize.gguf.imatrixfile import is_matrix
from quantize.gguf.quantize import check_overrides, gguf_sizes
from quantize.hub.transfer import require_push
from quantize.lora import merge_bytes
from quantize.manifest import load_manifest
from quantize.onnx.builder import builder_folder, builder_may_know, onnx_size
from quantize.options import Options
from quantize.quality.fidelity import reference_bytes
from quantize.quality.text import read_text
from quantize.recipes import ONNX, RECIPES, FileSize, Recipe, require_matrix
from quantize.source import SourceModel
from quantize.source.shapes import shapes_of
from quantize.stages import stages_size
from runtimes.errors import IngotError, ModelError, OutOfMemoryError, RuntimeMissingError
from runtimes.machine.hardware import detect
from runtimes.untrusted import is_link

# How large each recipe's file of a model will be, before anything is built: bytes and bits a
# weight, with the tensors counted that fall back to a larger type.


def predict_sizes(source: SourceModel) -> dict[str, FileSize]:
    """By the names of all recipes, within 2% of the files for models of more than some megabytes;
    without those that cannot be told. The headers of the weight files are read, in a child process.

    Raises IngotError for a model that llama.cpp's quantizer does not understand.
    """
    types = tuple(dict.fromkeys(r.ftype for r in RECIPES.values() if r.format == "gguf"))
    with tempfile.TemporaryDirectory(prefix="ingot-sizes-") as work:
        call = partial(gguf_sizes, source, types)
        made = run_child(call, "looking at the sizes", Path(work))
    shapes = shapes_of(source) if source.kind == "hf" else None
    sizes = {}
    for recipe in RECIPES.values():
        if recipe.format == "gguf":
            found = made.get(recipe.ftype)
        else:
            found = onnx_size(source, shapes, recipe) if shapes else None
        if found is not None:
            sizes[recipe.name] = found
    return sizes


def known_sizes(source: SourceModel) -> Mapping[str, FileSize]:
    """``predict_sizes`` of all recipes, once a model; none where they cannot be told: of a model
    that is still on the hub, or that llama.cpp does not know."""
    changed = tuple(path.stat().st_mtime_ns for path in source.weights)
    return _known(source, changed) if source.weights else {}


@lru_cache(maxsize=8)
def _known(source: SourceModel, changed: tuple[int, ...]) -> Mapping[str, FileSize]:
    """``changed`` makes a file that was replaced another one."""
    try:
        return predict_sizes(source)
    except IngotError:
        return {}


_TRIES = 3.15  # files that a bound of divergence, or one in ONNX, may need
_SPARE = 64_000_000  # vocabularies, tokenizer files, logs
_INVERSES = 10  # of the moments of a matrix in doubles, of which each takes the bytes of two
_TORCH = 950_000_000  # torch and transformers, in a step and in what its process is forked from
_USUAL_VOCABULARY = 152_000  # where the configuration does not tell


def space_parts(
    source: SourceModel,
    recipes: Sequence[Recipe],
    options: Options,
    sizes: Mapping[str, FileSize],
) -> dict[str, int]:
    """Bytes that a run writes at most, by what they are for. ``sizes`` are those that can be told
    beforehand; the other files are taken to have their recipe's nominal bits."""
    count = source.parameters
    files = {
        recipe.name: sizes[recipe.name].bytes
        if recipe.name in sizes
        else int(count * recipe.bits_per_weight / 8)
        for recipe in recipes
    }
    parts = {}
    if options.source.lora is not None:
        parts["merged model"] = merge_bytes(source)
    exported = (r.format != ONNX or (options.imatrix and r.is_weighed) for r in recipes)
    if source.kind == "hf" and any(exported):
        parts["half-precision GGUF"] = int(source.parameters * 2 * 1.05)
    # Of a target, and of a recipe, whose texts differ.
    if options.gptq and (texts := {r.target is not None for r in recipes if r.takes_gptq}):
        parts["moments of inputs"] = int(moments_bytes(source)[0] * len(texts) * 1.05)
    if options.measure.enabled:
        limit = options.measure.limit
        parts["float model's predictions"] = reference_bytes(_vocabulary(source), limit)
    onnx = [recipe for recipe in recipes if recipe.format == ONNX]
    if onnx and not builder_may_know(source.architecture):
        parts["float graph"] = int(source.parameters * 4 * 1.05)
    # An ONNX graph whose embedding is rewritten exists twice for a moment; W8A8 is made of floats.
    rewrite = (4 * count if one.rounds_activations else files[one.name] for one in onnx)
    parts["scratch"] = int(max(rewrite, default=0) * 1.05) + _SPARE
    tried = {r.name for r in recipes if r.target and (r.target.bound == "kl" or r.format == ONNX)}
    return parts | {n: int(size * (_TRIES if n in tried else 1.05)) for n, size in files.items()}


def memory_parts(
    source: SourceModel, recipes: Sequence[Recipe], options: Options
) -> dict[str, int]:
    """Bytes of memory that each step takes at least, about.

    The float model computes with its weights as they are where single precision does not fit. The
    ONNX builder holds the checkpoint and what it rounds, one matrix at a time; for a float graph
    also its single-precision weights twice, as arrays and as the graph.
    """
    parts, inverses = {}, 0
    if options.source.lora is not None:
        parts["merging the adapter"] = source.bytes + _TORCH
    listed = options.allocations
    if any(r.target and (r.name not in listed or r.format == ONNX) for r in recipes):
        parts["measuring how much each tensor matters"] = sweep_bytes(source) + _TORCH
    if options.gptq and any(r.takes_gptq for r in recipes):
        layer = moments_bytes(source)[1]
        inverses = _INVERSES * layer
        parts["reading a text for --gptq"] = sweep_bytes(source) + layer + _TORCH
        parts["rounding with --gptq"] = inverses + _TORCH
    if options.measure.enabled:
        parts["running the float model"] = int(source.bytes * 1.1) + _TORCH
    if onnx := [recipe for recipe in recipes if recipe.format == ONNX]:
        held = max(
            2 * 4 if r.rounds_activations or not (r.options or r.target) else r.bits_per_weight / 8
            for r in onnx
        )
        whole = int(1.1 * (source.bytes + held * source.parameters)) + inverses
        parts["building ONNX files"] = whole + _TORCH
    return parts


def require_space(folder: Path, parts: Mapping[str, int], *, reusable: int = 0) -> None:
    """Raise DiskFullError unless the disk of ``folder`` (which need not exist yet) has room.

    ``reusable`` bytes are taken already by an earlier run's work, which is used again or removed.
    """
    free, needed = free_space(folder)[1] + reusable, sum(parts.values())
    if needed > free:
        raise DiskFullError(
            f"{folder} needs {human(needed)} free to build in ({_list(parts)}) and has"
            f" {human(free)}: make room, build fewer recipes at a time, or choose another"
            " disk with --out"
        )


def require_memory(parts: Mapping[str, int]) -> None:
    """Raise OutOfMemoryError when the largest of ``parts``, which are needed one after the other,
    is more than there is."""
    what = max(parts, key=parts.__getitem__, default=None)
    available = detect().ram_available
    if what is not None and parts[what] > available:
        raise OutOfMemoryError(
            f"{what} needs about {human(parts[what])} of memory and {human(available)} are free:"
            f" close other programs, or leave it out ({_list(parts)})"
        )


def _vocabulary(source: SourceModel) -> int:
    """The number of tokens by the model's configuration, which may be nested."""
    with contextlib.suppress(SourceError):
        return int(shapes_of(source).number("vocab_size", default=_USUAL_VOCABULARY))
    return _USUAL_VOCABULARY


def _list(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {human(size)}" for name, size in parts.items())


def unlisted(out: Path, options: Options) -> list[Recipe]:
    """Recipes of which ``out`` lists no file: those are built for certain."""
    listed = set[str]()
    with contextlib.suppress(ModelError):
        listed = {entry.recipe for entry in load_manifest(out).files}
    return [recipe for recipe in options.recipes if options.fresh or recipe.name not in listed]


def require_room(
    out: Path, options: Options, source: SourceModel, recipes: Sequence[Recipe]
) -> None:
    """Raise DiskFullError or OutOfMemoryError when ``recipes`` cannot be built here."""
    if recipes:
        parts = space_parts(source, recipes, options, known_sizes(source))
        require_space(out, parts, reusable=stages_size(out / WORK))
        require_memory(memory_parts(source, recipes, options))


def require_measuring(options: Options) -> None:
    """Raise UsageError for a bound that is to be measured where nothing is."""
    for recipe in () if options.measure.enabled else options.recipes:
        if recipe.target and recipe.limits and recipe.name not in options.allocations:
            raise UsageError(f"{recipe.name} is a bound that is measured: without --no-measure")


def require_sense(options: Options) -> None:
    """Refuse what can be refused before the source is looked at, or downloaded."""
    if options.push is not None:
        require_push(options.push)
    require_matrix(options.recipes, options.imatrix)
    if options.imatrix is not None:
        is_matrix(options.imatrix)  # raises where it cannot be read
    if options.measure.enabled:
        read_text(options.measure.text)
    require_measuring(options)
    if options.gptq and not any(recipe.takes_gptq for recipe in options.recipes):
        raise UsageError(
            "--gptq makes up for the errors of few bits: give it with a recipe of 4 to 6 bits, such"
            " as q4_k_m or onnx-int4, or with a target"
        )
    for recipe in options.recipes:
        if recipe.for_gpus and options.target == "cpu":
            raise UsageError(f"{recipe.name} is for GPUs: --target cuda or webgpu; else onnx-fp32")
        if recipe.target and recipe.format == ONNX and options.target != "cpu":
            raise UsageError(
                f"the types of {recipe.name} are chosen on the processor, for it: --target cpu"
            )
    check_overrides(options.overrides)
    needed = ("torch", "transformers", "matplotlib")
    missing = [name for name in needed if not importlib.util.find_spec(name)]
    if missing:
        raise RuntimeMissingError(
            f"{' and '.join(missing)} not installed; building needs: pip install"
            " 'ingot[cpu,quantize]'"
        )
    tools = {"gguf": converter_folder, ONNX: builder_folder}
    formats = {recipe.format for recipe in options.recipes}
    if options.imatrix and any(recipe.is_weighed for recipe in options.recipes):
        formats.add("gguf")  # llama.cpp computes the matrix, or checks it
    for made_in in sorted(formats):
        tools[made_in]()


def require_fitting(options: Options, source: SourceModel, out: Path) -> None:
    """Raise UsageError for what the source, once it is known, does not allow."""
    if options.out is None and is_link(out):  # it may have come with the model
        raise UsageError(f"{out} is a link; to build where it leads, name that folder with --out")
    if source.kind == "hf" and os.path.realpath(out) == os.path.realpath(source.folder):
        raise UsageError(f"--out is the model's own folder {out}; choose another")
    onnx = [recipe.name for recipe in options.recipes if recipe.format == ONNX]
    targets = [recipe.name for recipe in options.recipes if recipe.target]
    if source.kind == "gguf":
        if options.source.lora is not None:
            raise UsageError("an adapter is merged into a Hugging Face model, not into a GGUF file")
        if options.gptq:
            raise UsageError(
                "--gptq needs the model's layers, which a GGUF file does not give: give the"
                " Hugging Face model"
            )
        if targets:
            raise UsageError(
                f"{', '.join(targets)} needs the model's gradients, which a GGUF file does not"
                " give: give the Hugging Face model, or a recipe by name"
            )
        if onnx:
            raise UsageError(
                f"{', '.join(onnx)} cannot be made from a GGUF file; give the Hugging Face model,"
                " or --to gguf"
            )
    mixed = [name for name in targets if name in onnx]
    if mixed and any("_exps." in name for name in shapes_of(source).weights):
        raise UsageError(
            f"{', '.join(mixed)}: how experts are stored in ONNX is not chosen: give --to gguf,"
            " or a recipe by name"
        )
    if options.gptq:
        read_calibration(calibration_text(options, source))
    if targets:
        split_texts(calibration_text(options, source), options.measure.text)
