"""A job from what is said of it to its exit code: what `ingot batch` does."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path

from app import console
from app.batch.input.prompting import Prompting
from app.batch.input.source import Shard, open_source
from app.batch.interrupt import sigterm_as_ctrl_c
from app.batch.journal.journal import journal_path
from app.batch.report.figures import JobFigures, check_report, write_report
from app.batch.report.progress import Progress
from app.batch.runner import run_to_file, run_to_stdout
from app.batch.schedule.engines import Count, JobPlan, parse_count, placements
from app.batch.settings import JobSettings
from app.batch.spec import TEST_ROWS, TEST_TOKENS, BatchSpec
from app.exitcodes import ExitCode
from app.models.planning import LoadChoice, choose, plan_files
from app.models.prefixes import shared_prefixes
from app.options import ModelOptions, PlanOptions
from app.prompts import PromptStyle, clean_argument
from runtimes.errors import RequestError
from runtimes.machine.cpu import available_cores, cpu_identity
from runtimes.machine.installed import find_installed
from runtimes.machine.selftest import ensure
from runtimes.models.modelfile import fingerprint
from runtimes.models.registry import backend_of, gives_embeddings
from runtimes.settings import PROMPT_CHUNK
from runtimes.untrusted import JsonObject
from runtimes.worker.recovery import DeathLimit, Recovery

# What a job asks beside answers: options that contradict it, and a file that can do it.


def check_task(spec: BatchSpec) -> Sequence[str] | None:
    """The labels of a job that has them for all rows. Raises RequestError for options that say
    something else than its --task."""
    task, given = spec.rows.task, spec.constraints
    if spec.rows.dimensions is not None and task != "embed":
        raise RequestError("--dimensions is for --task embed")
    if task == "generate":
        return None
    others = [one.name for one in fields(given) if getattr(given, one.name)]
    if spec.rows.json_schema_field is not None:
        others.append("json_schema_field")
    if task == "classify" and others == ["choice"] and (choices := given.choice):
        if len({choice for choice in choices if choice.strip()}) < max(2, len(choices)):
            raise RequestError("--task classify needs two different --choice at least, none blank")
        return choices
    if others:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise RequestError(f"--task {task} generates nothing: leave {flags} out")
    return None


def embedding_file(model: str, options: ModelOptions, settings: PlanOptions) -> ModelOptions:
    """``options`` that name a file of ``model`` that gives embeddings, unless they name one
    already. Raises RequestError where there is none."""
    files = plan_files(model, options, settings.bits).models
    able = [file for file in files if gives_embeddings(file) and find_installed(file.runtime)]
    if not able:
        names = ", ".join(f"{file.path.name} ({backend_of(file).label})" for file in files)
        raise RequestError(
            f"no file of {model} gives embeddings: {names}; ONNX graphs and rerankers give none"
        )
    named = options.recipe is not None or options.file is not None or len(files) == 1
    return options if named else replace(options, file=able[0].path.name)


def run_batch(
    spec: BatchSpec,
    *,
    as_json: bool = False,
    quiet: bool = False,
    write: Callable[[bytes], object] = console.emit_bytes,
    to_file: Callable[..., JobFigures] = run_to_file,
) -> ExitCode:
    """Answer every row, and say what happens: as JSON lines on stdout, or as a bar and figures on
    stderr unless ``quiet``. ``write`` takes the records of a job without an output file, and
    ``to_file`` does one that has one.

    Raises IngotError; what was answered is in the journal then.
    """
    model, output, rows, out, running = spec.model, spec.output, spec.rows, spec.out, spec.running
    on_ray = running.ray is not None
    if model is None:
        raise RequestError("name the model: ingot batch IN OUT --model MODEL")
    if output is None and not (spec.test or rows.dry_run):
        raise RequestError("name the output too: ingot batch IN OUT --model MODEL (- for stdout)")
    asked, to_stdout = spec, spec.test or output == "-"
    if to_stdout and not rows.dry_run:
        if as_json:
            raise RequestError("--json prints the figures to stdout, where the records go already")
        if out.unordered:
            raise RequestError("--unordered needs an output file that can be resumed, not stdout")
    if out.report is not None:
        check_report(out.report, _used(spec))
    params = spec.samples.apply(spec.sampling.params())
    labels = check_task(spec)
    params = replace(params, constraint=None if labels else spec.constraints.constraint())
    if spec.test:
        params = replace(params, max_tokens=min(params.max_tokens, TEST_TOKENS))
        rows = replace(rows, limit=min(rows.limit or TEST_ROWS, TEST_ROWS))
    if spec.adapters.adapter and (on_ray or rows.task == "embed"):
        other = "--ray" if on_ray else "--task embed"
        raise RequestError(
            f"{other} has no adapters: leave --adapter out, or merge it into the model"
        )
    if on_ray:
        from app.batch.schedule.cluster import require_ray

        require_ray()
    engines = parse_count(running.engines or ("auto" if on_ray else "1"))
    prompting = Prompting.from_options(
        rows, params, TEST_TOKENS if spec.test else None, labels=labels, raw=spec.raw
    )
    style = PromptStyle(clean_argument(spec.system, console.note), spec.raw)
    if rows.task == "embed":  # which takes no slot
        options = embedding_file(model, spec.options, spec.engine)
        spec = replace(spec, options=options, slots=spec.slots or 1)
    choice = choose(
        model,
        spec.options,
        spec.engine,
        "batch",
        spec.slots,
        reproducible=spec.reproducible,
        adapters=spec.adapters.adapter,
    )
    adapters = {one.name: one for one in choice.adapters}
    only = choice.adapters[0] if len(adapters) == 1 else None
    prompting = replace(prompting, adapters=adapters, adapter=only)
    if rows.task in ("score", "classify"):
        choice.file.require_writer()
    if spec.reproducible:
        choice = _alike(choice, engines, ray=on_ray)
    file = choice.file
    with console.doing(f"reading {file.path.name} for its checksum", quiet=quiet):
        checksum = fingerprint(file)
    settings = JobSettings(
        model=file.path.name,
        runtime=file.runtime,
        fingerprint=checksum,
        sampling=params,
        system=style.system,
        raw=style.raw,
        context=spec.options.context,
        kv_type=choice.settings.kv_type,
        rope=choice.settings.rope,
        task=rows.task,
        computing=_computing(choice) if spec.reproducible else None,
        adapters={one.name: one.digest for one in choice.adapters} or None,
    )
    shard = None if out.shard is None else Shard.parse(out.shard)
    opening = open_source(spec.input, prompting, shard=shard, digest=settings.digest())
    with (
        sigterm_as_ctrl_c(),
        console.doing("reading the input", quiet=quiet) as opened,
        opening as source,
    ):
        opened()
        plan = JobPlan(spec, source, choice, settings, engines, shared_prefixes())
        if rows.dry_run:
            from app.batch.dryrun import dry_run

            looked = dry_run(plan, console.note)
            console.emit(json.dumps(looked.as_json()) + "\n" if as_json else looked.as_text())
            return ExitCode.ROWS_FAILED if looked.invalid else ExitCode.DONE
        if rows.strict:
            from app.batch.dryrun import measure

            measure(plan, console.note)  # whether each row fits
        shared_terminal = (to_stdout or as_json) and sys.stdout.isatty()
        emit = console.emit if as_json else None
        progress = Progress(quiet=quiet, bar=not shared_terminal, emit=emit)
        if to_stdout:
            summary = run_to_stdout(plan, progress, write)
        else:
            summary = to_file(plan, Path(str(output)), progress, asked=asked)
        if out.report is not None:
            to = str(output or "-")
            write_report(out.report, summary, settings, input=spec.input, output=to)
        progress.event("end", summary.end_json())
        if not quiet:
            for line in summary.end_lines():
                console.note(line)
            if not (to_stdout or summary.slots or summary.ended):
                console.note(f"{output} is up to date: no row needed the model")
        if summary.ended is not None and not to_stdout:
            console.note("stopped early; the same command resumes from here")
        if summary.ended == "signal":
            return ExitCode.INTERRUPTED
        if summary.failed or summary.unfinished:
            return ExitCode.ROWS_FAILED
    return ExitCode.DONE


def _used(spec: BatchSpec) -> dict[str, Path]:
    """The files of a job that nothing else may be written to, by what messages call them."""
    out = Path(spec.output or "-")
    used = {"the model": Path(str(spec.model)), "IN": Path(spec.input), "OUT": out}
    used["the journal of OUT"] = journal_path(out)
    return used


def _alike(choice: LoadChoice, engines: Count, *, ray: bool) -> LoadChoice:
    """The choice with the number of threads that every engine of the job has.

    Raises RequestError for a cluster, whose nodes may have other processors.
    """
    if ray:
        raise RequestError(
            "--reproducible: the nodes of a cluster may have other processors, which compute other"
            " last digits; leave --ray or --reproducible out"
        )
    usual = choice.settings.threads or available_cores()
    threads = min(placement.threads or usual for placement in placements(engines, choice))
    return replace(choice, settings=replace(choice.settings, threads=threads))


def _computing(choice: LoadChoice) -> JsonObject:
    """Return all that an answer's last digits depend on, beside the model, the type of its keys and
    values and the row: it goes into the journal's header."""
    file = choice.file
    settings = Recovery(file.path, choice.settings, DeathLimit()).settings()
    installed = find_installed(file.runtime)
    return {
        "processor": cpu_identity(),
        "threads": settings.threads,
        "version": installed.version if installed else None,
        "library": installed.identity if installed else None,
        "special_kernels": settings.extra_buffers and ensure(file.runtime).extra_buffers,
        "gpu_layers": settings.gpu_layers,
        "device": settings.device,
        "context": settings.context,
        "step_tokens": settings.batch,
        "prompt_chunk": PROMPT_CHUNK,
    }
