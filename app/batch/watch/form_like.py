"""Forms of jobs that were there before."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.adapters import name_and_path
from app.batch.spec import BatchSpec
from app.batch.watch.command import BatchCommand
from app.batch.watch.form import FIELDS, JobForm
from app.here import at_home

# Two fields have the option's plural as their name.
_FIELD_OF = {"choice": "choices", "json_schema": "schema"}
_NAMES = [*(name for name in FIELDS if name not in _FIELD_OF.values()), *_FIELD_OF]


def form_like(command: BatchCommand, here: Path) -> JobForm | None:
    """The form that would start a job anew from ``here``, with empty fields for what it leaves to
    the command; None when it was no job with an output file."""
    asked = command.asked()
    if asked is None:
        return None
    spec, usual = _from(asked, command.folder, here), BatchSpec("")
    texts: dict[str, Any] = {}
    left: dict[str, Any] = {"force": False, "fresh": False, "input": "", "output": None}
    for part in ("", "sampling", "constraints", "samples", "rows", "running"):
        group, plain = (getattr(one, part) if part else one for one in (spec, usual))
        fitting = {}
        for name in (name for name in _NAMES if hasattr(group, name)):
            text = _typed(getattr(group, name))
            if text is None:
                continue
            fitting[name] = getattr(plain, name)
            if getattr(group, name) != fitting[name]:
                texts[_FIELD_OF.get(name, name)] = text
        left |= {part: replace(group, **fitting)} if part else fitting
    return JobForm(**texts, rest=replace(spec, **left))


def _from(asked: BatchSpec, folder: Path, here: Path) -> BatchSpec:
    """With the paths of a job that ran in ``folder`` as they are ``here``."""

    def near(text: str) -> str:
        path = folder / at_home(text)
        return str(path.relative_to(here) if path.is_relative_to(here) else path)

    schema, template, model = asked.constraints.json_schema, asked.rows.template, asked.model or ""
    if schema is not None and not schema.lstrip().startswith("{"):
        schema = near(schema)
    named = map(name_and_path, asked.adapters.adapter or ())
    adapters = [f"{name}={near(str(path))}" for name, path in named]
    return replace(
        asked,
        input=near(asked.input),
        output=near(str(asked.output)),
        model=near(model) if os.path.exists(folder / model) else model,
        adapters=replace(asked.adapters, adapter=adapters or None),
        constraints=replace(asked.constraints, json_schema=schema),
        rows=replace(asked.rows, template=template and Path(near(str(template)))),
    )


def _typed(value: Any) -> str | None:
    """A value as one types it; None for what no line can hold."""
    if isinstance(value, list):
        return None if any("|" in text for text in value) else _typed(" | ".join(value))
    text = "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return None if "\n" in text else text
