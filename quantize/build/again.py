"""A target's file exactly again: from the types that a manifest lists, without a search."""

import shlex
import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quantize.allocate.measure import calibration_text
from quantize.allocate.table import TypeTable
from quantize.build.making import is_build
from quantize.build.run import BuildJob, Run
from quantize.build.target_plan import chosen_table, maker_for
from quantize.errors import SourceError, UsageError
from quantize.gguf.quantize import LONGEST
from quantize.hub.names import parse_hub_name
from quantize.manifest import NAME, FileEntry, load_manifest
from quantize.options import Options
from quantize.recipes.recipe import ONNX, Recipe
from quantize.source import SourceModel
from quantize.stages.stages import Stage, versions


def find_listed(text: str) -> FileEntry:
    """The file of a target that ``text``, MANIFEST#NAME, means. Raises UsageError, and ModelError
    for a manifest that cannot be read."""
    where, _, name = text.rpartition("#")
    path = Path(where)
    if not where or (path.name != NAME and not path.is_dir()):
        raise UsageError(
            f"--allocation takes the manifest that lists a file, and its recipe, such as"
            f" pebble-built/{NAME}#kl0.02, not {text!r}"
        )
    manifest = load_manifest(path if path.is_dir() else path.parent)
    listed = {entry.recipe: entry for entry in manifest.files if entry.allocation}
    if name not in listed:
        there = f"has {', '.join(listed)}" if listed else "lists no file of a target"
        raise UsageError(f"{where} has no allocation of {name}: it {there}")
    return listed[name]


def rebuild_line(options: Options, source: SourceModel, recipe: Recipe) -> str:
    """The command that builds the file of ``recipe``, a target's, exactly again. It goes with the
    file to others, so that a folder or a text is called by its name, without its path."""
    given, hub = options.source, parse_hub_name(options.source.model)
    model = hub.repo if source.revision and hub else source.name
    words = ["quantize", f"{model}@{source.revision}" if source.revision else model]
    if given.lora:
        words += ["--lora", given.lora if parse_hub_name(given.lora) else Path(given.lora).name]
    text = calibration_text(options, source)
    if text == options.imatrix:
        words += ["--imatrix", text.name]
    for pattern, kind in options.overrides.items():
        words += ["--override", f"{pattern}={kind}"]
    if given.allow_pickle:
        words.append("--allow-pickle")
    if given.trust_remote_code:
        words.append("--trust-remote-code")
    return shlex.join([*words, "--allocation", f"{NAME}#{recipe.name}"])


def described(target: str, types: Mapping[str, str], line: str) -> dict[str, str]:
    """What a file says of itself: its ``target``, the tensors of every type, and the ``line`` that
    builds it again."""
    tensors: dict[str, list[str]] = {}
    for name, kind in types.items():
        tensors.setdefault(kind, []).append(name.removeprefix("blk.").removesuffix(".weight"))
    found = {"ingot.target": target}
    for kind, names in sorted(tensors.items()):
        pieces = textwrap.wrap(" ".join(sorted(names)), LONGEST)
        found |= {f"ingot.allocation.{kind}.{i}": piece for i, piece in enumerate(pieces)}
    size = LONGEST if line.isascii() else LONGEST // 4  # bytes of a character, at most
    pieces = [line[at : at + size] for at in range(0, len(line), size)]
    return found | {f"ingot.rebuild.{i}": piece for i, piece in enumerate(pieces)}


def make_again(run: Run, job: BuildJob, listed: FileEntry) -> Stage:
    """The stage of the file that was ``listed``; its value is as `make_target`'s. Raises
    SourceError if it was built from other weights."""
    allocation, recipe = listed.allocation, job.recipe
    assert allocation is not None, "see `find_listed`"
    assert recipe.target is not None
    if listed.source.hash != run.fingerprint.hash:
        raise SourceError(
            f"{recipe.name} was built from other files of {listed.source.name} than those in"
            f" {run.base.folder}: types that were chosen for one model keep no target for another"
        )
    maker, texts = maker_for(run, recipe)
    table = TypeTable((), 0, "")
    if recipe.format == ONNX:  # rounded by what the table says of input channels
        table = chosen_table(run, recipe, maker, texts.calibrate)
    metadata = described(recipe.target.name, allocation.types, allocation.rebuild)

    def make(folder: Path) -> dict[str, Any]:
        notes, route = maker.make(run, recipe, table, allocation.types, metadata, folder)
        made = {"notes": notes, "route": route, "runs_here": True, "imatrix": maker.used}
        return {**made, "allocation": asdict(allocation)}

    text = f"quantizing to {recipe.name} as listed"
    stage = run.stages.run("build", job.key, make, text, valid=is_build)
    run.progress.note(_compared(listed, stage, recipe, maker.used))
    return stage


def _compared(listed: FileEntry, stage: Stage, recipe: Recipe, used: str | None) -> str:
    """Whether it is the same file, and, if not, what may be why."""
    if {name: found.sha256 for name, found in stage.files.items()} == listed.sha256:
        return f"{recipe.name} is byte for byte the file that is listed"
    now = versions([recipe.format])
    why = [
        f"{name} was {was}, is {now.get(name, 'missing')}"
        for name, was in listed.tools.items()
        if now.get(name) != was
    ]
    if listed.imatrix != used:
        why.append("the importance matrix is another, from another text or processor")
    reasons = "; ".join(why) or "the same tools and text, on another machine"
    return f"{recipe.name} is not byte for byte the file that is listed: {reasons}"
