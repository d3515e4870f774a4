"""A model's way through: source, export, quantize, check, measure, publish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from quantize.adapted import adapted_fingerprint
from quantize.errors import QualityError
from quantize.keys import build_key, imatrix_key, source_inputs, versions
from quantize.making import drop_export, make_file
from quantize.manifest import FileEntry, Manifest, ModelInfo
from quantize.measuring import (
    Figures,
    Measuring,
    check,
    measure,
    plan_measuring,
)
from quantize.options import Options
from quantize.progress import Reporter
from quantize.publish import open_publisher
from quantize.push import push
from quantize.quality.gates import require_quality
from quantize.quality.tasks import read_questions
from quantize.recipe import Recipe
from quantize.report.write import FILES, write_report
from quantize.requirements import require_fitting, require_room, require_sense, unlisted
from quantize.run import Job, Run
from quantize.source import SourceModel, open_source
from quantize.stages import Stages
from quantize.verify import is_whole
from quantize.workspace import Workspace, disk_errors


def build(options: Options, progress: Reporter) -> tuple[Path, Manifest]:
    """Build every recipe and publish each as soon as it is checked; the folder and its manifest.

    What an earlier run has finished is taken over: files in the folder whose bytes are the ones
    that it lists, and stages of a run that did not come to its end. Raises an IngotError that says
    what is wrong and what to do; QualityError, for files that are worse than their recipes allow,
    only after the others. Files that were published before an error stay, complete and listed.
    """
    require_sense(options)
    source = open_source(options.source, progress)
    options = _with_own_text(options, source)
    out = options.out or source.default_out
    require_fitting(options, source, out)
    questions = read_questions(source.graded) if options.measure.enabled and source.graded else ()
    require_room(out, options, source, unlisted(out, options))
    with disk_errors(out), Workspace(out) as space:
        run = _open(options, source, space, progress)
        plan = plan_measuring(run, questions)
        jobs = [_job(run, recipe) for recipe in options.recipes]
        require_room(out, options, source, [job.recipe for job in jobs if job.entry is None])
        before = run.publisher.manifest
        bad = _finish_all(run, plan, jobs)
        _report(run, before)
        if bad:
            raise QualityError("\n".join(map(str, bad)))
    if options.push is not None:
        progress.note(f"uploaded to {push(out, options.push, progress)}")
    return out, run.publisher.manifest


def _with_own_text(options: Options, source: SourceModel) -> Options:
    """Measure on the text that came with the model, unless the user names another."""
    if options.measure.text is not None or source.evaluation is None:
        return options
    return replace(options, measure=replace(options.measure, text=source.evaluation))


def _open(options: Options, source: SourceModel, space: Workspace, progress: Reporter) -> Run:
    with progress.stage("reading the model"):
        fingerprint = adapted_fingerprint(source, options.source.lora, progress)
    inputs = source_inputs(source, fingerprint)
    stages = Stages(space.stages, fingerprint.hash, fresh=options.fresh)
    model = ModelInfo(source.name, source.architecture, source.parameters, bytes=source.bytes)
    publisher = open_publisher(space, model)
    return Run(options, source, fingerprint, inputs, space, stages, publisher, progress)


def _job(run: Run, recipe: Recipe) -> Job:
    """What is to be done for ``recipe``: nothing to build if the file is there, byte for byte."""
    matrix = imatrix_key(run.inputs, recipe, run.options)
    job = Job(recipe, build_key(run.inputs, recipe, run.options), matrix)
    entry = run.publisher.manifest.entry(recipe.name)
    if entry is None or entry.inputs != job.key or run.options.fresh:
        return job
    with run.progress.stage(f"comparing {entry.path} with its checksum"):
        whole = is_whole(run.space.out, entry)
    if whole:
        job.entry = entry
        run.progress.note(f"{entry.path} is already built (--fresh builds it again)")
    else:
        run.progress.note(f"{entry.path} is not as it was built, and is built again")
    return job


def _is_measured(plan: Measuring, job: Job) -> bool:
    return job.entry is not None and job.entry.measured == plan.key(job.recipe, job.entry.sha256)


def _finish_all(run: Run, plan: Measuring | None, jobs: Sequence[Job]) -> list[QualityError]:
    """GGUF files first: all are made from one export, which then goes. Returns what was not
    published because it is too far from the original: the others may be good."""
    bad: list[QualityError] = []
    gguf = [job for job in jobs if job.recipe.format == "gguf"]
    onnx = [job for job in jobs if job.recipe.format == "onnx"]
    for job in [*gguf, *onnx]:
        try:
            if job.entry is None:
                _build(run, plan, job)
            elif plan is not None:
                _measure_published(run, plan, job.entry, job)
        except QualityError as error:
            run.progress.note(str(error).splitlines()[0])
            bad.append(error)
        if gguf and job is gguf[-1]:
            drop_export(run)
    return bad


def _build(run: Run, plan: Measuring | None, job: Job) -> None:
    """Make, check, measure, publish, record."""
    made, stage = make_file(run, job)
    sha256 = {name: found.sha256 for name, found in stage.files.items()}
    parity, notes, figures = None, list[str](), Figures()
    if stage.value["runs_here"]:
        parity, notes = check(run, job.recipe, made, sha256)
        if plan is not None:
            figures = measure(run, plan, job.recipe, made, sha256)
    entry = FileEntry(
        format=job.recipe.format,
        recipe=job.recipe.name,
        bits=job.recipe.bits,
        path=made.name,
        bytes=sum(found.bytes for found in stage.files.values()),
        sha256=sha256,
        source=run.fingerprint,
        tools=versions([job.recipe.format]),
        token_parity=parity,
        notes=(*stage.value["notes"], *notes),
        route=stage.value["route"],
        inputs=job.key,
        imatrix=stage.value["imatrix"],
    )
    job.entry = figures.entered(entry)
    run.publisher.publish(job.entry, made)
    run.stages.drop("build", job.key)
    run.progress.published(run.space.out, job.entry)


def _measure_published(run: Run, plan: Measuring, entry: FileEntry, job: Job) -> None:
    """A file that an earlier run has built: only measure it, if it was not, or otherwise."""
    if not _is_measured(plan, job):
        figures = measure(run, plan, job.recipe, run.space.out / entry.path, entry.sha256)
        entry = job.entry = figures.entered(entry)
        run.publisher.update(entry)
    if run.options.measure.gates and entry.fidelity:
        require_quality(job.recipe, entry.fidelity)


def _report(run: Run, before: Manifest) -> None:
    """The report and the model card beside the files, unless they are there and nothing is new."""
    manifest, out = run.publisher.manifest, run.space.out
    there = all((out / name).is_file() for name in FILES)
    if manifest.files and (manifest != before or not there):
        with run.progress.stage("writing the report"):
            write_report(out, manifest, run.space.work)
