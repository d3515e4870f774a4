"""What a user fills in to start a job, checked as the command would check it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from app.batch.options import WORDS
from app.batch.watch.command import Command
from runtimes.errors import IngotError, ParameterError


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

    def command(self, folder: Path) -> Command:
        """The command line, started in ``folder``. Raises FormError for what no command can have;
        see ``check`` for what the files say."""
        for name in ("input", "output", "model"):
            if not getattr(self, name).strip():
                raise FormError(name, _MISSING[name])
        if self.input.strip() == "-" or self.output.strip() == "-":
            raise FormError("input", "standard input and output belong to the terminal; name files")
        if self.field.strip() and self.template.strip():
            raise FormError("template", "a field and a template both make the prompt; give one")
        if self.choices.strip() and self.schema.strip():
            raise FormError("schema", "choices and a schema both say what an answer is; give one")
        arguments = ["batch", _path(self.input), _path(self.output)]
        for name, value in self._options().items():
            arguments.append(f"--{name}={value}")
        arguments += [f"--choice={choice}" for choice in self._choices()]
        if self.fresh:
            arguments.append("--fresh")
        return Command(tuple(arguments), folder)

    def _options(self) -> dict[str, str]:
        options = {"model": self.model.strip()}
        for name in ("field", "template", "system"):
            if text := getattr(self, name).strip():
                options[name] = text
        if text := self.schema.strip():
            options["json-schema"] = str(Path(text).expanduser())
        for name, least in (("max_tokens", 1), ("limit", 1), ("slots", 1), ("seed", 0), ("n", 1)):
            if text := getattr(self, name).strip():
                options[name.replace("_", "-")] = str(_whole(name, text, least))
        for name in ("temperature", "top_p"):
            if text := getattr(self, name).strip():
                options[name.replace("_", "-")] = f"{_number(name, text):g}"
        return options

    def _choices(self) -> list[str]:
        return [text for part in self.choices.split("|") if (text := part.strip())]


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
    from app.batch.options import InputOptions, SampleOptions
    from app.models.resolve import model_file
    from app.options import ConstraintOptions, ModelOptions, SamplingOptions

    command = form.command(folder)
    asked = command.asked()
    if asked is None or asked.input is None:
        raise FormError("input", "this is not a job with an output file")
    options = form._options()
    try:
        sampling = SamplingOptions(
            max_tokens=int(options.get("max-tokens", 512)),
            temperature=float(options.get("temperature", 0)),
            top_p=float(options.get("top-p", 1)),
            seed=int(options["seed"]) if "seed" in options else None,
        )
        params = SampleOptions(n=int(options.get("n", 1))).apply(sampling.params())
    except IngotError as error:
        raise FormError.of(error, "max_tokens") from error
    schema = options.get("json-schema")
    try:
        ConstraintOptions(
            json_schema=str(folder / schema) if schema else None, choice=form._choices()
        ).constraint()
    except IngotError as error:
        raise FormError("schema" if schema else "choices", str(error)) from error
    try:
        prompting = InputOptions(field=options.get("field"), template=asked.template).prompting(
            params
        )
    except (IngotError, OSError) as error:
        raise FormError("template", str(error)) from error
    try:
        with open_source(str(asked.input), prompting=prompting, limit=asked.limit) as source:
            try:
                check_out(asked.output, source, replace=form.fresh)
            except IngotError as error:
                raise FormError("output", str(error)) from error
    except (IngotError, OSError) as error:
        raise FormError.of(error, "input") from error
    try:
        model_file(_in(folder, options["model"]), ModelOptions())
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


def _whole(field: str, text: str, least: int) -> int:
    try:
        value = int(text.replace(",", "").replace("_", ""))
    except ValueError:
        value = least - 1
    if value < least:
        raise FormError(
            field, f"{_LABELS.get(field, field)}: a whole number from {least}, not {text}"
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
