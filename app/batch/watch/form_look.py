"""What is wrong with a form, checked as the command would check it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.batch.watch.command import BatchCommand, command_of
from app.batch.watch.form import FIELDS, OPTIONS, FormError, JobForm, values_of
from runtimes.errors import IngotError, ParameterError
from runtimes.request import SamplingParams

_PLACES = dict.fromkeys(("input", "output", "model"), "x")


def check(form: JobForm, folder: Path) -> BatchCommand:
    """The command of ``form`` after looking at its files: the input's beginning, the template, the
    model's description, the place of the output. Reads files; loads no model.

    Raises FormError for the first thing that is wrong.
    """
    for name, text in look(form, folder).items():
        raise FormError(name, text)
    return command_of(form.spec(), folder)


def look(form: JobForm, folder: Path) -> dict[str, str]:
    """All that is wrong with ``form`` and its files, by the names of the fields, in their order."""
    from app.batch.checks import check_out
    from app.batch.input.prompting import Prompting
    from app.batch.input.source import open_source
    from app.models.resolve import model_file

    errors = values_of(form)[1]
    # The rest is looked at in a form in which the wrong fields say nothing.
    said: dict[str, Any] = {name: _PLACES.get(name, "") for name in errors}
    spec = replace(form, **said).spec()
    asked = command_of(spec, folder).asked()
    assert asked is not None
    params, prompting = SamplingParams(), Prompting()
    with _at("max_tokens", errors):
        params = spec.samples.apply(spec.sampling.params())
    schema = spec.constraints.json_schema
    with _at("schema" if schema else "choices", errors):
        there = str(folder / schema) if schema and not schema.lstrip().startswith("{") else schema
        replace(spec.constraints, json_schema=there).constraint()
    with _at("template", errors):
        prompting = Prompting.from_options(asked.rows, params)
    if "input" not in errors:
        with (
            _at("input", errors),
            open_source(asked.input, prompting=prompting, limit=spec.rows.limit) as source,
            _at("output", errors),
        ):
            if "output" not in errors:
                check_out(Path(str(asked.output)), source, replace=form.fresh)
    if "model" not in errors:
        with _at("model", errors):
            model_file(_in(folder, str(spec.model)), spec.options)
    return {name: errors[name] for name in FIELDS if name in errors}


def in_words(text: str) -> str:
    """What the command says of its options, said of the fields."""
    for option, label in OPTIONS.items():
        text = re.sub(rf"--{option}(?![\w-])", f"“{label}”", text)
    return text


@contextmanager
def _at(field: str, errors: dict[str, str]) -> Iterator[None]:
    """What goes wrong here is an error of the field that it names itself, else of ``field``."""
    try:
        yield
    except (IngotError, OSError) as error:
        named = error.field if isinstance(error, ParameterError) else None
        errors.setdefault(named if named in FIELDS else field, in_words(str(error)))


def _in(folder: Path, model: str) -> str:
    """A model that is a path in ``folder``, or as it is: a name in the library."""
    path = folder / model
    return str(path) if path.exists() else model
