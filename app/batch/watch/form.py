"""The form of a job: its fields, how they become a job, what is wrong with them; and forms to begin
with: saved under a name (their specs in ``batch-presets.json`` of the
config folder), or of earlier jobs."""

import json
import math
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from app.adapters import name_and_path
from app.batch.journal.journal import journal_path
from app.batch.output.records import JSONL, suffix_format, writing
from app.batch.spec import WORDS, BatchSpec, spec_from, spec_json
from app.batch.watch.process import BatchCommand, command_from, noted_command
from app.batch.watch.records import last_run, records
from app.here import at_home
from quantize.disk import write_atomically
from quantize.fromjson import GARBLED
from runtimes.errors import IngotError, ParameterError, RequestError
from runtimes.machine.locks import one_writer
from runtimes.paths import config_dir
from runtimes.request import SamplingParams
from runtimes.settings import MOST_SLOTS
from runtimes.untrusted import JsonObject, load_json


def _path(text: str) -> str:
    """A path that is neither an option nor a word that the command takes for itself."""
    if text.startswith("~"):
        return _from_home(text)
    return f"./{text}" if text in WORDS or text.startswith("-") else text


def _from_home(text: str) -> str:
    return str(at_home(text))


def _choices(text: str) -> list[str]:
    return [choice for part in text.split("|") if (choice := part.strip())]


def _text(
    label: str,
    placeholder: str,
    about: str,
    *,
    least: float | None = None,
    make: Callable[[str], Any] = str,
) -> Any:
    """A field for a number of the type of ``least``, or for a text of which ``make`` makes a
    value."""
    told = {"label": label, "placeholder": placeholder, "about": about}
    return field(default="", metadata={**told, "least": least, "make": make})


_NOTHING_ELSE = BatchSpec("")


@dataclass(frozen=True, slots=True)
class JobForm:
    """Texts as they were typed; an empty one leaves the choice to the command. ``rest`` has what
    else is said of the job, for which there is no field."""

    input: str = _text(
        "Input", "prompts.jsonl", "JSONL, text, CSV, Parquet, or a folder of texts", make=_path
    )
    field: str = _text("Field", "prompt", "the field of a row that has its prompt: a name or a.b")
    template: str = _text(
        "Template", "optional", "a Jinja2 file that makes the prompt of a row", make=_from_home
    )
    limit: str = _text("Rows", "all", "only the first rows of the input", least=1)
    model: str = _text("Model", "folder or .gguf", "a folder that quantize wrote, a .gguf, a name")
    system: str = _text("System", "optional", "a system message before each prompt")
    temperature: str = _text("Temperature", "0", "0 takes the likeliest token", least=0.0)
    top_p: str = _text("Top-p", "1", "only the likeliest tokens up to this sum", least=0.0)
    seed: str = _text("Seed", "none", "the same seed gives the same samples", least=0)
    output: str = _text(
        "Output", "beside the input", "JSONL, CSV or Parquet, by its suffix", make=_path
    )
    n: str = _text("Answers", "1", "how many answers each row gets", least=1)
    choices: str = _text("Choices", "yes | no", "an answer is one of these", make=_choices)
    schema: str = _text(
        "Schema", "optional", "a file with the JSON schema of the answers", make=_from_home
    )
    max_tokens: str = _text("Max tokens", "512", "the longest that an answer may be", least=1)
    slots: str = _text("Slots", "auto", "rows that run together; 16 if memory allows", least=1)
    row_timeout: str = _text(
        "Row timeout", "none", "a row that takes more seconds fails", least=0.001
    )
    max_time: str = _text("Max time", "none", "no row begins after so many seconds", least=0.001)
    fresh: bool = False  # drops the answers that the output has
    rest: BatchSpec = _NOTHING_ELSE

    def spec(self) -> BatchSpec:
        """The job. Raises ParameterError, which names the field, for the first thing that no job
        can have; see ``look`` for what the files say."""
        said, errors = values_of(self)
        for name, text in errors.items():
            raise ParameterError(text, name)
        values = {_OPTION_OF[name]: value for name, value in said.items() if value != []}
        return spec_from(spec_json(self.rest) | values | {"fresh": self.fresh})


FIELDS = {field.name: field.metadata for field in fields(JobForm) if field.metadata}
# Two fields have the option's plural as their name.
_OPTION_OF = {name: name for name in FIELDS} | {"choices": "choice", "schema": "json_schema"}
FRESH = "Forget the output's old answers"
OPTIONS = {
    **{option.replace("_", "-"): FIELDS[name]["label"] for name, option in _OPTION_OF.items()},
    "fresh": FRESH,
}
_MISSING = {
    "input": "choose a file of prompts, or a folder of texts",
    "model": "name a folder that quantize wrote, a .gguf file, or a model of the library",
    "output": "name the file that the answers go to, such as answers.jsonl",
}


def values_of(form: JobForm) -> tuple[JsonObject, dict[str, str]]:
    """Return the values of what was typed, and the errors, by the names of the fields."""
    typed = {name: text for name in FIELDS if (text := getattr(form, name).strip())}
    said: JsonObject = {}
    errors = {name: text for name, text in _MISSING.items() if name not in typed}
    for name, text in typed.items():
        with _at(name, errors):
            said[name] = _value(name, text)
    for name in ("input", "output"):
        if typed.get(name) == "-":
            errors[name] = "standard input and output belong to the terminal; name a file"
    if {"field", "template"} <= typed.keys():
        errors["template"] = "a field and a template both make the prompt; give one"
    if {"choices", "schema"} <= typed.keys():
        errors["schema"] = "choices and a schema both say what an answer is; give one"
    return said, {name: errors[name] for name in FIELDS if name in errors}


def suggested_output(input: str) -> str:
    """A name for the output beside the input: ``prompts.jsonl`` gives ``prompts.out.jsonl``."""
    text = input.strip().rstrip("/")
    path = Path(text)
    if path.name in ("", ".."):  # it is still being typed
        return ""
    while path.suffix.lower() in (".gz", ".zst", ".zstd"):
        path = path.with_suffix("")
    suffix = path.suffix.lower() if suffix_format(path) is not JSONL else ".jsonl"
    return str(path.with_name(f"{path.stem}.out{suffix}"))


def _value(name: str, text: str) -> Any:
    """Convert what was typed to the field's type."""
    known = FIELDS[name]
    least, most = known["least"], MOST_SLOTS if name == "slots" else math.inf
    if least is None:
        return known["make"](text)
    whole = isinstance(least, int)
    try:
        value = int(text.replace(",", "")) if whole else float(text)
    except ValueError:
        value = math.nan
    if least <= value <= most and value != math.inf:
        return value
    kind = "a whole number" if whole else "a number"
    upto = "" if most == math.inf else f" to {most}"
    raise ParameterError(f"{kind} from {least:g}{upto}, not {text}", name)


# Forms of jobs that were there before.


def form_like(command: BatchCommand, here: Path, without: Collection[str] = ()) -> JobForm:
    """The form that would start a job anew from ``here``, with empty fields for what it leaves to
    the command; ``without`` names options that are not taken over."""
    values = _near(command, here)
    texts: JsonObject = {}
    for name, option in _OPTION_OF.items():
        if (text := _typed(values.get(option))) is not None:
            texts[name] = text
            values.pop(option, None)
    dropped = {"input", "output", "force", "fresh", *without}
    rest = {name: value for name, value in values.items() if name not in dropped}
    return JobForm(**texts, rest=spec_from(rest))


def _near(command: BatchCommand, here: Path) -> JsonObject:
    """The options of a job that ran in another folder, its paths as they are ``here``."""
    values, folder = spec_json(command.asked()), command.folder

    def near(text: str) -> str:
        path = folder / at_home(text)
        return str(path.relative_to(here) if path.is_relative_to(here) else path)

    paths = {"input", "output", "template"}
    if os.path.exists(folder / values.get("model", "")):
        paths.add("model")
    if _names_file(values.get("json_schema")):
        paths.add("json_schema")
    values |= {name: near(values[name]) for name in paths & values.keys()}
    named = map(name_and_path, values.get("adapter", ()))
    adapters = [f"{name}={near(str(path))}" for name, path in named]
    return values | ({"adapter": adapters} if adapters else {})


def _names_file(schema: str | None) -> bool:
    """Whether a schema is the name of its file, and not the schema itself."""
    return schema is not None and not schema.lstrip().startswith("{")


def _typed(value: Any) -> str | None:
    """A value as one types it; None for what no line can hold."""
    if isinstance(value, list):
        return None if any("|" in text for text in value) else _typed(" | ".join(value))
    text = "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return None if "\n" in text else text


_PLACES = dict.fromkeys(("input", "output", "model"), "x")


# What is wrong with a form, checked as the command would check it.


def look(form: JobForm, folder: Path) -> dict[str, str]:
    """All that is wrong with ``form`` and its files, by the names of the fields, in their order."""
    from app.batch.input.prompting import Prompting
    from app.batch.input.source import open_source
    from app.batch.runner import check_out
    from app.models.library import model_file

    errors = values_of(form)[1]
    # The rest is looked at in a form in which the wrong fields say nothing.
    said: JsonObject = {name: _PLACES.get(name, "") for name in errors}
    spec = replace(form, **said).spec()
    asked = BatchCommand(spec, folder).asked()
    params, prompting = SamplingParams(), Prompting(asked.rows)
    with _at("max_tokens", errors):
        params = spec.samples.apply(spec.sampling.params())
    schema = spec.constraints.json_schema
    with _at("schema" if schema else "choices", errors):
        there = str(folder / schema) if schema and _names_file(schema) else schema
        replace(spec.constraints, json_schema=there).constraint()
    with _at("template", errors):
        prompting = Prompting.from_options(asked.rows, params)
    if "input" not in errors:
        with (
            _at("input", errors),
            open_source(asked.input, prompting) as source,
            _at("output", errors),
        ):
            if "output" not in errors:
                check_out(Path(str(asked.output)), source, replace=form.fresh)
    if "model" not in errors:
        with _at("model", errors):
            model = folder / str(spec.model)  # or a name in the library
            model_file(str(model if model.exists() else spec.model), spec.options)
    return {name: errors[name] for name in FIELDS if name in errors}


def in_words(text: str) -> str:
    """Replace the options that a message of the command names by the form's fields."""
    for option, label in OPTIONS.items():
        text = re.sub(rf"--{option}(?![\w-])", f"“{label}”", text)
    return text


@contextmanager
def _at(field: str, errors: dict[str, str]) -> Iterator[None]:
    """Collect an exception as an error of the field that it names, else of ``field``."""
    try:
        yield
    except (IngotError, OSError) as error:
        named = error.field if isinstance(error, ParameterError) else None
        errors.setdefault(named if named in FIELDS else field, in_words(str(error)))


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
    found, saved = [], JsonObject()
    with suppress(OSError, ValueError):
        saved = _read()
    for name, said in sorted(saved.items()):
        try:
            if "spec" not in said:  # as earlier versions wrote it
                said = {**said, "command": ["batch", "in", "out", *said["arguments"]]}
            if (command := command_from(said)) is not None:
                form = replace(form_like(command, here), input="", output="")
                found.append(JobPreset(name, form))
        except GARBLED:
            continue
    for record in records():
        known = record.command or noted_command(last_run(journal_path(record.output)).run)
        if known is None:
            continue
        # A journal from anywhere says what it likes: nothing that reaches beyond the output.
        form = form_like(known, here, without=() if record.command else ("report", "ray"))
        found.append(JobPreset(form.output, form, record.at))
    return found


def save(name: str, form: JobForm, here: Path) -> None:
    """Keep all but input and output. Raises ParameterError for what no job can have, RequestError
    when it cannot be written."""
    spec = replace(form, input="in", output="out", fresh=False).spec()
    kept = {"spec": spec_json(spec), "folder": str(here)}
    _change(lambda saved: {**saved, name: kept})


def forget(name: str) -> None:
    """Drop a saved one. Raises RequestError when that cannot be written."""
    _change(lambda saved: {other: said for other, said in saved.items() if other != name})


def summary(form: JobForm) -> str:
    """Return all that a form says beside input, output and model, in one line."""
    parts = [
        f"{FIELDS[name]['label'].lower()} {text}"
        for name in FIELDS
        if name not in ("input", "output", "model") and (text := getattr(form, name))
    ]
    return " · ".join([*parts, *filter(None, [beside(form)])])


def beside(form: JobForm) -> str:
    """The options for which the form has no field, as one types them."""
    spec = replace(form.rest, input=_PLACE, output=_PLACE)
    return shlex.join(BatchCommand(spec, Path()).arguments[3:])


def _presets_file() -> Path:
    return config_dir() / "batch-presets.json"


def _read() -> JsonObject:
    """Raises OSError, and ValueError for a file that is damaged."""
    try:
        saved = load_json(_presets_file())
    except FileNotFoundError:
        return {}
    if not isinstance(saved, dict):
        raise ValueError("it is no JSON object")
    return saved


def _change(change: Callable[[JsonObject], JsonObject]) -> None:
    """Write what ``change`` makes of all that is saved, which nobody else changes meanwhile. What
    cannot be read stays as it is. Raises RequestError."""
    path = _presets_file()
    try:
        with writing(path), one_writer(path.parent):
            write_atomically(path, json.dumps(change(_read()), indent=2) + "\n")
    except ValueError as error:
        raise RequestError(f"{path} is damaged; move it away first: {error}") from error
