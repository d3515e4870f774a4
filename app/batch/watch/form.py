"""What a user fills in to start a job, checked as the command would check it."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from app.batch.output.formats import suffix_format
from app.batch.output.lines import JSONL
from app.batch.spec import WORDS, BatchSpec, InputOptions, SampleOptions
from app.batch.watch.command import Command, command_of
from app.options import ConstraintOptions, ModelOptions, SamplingOptions
from runtimes.errors import IngotError, ParameterError
from runtimes.settings import MOST_SLOTS


class FormError(ParameterError):
    """A value that cannot be used; ``field`` is the name of the form's field that holds it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message, field)


def _text(label: str, placeholder: str, **more: Any) -> Any:
    """A field for a text, with ``least`` for a number of a ``type``; ``option`` is the command's,
    where it has another name."""
    usual = {"option": "", "least": None, "type": int}
    return field(default="", metadata=usual | {"label": label, "placeholder": placeholder} | more)


@dataclass(frozen=True, slots=True)
class JobForm:
    """Texts as they were typed; an empty one leaves the choice to the command."""

    input: str = _text("Input", "prompts.jsonl (F8 shows files)")
    output: str = _text("Output", "beside the input")
    model: str = _text("Model", "folder of quantize, .gguf, a name (ctrl+t: list)")
    field: str = _text("Field", "prompt")
    template: str = _text("Template", "a Jinja2 file that makes the prompt (optional)")
    system: str = _text("System", "a system message (optional)")
    max_tokens: str = _text("Max tokens", "512", least=1)
    temperature: str = _text("Temp.", "0", least=0, type=float)
    limit: str = _text("Rows", "all", least=1)
    slots: str = _text("Slots", "auto", least=1)
    top_p: str = _text("Top-p", "1", least=0, type=float)
    seed: str = _text("Seed", "none", least=0)
    n: str = _text("Answers a row", "1", least=1)
    choices: str = _text("Choices", "yes | no (optional)", option="choice")
    schema: str = _text("Schema", "JSON schema, a file (optional)", option="json-schema")
    fresh: bool = False  # drops the answers that the output has

    def spec(self) -> BatchSpec:
        """The job. Raises FormError for what no job can have; see ``check`` for what the files
        say."""
        said = {
            name: _value(name, text) for name in FIELDS if (text := getattr(self, name).strip())
        }
        for name, wanted in _MISSING.items():
            if name not in said:
                raise FormError(name, wanted)
        if "-" in (said["input"], said["output"]):
            raise FormError("input", "standard input and output belong to the terminal; name files")
        if "field" in said and "template" in said:
            raise FormError("template", "a field and a template both make the prompt; give one")
        if "choices" in said and "schema" in said:
            raise FormError("schema", "choices and a schema both say what an answer is; give one")
        sampling = ("max_tokens", "seed", "temperature", "top_p")
        template, schema = said.get("template"), said.get("schema")
        return BatchSpec(
            _path(said["input"]),
            _path(said["output"]),
            said["model"],
            system=said.get("system"),
            slots=said.get("slots"),
            fresh=self.fresh,
            sampling=SamplingOptions(**{name: said[name] for name in sampling if name in said}),
            constraints=ConstraintOptions(
                json_schema=str(Path(schema).expanduser()) if schema else None,
                choice=[text for part in self.choices.split("|") if (text := part.strip())] or None,
            ),
            samples=SampleOptions(n=said.get("n", 1)),
            rows=InputOptions(
                field=said.get("field"),
                template=Path(template) if template else None,
                limit=said.get("limit"),
            ),
        )


FIELDS = {field.name: field.metadata for field in fields(JobForm) if field.metadata}
_MISSING = {
    "input": "choose a file of prompts, or a folder of texts",
    "output": "name the file that the answers go to, such as answers.jsonl",
    "model": "name a model: a folder that quantize wrote, a .gguf file, or a name in the library",
}


def suggested_output(input: str) -> str:
    """A name for the output beside the input: ``prompts.jsonl`` gives ``prompts.out.jsonl``."""
    text = input.strip().rstrip("/")
    if not text:
        return ""
    path = Path(text)
    while path.suffix.lower() in (".gz", ".zst", ".zstd"):
        path = path.with_suffix("")
    suffix = path.suffix.lower() if suffix_format(path) is not JSONL else ".jsonl"
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
    if asked is None:
        raise FormError("input", "this is not a job with an output file")
    with _at("max_tokens"):
        params = spec.samples.apply(spec.sampling.params())
    schema = spec.constraints.json_schema
    with _at("schema" if schema else "choices"):
        there = str(folder / schema) if schema else None
        replace(spec.constraints, json_schema=there).constraint()
    with _at("template"):
        prompting = asked.rows.prompting(params)
    with (
        _at("input"),
        open_source(asked.input, prompting=prompting, limit=spec.rows.limit) as source,
        _at("output"),
    ):
        check_out(Path(str(asked.output)), source, replace=form.fresh)
    with _at("model"):
        model_file(_in(folder, str(spec.model)), ModelOptions())
    return command


@contextmanager
def _at(field: str) -> Iterator[None]:
    """What goes wrong here is told at the field that the error names itself, else at ``field``."""
    try:
        yield
    except (IngotError, OSError) as error:
        named = error.field if isinstance(error, ParameterError) else None
        raise FormError(named if named in FIELDS else field, str(error)) from error


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


def _value(name: str, text: str) -> Any:
    """What was typed, as the field's type."""
    known = FIELDS[name]
    least, most = known["least"], MOST_SLOTS if name == "slots" else math.inf
    if least is None:
        return text
    try:
        value = float(text) if known["type"] is float else int(text.replace(",", ""))
    except ValueError:
        value = math.nan
    if least <= value <= most and value != math.inf:
        return value
    kind = "a whole number" if known["type"] is int else "a number"
    upto = "" if most == math.inf else f" to {most}"
    raise FormError(name, f"{known['label']}: {kind} from {least}{upto}, not {text}")
