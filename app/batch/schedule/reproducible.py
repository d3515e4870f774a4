"""What a reproducible job holds fixed beside what is asked: it is told when that has changed."""

from dataclasses import replace
from typing import Any

from app.batch.schedule.engines import Count, placements
from app.models.planning import Choice
from runtimes.errors import RequestError
from runtimes.settings import PROMPT_CHUNK


def alike(choice: Choice, engines: Count, *, ray: bool) -> Choice:
    """The choice with the number of threads that every engine of the job has.

    Raises RequestError for a cluster, whose nodes may have other processors.
    """
    from runtimes.machine.cpu import available_cores

    if ray:
        raise RequestError(
            "--reproducible: the nodes of a cluster may have other processors, which compute other"
            " last digits; leave --ray or --reproducible out"
        )
    usual = choice.settings.threads or available_cores()
    threads = min(placement.threads or usual for placement in placements(engines, choice))
    return replace(choice, settings=replace(choice.settings, threads=threads))


def computing(choice: Choice) -> dict[str, Any]:
    """What the last digits depend on, beside the model, the type of its keys and values and the
    row: it goes into the journal's header."""
    from runtimes.machine.cpu import cpu_identity
    from runtimes.machine.installed import find_installed
    from runtimes.machine.selftest import ensure
    from runtimes.worker.recovery import DeathLimit, Recovery

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
        "context": settings.context,
        "step_tokens": settings.batch,
        "prompt_chunk": PROMPT_CHUNK,
    }
