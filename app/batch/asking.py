"""What a job asks beside answers: options that contradict it, and a file that can do it."""

from collections.abc import Sequence
from dataclasses import fields, replace

from app.batch.spec import BatchSpec
from app.models.planning import plan_files
from app.options import ModelOptions, PlanOptions
from runtimes.errors import RequestError
from runtimes.machine.installed import find_installed
from runtimes.models.registry import backend_of, gives_embeddings


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
    if task == "classify" and others == ["choice"] and given.choice is not None:
        if len(set(given.choice)) < max(2, len(given.choice)) or not all(
            choice.strip() for choice in given.choice
        ):
            raise RequestError("--task classify needs two different --choice at least, none blank")
        return given.choice
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
