"""A model's way through: source, export, quantize, check, measure, publish."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from quantize.errors import UsageError
from quantize.gguf.convert import export_f16
from quantize.gguf.converter import converter_folder
from quantize.gguf.quantize import quantize_gguf
from quantize.manifest import (
    NAME,
    FileEntry,
    Manifest,
    ModelInfo,
    Source,
    hash_files,
    load_manifest,
    write_manifest,
)
from quantize.onnx.build import build_onnx, require_builder
from quantize.progress import Reporter
from quantize.quality.measure import built_accuracy, built_speed, check_answers, float_accuracy
from quantize.quality.tasks import Question, read_questions
from quantize.quality.tokens import Reference, compare_built, make_reference, require_parity
from quantize.recipe import Recipe
from quantize.source import SourceModel, open_source
from quantize.workspace import Workspace, disk_errors, require_space
from runtimes.errors import ModelError, RuntimeMissingError

_TOOLS = (
    *("ingot", "torch", "transformers", "tokenizers", "llama-cpp-python", "onnx", "onnx_ir"),
    *("onnxruntime", "onnxruntime-gpu", "onnxruntime-genai", "onnxruntime-genai-cuda"),
)
_SPARE = 64_000_000  # vocabularies, tokenizer files, logs


@dataclass(frozen=True, slots=True)
class Options:
    """What to build and how far to go. ``out`` None means `<model>-built` beside the source."""

    model: str
    recipes: tuple[Recipe, ...]
    out: Path | None = None
    measure: bool = True
    allow_token_mismatch: bool = False


@dataclass(slots=True)
class _Run:
    """What every step of one run needs."""

    options: Options
    source: SourceModel
    space: Workspace
    progress: Reporter
    reference: Reference
    questions: list[Question]
    fingerprint: Source
    manifest: Manifest
    tools: dict[str, str] = field(default_factory=dict)


def build(options: Options, progress: Reporter) -> tuple[Path, Manifest]:
    """Build every recipe and publish each as soon as it is checked; the folder and its manifest.

    Raises an IngotError that says what is wrong and what to do. Files that were published before an
    error stay, complete and listed.
    """
    source = open_source(options.model)
    out = options.out or source.folder.resolve().with_name(f"{source.name}-built")
    if out.resolve() == source.folder.resolve():
        raise UsageError(f"--out is the model's own folder {out}; choose another")
    _require_tools(options.recipes)
    questions = read_questions(source.graded) if options.measure and source.graded else []
    require_space(out, space_needed(source.parameters, options.recipes))
    with disk_errors(out), Workspace(out) as space:
        run = _prepare(options, source, space, progress, questions)
        gguf = [recipe for recipe in options.recipes if recipe.format == "gguf"]
        if gguf:
            _build_gguf(run, gguf)
        for recipe in options.recipes:
            if recipe.format == "onnx":
                with progress.stage(f"building {recipe.name}"):
                    made, notes = build_onnx(source.folder, recipe, space.work)
                _show(run, notes)
                _finish(run, recipe, made, notes)
        return out, run.manifest


def space_needed(parameters: int, recipes: Sequence[Recipe]) -> int:
    """Bytes that a run writes at most: the half-precision export, and every output."""
    outputs = sum(recipe.bits_per_weight for recipe in recipes) / 8
    export = 2 if any(recipe.format == "gguf" for recipe in recipes) else 0
    # An ONNX graph whose embedding is rewritten exists twice for a moment.
    rewrite = max((r.bits_per_weight / 8 for r in recipes if r.format == "onnx"), default=0)
    return int(parameters * (outputs + export + rewrite) * 1.05) + _SPARE


def _prepare(
    options: Options,
    source: SourceModel,
    space: Workspace,
    progress: Reporter,
    questions: list[Question],
) -> _Run:
    with progress.stage("reading the model and its tokenizer"):
        fingerprint = source.fingerprint()
        reference = make_reference(source.folder, space.work)
    earlier = _earlier_manifest(space.out, source.name)
    quality = earlier.model.quality if earlier and not options.measure else None
    if questions and not reference.chats:
        progress.note("the graded questions are left out: the tokenizer has no chat template")
        questions = []
    if questions:
        with progress.stage(f"asking the float model {len(questions)} graded questions"):
            quality = float_accuracy(source.folder, questions, space.work)
    model = ModelInfo(source.name, source.architecture, source.parameters, quality)
    manifest = replace(earlier, model=model) if earlier else Manifest(model=model)
    return _Run(
        options, source, space, progress, reference, questions, fingerprint, manifest, _versions()
    )


def _build_gguf(run: _Run, recipes: Sequence[Recipe]) -> None:
    work = run.space.work
    export = work / "export-f16.gguf"
    with run.progress.stage("converting to GGUF, half precision"):
        notes = export_f16(run.source.folder, export, run.reference, work)
        if not run.options.allow_token_mismatch:  # before hours of quantizing
            require_parity(compare_built(export, run.reference, "gguf", work), "the GGUF export")
    _show(run, notes)
    for recipe in recipes:
        made = work / recipe.output_name(run.source.name)
        with run.progress.stage(f"quantizing to {recipe.name}"):
            own_notes = quantize_gguf(export, made, recipe, work)
        _show(run, own_notes)
        _finish(run, recipe, made, [*notes, *own_notes])
    export.unlink()


def _finish(run: _Run, recipe: Recipe, made: Path, notes: Sequence[str]) -> None:
    """Check, measure, publish, record."""
    work, progress = run.space.work, run.progress
    with progress.stage(f"checking {recipe.name}: tokens, load, one question"):
        comparison = compare_built(made, run.reference, recipe.format, work)
        if not run.options.allow_token_mismatch:
            require_parity(comparison, made.name)
        check_answers(made, work)
    _show(run, [comparison.note] if comparison.note else [])
    quality = speed = None
    if run.options.measure:
        with progress.stage(f"measuring {recipe.name}: speed"):
            speed = built_speed(made, work)
    if run.questions:
        with progress.stage(f"measuring {recipe.name}: {len(run.questions)} graded questions"):
            quality = built_accuracy(made, run.questions, work)
    digests = hash_files(made)
    entry = FileEntry(
        format=recipe.format,
        recipe=recipe.name,
        bits=recipe.bits,
        path=made.name,
        bytes=sum((made.parent / name).stat().st_size for name in digests),
        sha256=digests,
        source=run.fingerprint,
        tools=run.tools,
        token_parity=comparison.parity,
        quality=quality,
        speed=speed,
        notes=tuple(note for note in (*notes, comparison.note) if note),
    )
    _record(run, entry, made)


def _show(run: _Run, notes: Sequence[str]) -> None:
    for note in notes:
        run.progress.note(note)


def _record(run: _Run, entry: FileEntry, made: Path) -> None:
    """Publish so that the manifest never describes a file other than the one that is there: the
    old entry goes first, the file moves, the new entry comes."""
    out = run.space.out
    if run.manifest.entry(entry.recipe):
        write_manifest(out, run.manifest.without(entry.recipe))
    run.space.publish(made, entry.path)
    run.manifest = run.manifest.with_entry(entry)
    write_manifest(out, run.manifest)


def _earlier_manifest(out: Path, name: str) -> Manifest | None:
    """What an earlier run left in ``out``; raises UsageError when it is another model's."""
    if not (out / NAME).is_file():
        return None
    try:
        manifest = load_manifest(out)
    except ModelError:
        return None  # damaged: this run writes a new one
    if manifest.model.name != name:
        raise UsageError(f"{out} holds builds of {manifest.model.name}, not of {name}; use --out")
    return manifest


def _require_tools(recipes: Sequence[Recipe]) -> None:
    """Say what is missing before any work, not after it."""
    missing = [name for name in ("torch", "transformers") if not importlib.util.find_spec(name)]
    if missing:
        raise RuntimeMissingError(
            f"{' and '.join(missing)} not installed; building needs: pip install"
            " 'ingot[cpu,quantize]'"
        )
    formats = {recipe.format for recipe in recipes}
    if "onnx" in formats:
        require_builder()
    if "gguf" in formats:
        converter_folder()


def _versions() -> dict[str, str]:
    found = {}
    for name in _TOOLS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
