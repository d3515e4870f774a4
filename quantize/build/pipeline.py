"""A model's way through: source, export, quantize, check, measure, publish."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from quantize.allocate.measure import calibration_text
from quantize.build.measuring import check, measure, plan_measuring
from quantize.build.preflight import require_fitting, require_room, require_sense, unlisted
from quantize.build.run import BuildJob, Run, make_file
from quantize.build.target import make_target
from quantize.build.workspace import Workspace, disk_errors
from quantize.errors import (
    DiskFullError,
    QualityError,
    TokenMismatchError,
    UnfinishedError,
    first_line,
)
from quantize.fromjson import from_json
from quantize.hub.transfer import push
from quantize.lora import adapted_fingerprint
from quantize.manifest import Allocation, FileEntry, Manifest, ModelInfo, is_whole
from quantize.options import Options
from quantize.progress import Reporter
from quantize.quality.fidelity import require_quality
from quantize.quality.text import BUNDLED, read_questions
from quantize.recipes import FORMATS, ONNX, Recipe, bits_per_weight, known_recipe
from quantize.report.write import FILES, write_report
from quantize.source import SourceModel, open_source
from quantize.stages import Stages, build_key, export_key, source_inputs, versions
from runtimes.errors import IngotError, ModelError, OutOfMemoryError
from runtimes.untrusted import is_link


def build(options: Options, progress: Reporter) -> tuple[Path, Manifest]:
    """Build every recipe and publish each as soon as it is checked; the folder and its manifest.

    What an earlier run has finished is taken over: files in the folder whose bytes are the ones
    that it lists, and stages of a run that did not come to its end. Raises an IngotError that says
    what is wrong and what to do. One that concerns single files comes only after the others, which
    stay, complete and listed: QualityError for those that are worse than their recipes allow,
    UnfinishedError where there are several reasons.
    """
    require_sense(options)
    source = open_source(options.source, progress)
    if options.measure.text is None:  # the one that came with the model, if any
        options = replace(options, measure=replace(options.measure, text=source.evaluation))
    out = options.out or source.default_out
    require_fitting(options, source, out)
    questions = read_questions(source.graded) if options.measure.enabled and source.graded else ()
    require_room(out, options, source, unlisted(out, options))
    with disk_errors(out), Workspace(out) as space:
        run = _open(options, source, space, progress)
        run.plan = plan_measuring(run, questions)
        jobs = [_job(run, recipe) for recipe in options.recipes]
        require_room(out, options, source, [job.recipe for job in jobs if job.entry is None])
        before = run.space.manifest
        failed = _finish_all(run, jobs)
        _report(run, before)
        if failed:
            raise _summary(failed, len(jobs))
    if options.push is not None:
        progress.note(f"uploaded to {push(out, options.push, progress)}")
    return out, run.space.manifest


def _open(options: Options, source: SourceModel, space: Workspace, progress: Reporter) -> Run:
    with progress.stage("reading the model"):
        progress.step("computing the checksum of its files")
        fingerprint = adapted_fingerprint(source, options.source.lora, progress)
    inputs = source_inputs(source, fingerprint)
    stages = Stages(space.stages, fingerprint.hash, fresh=options.fresh, progress=progress)
    model = ModelInfo(source.name, source.architecture, source.parameters, bytes=source.bytes)
    model = replace(model, quantized=source.quantized)
    space.open(model)
    return Run(options, source, fingerprint, inputs, space, stages, progress)


def _job(run: Run, recipe: Recipe) -> BuildJob:
    """Job for ``recipe``: nothing to build if the file is there, byte for byte."""
    final = run.options.measure.text or BUNDLED
    given = calibration_text(run.options, run.base)
    texts = (given, final) if recipe.target else (given,) if run.options.gptq else ()
    job = BuildJob(recipe, build_key(run.inputs, recipe, run.options, texts))
    entry = run.space.manifest.entry(recipe.name)
    if entry is not None and entry.inputs == job.key and not run.options.fresh:
        if _is_whole(run, entry):
            job.entry = _with_bits(run, entry)
            run.progress.note(f"{entry.path} is already built (--fresh builds it again)")
            return job
        run.progress.note(f"{entry.path} is not as it was built, and is built again")
    run.space.place(recipe.output_name(run.base.name))  # refused now, not after the work
    return job


def _finish_all(run: Run, jobs: Sequence[BuildJob]) -> dict[str, IngotError]:
    """GGUF files first: all are made from one export, which is deleted once nothing needs it, nor
    its importance matrix. Returns what went wrong, by recipe: what one file or one format lacks,
    the others may have. A full disk ends it all."""
    failed: dict[str, IngotError] = {}
    ordered = sorted(jobs, key=lambda job: FORMATS.index(job.recipe.format))
    weighed = run.options.imatrix is not None
    users = [j for j in ordered if j.recipe.format != ONNX or (weighed and j.recipe.is_weighed)]
    for job in ordered:
        try:
            if job.entry is None:
                _build(run, job)
            else:
                _measure_published(run, job, job.entry)
        except DiskFullError:
            raise
        except (ModelError, OutOfMemoryError) as error:
            first = first_line(error)
            done = "measured" if job.entry else "built"
            told = isinstance(error, QualityError)  # it begins with the recipe
            run.progress.note(first if told else f"{job.recipe.name} is not {done}: {first}")
            failed[job.recipe.name] = error
        # The next run, with --allow-token-mismatch, would need the export again.
        mismatched = any(isinstance(error, TokenMismatchError) for error in failed.values())
        if users and job is users[-1] and not mismatched:
            run.stages.drop("export", export_key(run.inputs))
    _measure_others(run, jobs)
    return failed


def _summary(failed: Mapping[str, IngotError], asked: int) -> IngotError:
    """All that went wrong as one error; a reason that several files share is told once."""
    recipes: dict[str, list[str]] = {}
    for recipe, error in failed.items():
        recipes.setdefault(str(error), []).append(recipe)
    errors = list(failed.values())
    if all(isinstance(error, QualityError) for error in errors):
        return type(errors[0])("\n".join(recipes))
    if len(recipes) == 1 and len(failed) == asked:
        return errors[0]
    reasons = "\n".join(f"{', '.join(names)}: {text}" for text, names in recipes.items())
    return UnfinishedError(
        f"{len(failed)} of {asked} files could not be finished; the others are there.\n{reasons}",
        errors[0].exit_code,
    )


def _build(run: Run, job: BuildJob) -> None:
    """Make, check, measure, publish, record."""
    recipe = job.recipe
    stage = make_target(run, job, recipe.target) if recipe.target else make_file(run, job)
    made = stage.folder / recipe.output_name(run.base.name)
    sha256 = stage.sha256
    parity, notes, runs_here = None, list[str](), bool(stage.value["runs_here"])
    if runs_here:
        try:
            parity, notes = check(run, recipe, made, sha256)
        except ModelError as error:
            if run.options.target == "cpu":
                raise
            # Some graphs for GPUs have operators that only GPUs have.
            runs_here, notes = False, [f"not measured here: {first_line(error)}"]
            run.show(notes)
        else:
            if run.plan and recipe.format == ONNX and run.options.target != "cpu":
                notes = [*notes, "measured on the processor: the speed says nothing of a GPU"]
    given = stage.value.get("allocation")
    stored = bits_per_weight(made, run.base.parameters)
    entry = FileEntry(
        format=recipe.format,
        recipe=recipe.name,
        bits=min(recipe.bits, int(stored)) if recipe.target else recipe.bits,
        path=made.name,
        bytes=stage.bytes,
        sha256=sha256,
        source=run.fingerprint,
        tools=versions([recipe.format]),
        token_parity=parity,
        notes=(*stage.value["notes"], *notes),
        route=stage.value["route"],
        inputs=job.key,
        imatrix=stage.value["imatrix"],
        bits_per_weight=stored,
        allocation=from_json(Allocation, given) if given else None,
    )
    if run.plan and runs_here:
        entry = measure(run, run.plan, recipe, made, entry)
    job.entry = entry
    with run.progress.stage(f"writing {made.name} to the disk"):
        run.space.publish(job.entry, made)
    run.stages.drop("build", job.key)
    run.progress.published(run.space.out, job.entry)


def _measure_published(run: Run, job: BuildJob, entry: FileEntry) -> None:
    """A file that an earlier run has built: only measure it, if it was not, or otherwise."""
    if run.plan is None:
        return
    if entry.measurement != run.plan.key or run.options.measure.again:
        path = run.space.out / entry.path
        entry = job.entry = measure(run, run.plan, job.recipe, path, entry)
        run.space.update(entry)
    if run.options.measure.gates and entry.whole:
        require_quality(job.recipe, entry.whole)


def _measure_others(run: Run, jobs: Sequence[BuildJob]) -> None:
    """Files of earlier runs whose figures are of another measurement are measured again, so that
    all can be compared. What cannot be measured keeps its figures, which are shown apart."""
    plan = run.plan
    if plan is None or run.space.manifest.model.measurement != plan.key:
        return  # nothing was measured in this way
    asked = {job.recipe.name for job in jobs}
    for entry in run.space.manifest.files:
        if entry.recipe in asked or not entry.fidelity or entry.measurement == plan.key:
            continue
        recipe = known_recipe(entry.recipe)
        if recipe is None or entry.source.hash != run.fingerprint.hash:
            why = "it was built from another model"
        elif not _is_whole(run, entry):
            why = "its bytes are not those that were built"
        else:
            run.progress.note(f"{entry.recipe} was measured otherwise, and is measured again")
            path = run.space.out / entry.path
            try:
                known = _with_bits(run, entry)
                run.space.update(measure(run, plan, recipe, path, known, gated=False))
                continue
            except ModelError as error:
                why = first_line(error)
        run.progress.note(f"{entry.recipe} keeps figures of another measurement: {why}")


def _with_bits(run: Run, entry: FileEntry) -> FileEntry:
    """``entry``, listed with what its file stores for a weight if an older program did not say."""
    if entry.bits_per_weight is None:
        bits = bits_per_weight(run.space.out / entry.path, run.base.parameters)
        entry = replace(entry, bits_per_weight=bits)
        run.space.update(entry)
    return entry


def _is_whole(run: Run, entry: FileEntry) -> bool:
    with run.progress.stage(f"comparing {entry.path} with its checksum"):
        return is_whole(run.space.out, entry)


def _report(run: Run, before: Manifest) -> None:
    """The report and the model card beside the files, unless they are there and nothing is new."""
    manifest, out = run.space.manifest, run.space.out
    there = all((out / name).is_file() and not is_link(out / name) for name in FILES)
    if manifest.files and (manifest != before or not there):
        with run.progress.stage("writing the report"):
            write_report(out, manifest, run.space.work)
