"""Forms to begin with: those that were saved under a name, and those of earlier jobs.

The saved ones are the command lines of ``batch-presets.json`` in the config folder, without input
and output.
"""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.batch.journal.journal import journal_path
from app.batch.spec import BatchSpec
from app.batch.watch.command import BatchCommand, command_from, command_of
from app.batch.watch.form import FIELDS, JobForm, form_like
from app.batch.watch.records import last_run, records
from quantize.disk import write_atomically
from runtimes.errors import RequestError
from runtimes.machine.locks import one_writer
from runtimes.paths import config_dir
from runtimes.untrusted import load_json

_PLACE = "-"  # of an input and output that are not told


@dataclass(frozen=True, slots=True)
class JobPreset:
    """``at`` is when the job was started or looked at last (Unix seconds), None for a saved one."""

    name: str
    form: JobForm
    at: float | None = None


def presets(here: Path) -> list[JobPreset]:
    """The saved ones by their names, then those of earlier jobs, the latest first. Paths are as
    they are ``here``. Reads journals: call it in a thread."""
    found = []
    for name, said in sorted(_saved().items()):
        command = command_from(["batch", "in", "out", *said["arguments"]], said.get("folder"))
        form = None if command is None else form_like(command, here)
        if form is not None:
            found.append(JobPreset(name, replace(form, input="", output="")))
    for record in records():
        known = record.command or _command(record.output)
        form = None if known is None else form_like(known, here)
        if form is not None and record.command is None:
            form = replace(form, rest=_without_reach(form.rest))
        if form is not None:
            found.append(JobPreset(form.output, form, record.at))
    return found


def _without_reach(rest: BatchSpec | None) -> BatchSpec | None:
    """Options for which a form has no field, as a journal from anywhere says them: without those
    that reach beyond the output."""
    if rest is None:
        return None
    out, running = replace(rest.out, report=None), replace(rest.running, ray=None)
    return replace(rest, out=out, running=running)


def save(name: str, form: JobForm, here: Path) -> None:
    """Keep all but input and output. Raises FormError for what no job can have, RequestError when
    it cannot be written."""
    spec = replace(form, input="in", output="out", fresh=False).spec()
    arguments = command_of(spec, here).arguments[3:]
    kept = {"arguments": list(arguments), "folder": str(here)}
    _change(lambda saved: {**saved, name: kept})


def forget(name: str) -> None:
    """Drop a saved one. Raises RequestError when that cannot be written."""
    _change(lambda saved: {other: said for other, said in saved.items() if other != name})


def summary(form: JobForm) -> str:
    """What it says beside input, output and model."""
    parts = [
        f"{FIELDS[name]['label'].lower()} {text}"
        for name in FIELDS
        if name not in ("input", "output", "model") and (text := getattr(form, name))
    ]
    return " · ".join([*parts, *filter(None, [beside(form)])])


def beside(form: JobForm) -> str:
    """The options for which the form has no field, as one types them."""
    if form.rest is None:
        return ""
    spec = replace(form.rest, input=_PLACE, output=_PLACE)
    return shlex.join(command_of(spec, Path()).arguments[3:])


def _command(output: Path) -> BatchCommand | None:
    run = last_run(journal_path(output)).run or {}
    return command_from(run.get("command"), run.get("folder"))


def _path() -> Path:
    return config_dir() / "batch-presets.json"


def _saved() -> dict[str, Any]:
    try:
        saved = _read()
    except (OSError, ValueError):
        return {}
    return {
        name: said
        for name, said in saved.items()
        if isinstance(said, dict) and isinstance(said.get("arguments"), list)
    }


def _read() -> dict[str, Any]:
    """Raises OSError, and ValueError for a file that is damaged."""
    try:
        saved = load_json(_path())
    except FileNotFoundError:
        return {}
    if not isinstance(saved, dict):
        raise ValueError("it is no JSON object")
    return saved


def _change(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Write what ``change`` makes of all that is saved, which nobody else changes meanwhile. What
    cannot be read stays as it is. Raises RequestError."""
    path = _path()
    try:
        with one_writer(path.parent):
            write_atomically(path, json.dumps(change(_read()), indent=2) + "\n")
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror or error}") from error
    except ValueError as error:
        raise RequestError(f"{path} is damaged; move it away first: {error}") from error
