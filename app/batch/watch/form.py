"""What a user fills in to start a job, checked as the command would check it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.batch.spec import WORDS, BatchSpec, InputOptions, SampleOptions
from app.batch.watch.command import Command, command_of
from app.options import ConstraintOptions, ModelOptions, SamplingOptions
from runtimes.errors import IngotError, ParameterError
from runtimes.settings import MOST_SLOTS


class FormError(ParameterError):
    """A value that cannot be used; ``field`` is the name of the form's field that holds it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message, field)

    @classmethod
    def of(cls, error: Exception, field: str) -> FormError:
        """``error`` at the field that it names itself, else at ``field``."""
        return cls(error.field if isinstance(error, ParameterError) else field, str(error))


@dataclass(frozen=True, slots=True)
class JobForm:
    """Texts as they were typed; an empty one leaves the choice to the command. ``choices`` are
    separated by |, ``schema`` is a file, ``n`` answers are made for each row. ``fresh`` drops the
    answers that the output has."""

    input: str = ""
    output: str = ""
    model: str = ""
    field: str = ""
    template: str = ""
    system: str = ""
    max_tokens: str = ""
    temperature: str = ""
    limit: str = ""
    slots: str = ""
    top_p: str = ""
    seed: str = ""
    n: str = ""
    choices: str = ""
    schema: str = ""
    fresh: bool = False

    def spec(self) -> BatchSpec:
        """The job. Raises FormError for what no job can have; see ``check`` for what the files
        say."""
        for name in ("input", "output", "model"):
            if not getattr(self, name).strip():
                raise FormError(name, _MISSING[name])
        if self.input.strip() == "-" or self.output.strip() == "-":
            raise FormError("input", "standard input and output belong to the terminal; name files")
        if self.field.strip() and self.template.strip():
            raise FormError("template", "a field and a template both make the prompt; give one")
        if self.choices.strip() and self.schema.strip():
            raise FormError("schema", "choices and a schema both say what an answer is; give one")
        whole = {
            name: _whole(name, text, *bounds)
            for name, bounds in _BOUNDS.items()
            if (text := getattr(self, name).strip())
        }
        numbers: dict[str, Any] = {
            name: _number(name, text)
            for name in ("temperature", "top_p")
            if (text := getattr(self, name).strip())
        }
        numbers |= {name: whole[name] for name in ("max_tokens", "seed") if name in whole}
        template, schema = self.template.strip(), self.schema.strip()
        return BatchSpec(
            _path(self.input),
            _path(self.output),
            self.model.strip(),
            system=self.system.strip() or None,
            slots=whole.get("slots"),
            fresh=self.fresh,
            sampling=SamplingOptions(**numbers),
            constraints=ConstraintOptions(
                json_schema=str(Path(schema).expanduser()) if schema else None,
                choice=self._choices() or None,
            ),
            samples=SampleOptions(n=whole.get("n", 1)),
            rows=InputOptions(
                field=self.field.strip() or None,
                template=Path(template) if template else None,
                limit=whole.get("limit"),
            ),
        )

    def _choices(self) -> list[str]:
        return [text for part in self.choices.split("|") if (text := part.strip())]


_BOUNDS: dict[str, tuple[int, int | None]] = {
    "max_tokens": (1, None),
    "limit": (1, None),
    "slots": (1, MOST_SLOTS),
    "seed": (0, None),
    "n": (1, None),
}
_MISSING = {
    "input": "choose a file of prompts, or a folder of texts",
    "output": "name the file that the answers go to, such as answers.jsonl",
    "model": "name a model: a folder that quantize wrote, a .gguf file, or a name in the library",
}
_LABELS = {"max_tokens": "max tokens", "limit": "rows", "top_p": "top-p", "n": "answers a row"}


def suggested_output(input: str) -> str:
    """A name for the output beside the input: ``prompts.jsonl`` gives ``prompts.out.jsonl``."""
    text = input.strip().rstrip("/")
    if not text:
        return ""
    path = Path(text)
    while path.suffix.lower() in (".gz", ".zst", ".zstd"):
        path = path.with_suffix("")
    suffix = path.suffix.lower() if path.suffix.lower() in (".csv", ".parquet") else ".jsonl"
    return str(path.with_name(f"{path.stem}.out{suffix}"))


def check(form: JobForm, folder: Path) -> Command:
    """The command of ``form`` after looking at its files: the input's beginning, the template, the
    model's description, the place of the output. Reads files; loads no model.

    Raises FormError.
    """
    from app.batch.checks import check_out
    from app.batch.input.source import open_source
    from app.models.resolve import model_file

    spec = form.spec()
    command = command_of(spec, folder)
    asked = command.asked()
    if asked is None or asked.input is None:
        raise FormError("input", "this is not a job with an output file")
    try:
        params = spec.samples.apply(spec.sampling.params())
    except IngotError as error:
        raise FormError.of(error, "max_tokens") from error
    schema = spec.constraints.json_schema
    try:
        replace(spec.constraints, json_schema=str(folder / schema) if schema else None).constraint()
    except IngotError as error:
        raise FormError("schema" if schema else "choices", str(error)) from error
    try:
        prompting = asked.spec.rows.prompting(params)
    except (IngotError, OSError) as error:
        raise FormError("template", str(error)) from error
    try:
        with open_source(str(asked.input), prompting=prompting, limit=spec.rows.limit) as source:
            try:
                check_out(asked.output, source, replace=form.fresh)
            except IngotError as error:
                raise FormError("output", str(error)) from error
    except (IngotError, OSError) as error:
        raise FormError.of(error, "input") from error
    try:
        model_file(_in(folder, str(spec.model)), ModelOptions())
    except (IngotError, OSError) as error:
        raise FormError("model", str(error)) from error
    return command


def _in(folder: Path, model: str) -> str:
    """A model that is a path in ``folder``, or as it is: a name in the library."""
    path = folder / model
    return str(path) if path.exists() else model


def _path(text: str) -> str:
    """A path that is neither an option nor a word that the command takes for itself."""
    text = text.strip()
    if text.startswith("~"):
        return str(Path(text).expanduser())
    return f"./{text}" if text in WORDS or text.startswith("-") else text


def _whole(field: str, text: str, least: int, most: int | None) -> int:
    try:
        value = int(text.replace(",", "").replace("_", ""))
    except ValueError:
        value = least - 1
    if value < least or (most is not None and value > most):
        upto = "" if most is None else f" to {most}"
        raise FormError(
            field, f"{_LABELS.get(field, field)}: a whole number from {least}{upto}, not {text}"
        )
    return value


def _number(field: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise FormError(field, f"{_LABELS.get(field, field)}: a number from 0, not {text}")
    return value
