"""Checking and measuring each file; what was found is kept like the files themselves."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from quantize.build.run import Export, Measuring, Run
from quantize.children import PATIENT, run_child
from quantize.errors import CheckError, ToolError
from quantize.fromjson import from_json
from quantize.manifest import Fidelity, FileEntry, FileSpeeds, Quality, TokenParity
from quantize.quality import built_child, float_child
from quantize.quality.fidelity import CacheLosses, FloatReference, load_reference, require_quality
from quantize.quality.text import GradedQuestion, read_text
from quantize.quality.tokens import compare_built, require_parity
from quantize.recipes import FORMATS, Recipe
from quantize.stages import JsonObject, Stage, are_texts, stage_key, stage_version, versions
from runtimes.machine.cpu import available_cores, cpu_identity
from runtimes.machine.gpus import find_gpus
from runtimes.settings import KvType

_REFERENCE = "float-reference"  # the folder of the float model's distributions in their stage

_Measured = TypeVar("_Measured", Quality, Fidelity, FileSpeeds, CacheLosses)
_DEEP = 2048  # scored tokens at the end of long pieces


def plan_measuring(run: Run, questions: Sequence[GradedQuestion]) -> Measuring | None:
    """Plan of the measurements; None with --no-measure. Raises UsageError for a text that cannot be
    read."""
    options = run.options.measure
    if not options.enabled:
        return None
    text = read_measured(options.text, options.limit)
    if questions and run.base.kind == "gguf":
        run.progress.note("the graded questions are left out: the source has no float model to ask")
        questions = ()
    inputs = {
        "source": run.fingerprint.hash,
        "text": text,
        "questions": [asdict(question) for question in questions],
        "tools": versions(FORMATS),
        "machine": [cpu_identity(), available_cores(), [gpu.name for gpu in find_gpus()]],
        "stages": [stage_version(name) for name in ("reference", "fidelity", "speed", "tasks")],
    }
    return Measuring(text, stage_key("measure", inputs), questions)


def check(
    run: Run, recipe: Recipe, path: Path, sha256: Mapping[str, str]
) -> tuple[TokenParity | None, list[str]]:
    """Tokens, loading, one question. Raises TokenMismatchError or CheckError. Without an original
    tokenizer there is no figure for the first."""
    allowed, work = run.options.allow_token_mismatch, run.space.work

    def make(_folder: Path) -> JsonObject:
        what = f"loading {path.name} and asking it a question"
        try:
            run_child(partial(built_child.ask, path), what, work)
        except ToolError as error:
            raise CheckError(f"{error}\nNothing was published for it") from error
        if run.base.kind == "gguf":
            return {"parity": None, "notes": []}
        comparison = compare_built(path, run.reference, work)
        if not allowed:
            require_parity(comparison, path.name)
        notes = [comparison.note] if comparison.note else []
        run.show(notes)
        return {"parity": asdict(comparison.parity), "notes": notes}

    inputs = {**_file(recipe, sha256), "source": run.inputs, "allowed": allowed}
    text = f"checking {recipe.name}: tokens, load, one question"
    found = run.stages.run("check", stage_key("check", inputs), make, text, valid=_is_check).value
    parity = from_json(TokenParity, found["parity"]) if found["parity"] else None
    return parity, found["notes"]


def measure(
    run: Run, plan: Measuring, recipe: Recipe, path: Path, entry: FileEntry, *, gated: bool = True
) -> FileEntry:
    """``entry`` with all figures of its file, which lies at ``path``. Raises QualityError, before
    what takes longest, when it is further from the float model than its recipe allows, unless it
    is not ``gated`` or the user wants no gates."""
    name, inputs = recipe.name, _file(recipe, entry.sha256)
    fidelity = divergence(run, recipe, path, entry.sha256, know_original(run, plan), plan.text)
    if gated and run.options.measure.gates:
        require_quality(recipe, replace(entry, fidelity=fidelity).whole or fidelity)
    if run.options.measure.again:
        run.stages.drop("speed", stage_key("speed", inputs))
    call, text = partial(built_child.speed, path), f"measuring the speed of {name}"
    speed = _kept(run, "speed", inputs, text, FileSpeeds, call)
    quality = None
    if asked := plan.asked:
        inputs["questions"] = [asdict(question) for question in asked]
        text = f"asking {name} {len(asked)} graded questions"
        answer = partial(built_child.accuracy, path, asked)
        quality = _kept(run, "tasks", inputs, text, Quality, answer)
    return replace(entry, quality=quality, fidelity=fidelity, speed=speed, measurement=plan.key)


def divergence(
    run: Run,
    recipe: Recipe,
    path: Path,
    sha256: Mapping[str, str],
    reference: FloatReference,
    text: Mapping[str, Any],
    cache: KvType = "f16",
) -> Fidelity:
    """Divergence of the file at ``path``, with this type of keys and values, from the float model's
    ``reference`` over ``text``."""
    inputs = {**_file(recipe, sha256), "source": run.inputs, "text": text}
    what = f"comparing {recipe.name} with the float model"
    if cache != "f16":
        inputs["cache"], what = cache, f"{what}, with {cache} keys and values"
    call = partial(built_child.fidelity, path, reference, cache)
    return _kept(run, "fidelity", inputs, what, Fidelity, call)


@dataclass(frozen=True, slots=True)
class DeepReference:
    """The half-precision file's distributions at the end of long pieces of a text."""

    key: str
    found: FloatReference


def cache_losses(run: Run, export: Export, base: DeepReference) -> CacheLosses:
    """Divergences of the half-precision file itself with each type of keys, and of values."""
    what = "measuring the types of keys and values"
    inputs = {"reference": base.key, "kinds": built_child.SMALLER}
    call = partial(built_child.cache_losses, export.path, base.found)
    return _kept(run, "caches", inputs, what, CacheLosses, call)


def refer_deep(run: Run, export: Export, text: Path, context: int) -> DeepReference:
    """Distributions over pieces of ``context`` tokens, or of the text where that is shorter."""
    known = {"text": read_text(text, _DEEP).sha256, "limit": _DEEP, "window": context}
    key = stage_key("reference", {"file": export.sha256, "text": known, "with": versions(["gguf"])})
    what = f"running the float model over texts of {context:,} tokens"

    def refer(folder: Path) -> None:
        call = partial(built_child.refer, export.path, folder / _REFERENCE, text, _DEEP, context)
        run_child(call, what, run.space.work, run.progress, environment=PATIENT)

    stage = run.stages.run("reference", key, refer, what)
    return DeepReference(key, load_reference(stage.folder / _REFERENCE))


def read_measured(text: Path | None, limit: int) -> JsonObject:
    """Identity of a text that is measured on. Raises UsageError if it cannot be read."""
    return {"text": read_text(text).sha256, "limit": limit}


def refer_to(run: Run, text: Path | None, known: Mapping[str, Any]) -> FloatReference:
    """The float model's distributions over ``text``, which is ``known`` by `read_measured`."""
    source, limit = run.source, run.options.measure.limit
    inputs = {"source": run.inputs, "text": known, "tools": versions(["gguf"])}
    what = "running the float model over the text"

    def refer(folder: Path) -> None:
        call = partial(float_child.refer, source, folder / _REFERENCE, text, limit)
        is_hf = source.kind == "hf"
        run_child(call, what, run.space.work, run.progress, environment=PATIENT, torch=is_hf)

    stage = run.stages.run("reference", stage_key("reference", inputs), refer, what)
    return load_reference(stage.folder / _REFERENCE)


def know_original(run: Run, plan: Measuring) -> FloatReference:
    """Run the float model over the text and the questions, when this is first needed: what no
    runtime can use should fail before."""
    if plan.reference is not None:
        return plan.reference
    source = run.source
    tools = versions(["gguf"])
    inputs: JsonObject = {"source": run.inputs, "text": plan.text, "tools": tools}
    reference = refer_to(run, run.options.measure.text, plan.text)
    asked, quality = plan.questions, None
    if asked and not run.reference.chats:
        run.progress.note("the graded questions are left out: the tokenizer has no chat template")
        asked = ()
    if asked:
        inputs["questions"] = [asdict(question) for question in asked]
        text = f"asking the float model {len(asked)} graded questions"
        call = partial(float_child.accuracy, source, asked)
        quality = _kept(run, "float-tasks", inputs, text, Quality, call, torch=True)
    figures = {"quality": quality, "perplexity": reference.perplexity}
    run.space.describe(**figures, measurement=plan.key)
    plan.reference, plan.asked = reference, asked
    return reference


def _kept(
    run: Run,
    stage: str,
    inputs: Mapping[str, Any],
    text: str,
    kind: type[_Measured],
    call: Callable[[], _Measured],
    *,
    torch: bool = False,
) -> _Measured:
    """Return what ``call`` finds in a child process, or has found in an earlier run with the same
    inputs. Without ``torch`` it runs a file, on the devices that will run it."""
    # The GPUs that this process may use: files are measured where they will run.
    gpus = ",".join(str(gpu.index) for gpu in find_gpus())
    allowed = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", gpus)}
    environment = None if torch else allowed

    def found(_folder: Path) -> JsonObject:
        where = run.space.work, run.progress
        return asdict(run_child(call, text, *where, environment=environment, torch=torch))

    made = run.stages.run(
        *(stage, stage_key(stage, inputs), found, text),
        valid=lambda made: from_json(kind, made.value) is not None,
    )
    return from_json(kind, made.value)


def _is_check(stage: Stage) -> bool:
    if stage.value["parity"] is not None:
        from_json(TokenParity, stage.value["parity"])
    return are_texts(stage.value["notes"])


def _file(recipe: Recipe, sha256: Mapping[str, str]) -> JsonObject:
    return {"file": dict(sha256), "with": versions([recipe.format])}
