"""Tasks from rows: the choices that hold for all rows of an input (``Prompting``), and templates
(``RowTemplate``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from app.batch.spec import InputOptions, RowTask
from app.here import named_text, reason
from app.openai.completions import completion_tasks
from app.openai.constraints import schema_constraint
from app.openai.embeddings import embedding_task
from app.openai.request import ENDPOINTS, Endpoint, body_task, priority_of
from app.openai.scoring import labels_task, scoring_task, texts_at
from app.openai.task import Embed, Task, task_at
from app.openai.validation import MISSING, InputError, as_unicode, shown, wrong_kind
from runtimes.errors import RequestError
from runtimes.request import Priority, SamplingParams
from runtimes.templates.budget import Budget, within
from runtimes.templates.filters import tojson
from runtimes.templates.sandbox import Sandbox
from runtimes.untrusted import Fields

if TYPE_CHECKING:
    from app.adapters import AdapterFile


_DEFAULT_FIELDS: dict[RowTask, tuple[str, ...]] = {
    "generate": ("messages", "prompt"),
    "score": ("messages", "prompt"),
    "classify": ("messages", "prompt", "text"),
    "embed": ("text", "input", "prompt"),
}
ADAPTER = "adapter"  # the field that names the one that answers a row
# The fields with what is scored
CONTINUATIONS, LABELS = ("continuations",), ("labels", "choices")
_ID_FIELDS = ("custom_id", "id", "question_id")


@dataclass(frozen=True, slots=True)
class Prompting:
    """Without a field of ``rows`` and a ``template`` a row is an OpenAI request, or has a
    ``prompt`` or ``messages``. What a request asks it says itself, whatever the task of the other
    rows."""

    rows: InputOptions = field(default_factory=InputOptions)
    template: RowTemplate | None = None  # makes the prompt from all of a row's fields
    # What rows change with parameters of their own, and the most tokens that they may ask for.
    sampling: SamplingParams = field(default_factory=SamplingParams)
    most_tokens: int | None = None
    requests: Endpoint | None = None  # every row is one, to this endpoint, whatever it looks like
    strict: bool = True  # a field of a request that is not known is refused, not left out
    priority: Priority = Priority.NORMAL  # of rows without one
    labels: tuple[str, ...] = ()  # of rows to classify that bring none
    raw: bool = False  # no chat template is used
    adapters: Mapping[str, AdapterFile] = field(default_factory=dict)  # by name
    adapter: AdapterFile | None = None  # of rows that name none

    @classmethod
    def from_options(
        cls,
        rows: InputOptions,
        sampling: SamplingParams,
        most_tokens: int | None = None,
        *,
        labels: Sequence[str] | None = None,
        raw: bool = False,
    ) -> Prompting:
        """How ``rows`` become tasks; ``labels`` are for all that are classified. Raises
        RequestError for a template that cannot be used, or that contradicts --field."""
        if rows.template is not None and rows.field is not None:
            raise RequestError("--field and --template both make the prompt; give one of them")
        template = None if rows.template is None else RowTemplate.load(rows.template)
        return cls(rows, template, sampling, most_tokens, labels=tuple(labels or ()), raw=raw)

    def endpoint(self, fields: Fields) -> Endpoint | None:
        """Return the endpoint of a row that is a request; None for a plain row."""
        plain = self.rows.field is not None or self.template is not None
        return self.requests or (None if plain else _endpoint_of(fields))

    def task(self, fields: Fields, endpoint: Endpoint | None) -> Task:
        """Make the task of a row with these fields. Raises InputError."""
        if self.template is not None:
            task = self._asked(task_at(self.template.render(fields), "template"), fields)
        elif endpoint is None:
            task = self._asked(task_of(fields, self.rows.field, self.rows.task), fields)
        else:
            task = self._bounded(_request_task(fields, self.sampling, strict=self.strict))
        if (schema := _said(fields, name := self.rows.json_schema_field)) is not None:
            constraint = schema_constraint(schema, str(name))
            own = replace(task.sampling or self.sampling, constraint=constraint)
            task = replace(task, sampling=own)
        priority, adapter = self.priority, None
        if (said := _said(fields, name := self.rows.priority_field)) is not None:
            priority = priority_of(said, str(name))
        if self.adapters:
            adapter = self._adapter(fields, endpoint)
        return replace(task, priority=priority, adapter=adapter)

    def _adapter(self, fields: Fields, endpoint: Endpoint | None) -> AdapterFile | None:
        """That of a plain row is named in its field, that of a request behind its model's name."""
        named: Any = fields.get(ADAPTER, MISSING)
        if endpoint is not None:
            model = fields["body"].get("model")
            _, colon, behind = model.rpartition(":") if isinstance(model, str) else ("", "", "")
            named = behind if colon else MISSING
        if named is MISSING:
            found = self.adapter
        elif named in (None, ""):
            return None
        elif not isinstance(named, str):
            raise wrong_kind(ADAPTER, "the name of an adapter", named)
        elif named in self.adapters:
            found = self.adapters[named]
        else:
            known = ", ".join(self.adapters)
            said = f"there is no adapter {named[:60]!r}; there is: {known}"
            raise InputError("unknown_adapter", said)
        if found is not None and endpoint == "embeddings":
            raise InputError("unsupported_parameter", "embeddings are made without adapters")
        return found

    def _asked(self, task: Task, fields: Fields) -> Task:
        """Make a plain row's task of its prompt, by the job's kind."""
        kind = self.rows.task
        if kind == "embed":
            if task.history or len(task.turns) != 1:
                raise InputError("wrong_type", "what is embedded must be one text")
            return Task(parts=(replace(task, raw=True, embed=Embed(self.rows.dimensions)),))
        if kind == "score":
            return scoring_task(task, texts_at(*_first(fields, CONTINUATIONS), 1))
        if kind == "classify":
            labels = self.labels or texts_at(*_first(fields, LABELS), 2)
            return labels_task(task, labels, raw=self.raw)
        return task

    def _bounded(self, task: Task) -> Task:
        if task.parts:
            return replace(task, parts=tuple(map(self._bounded, task.parts)))
        own, most = task.sampling, self.most_tokens
        if own is None or most is None or own.max_tokens <= most:
            return task
        least = min(own.min_tokens, most)
        return replace(task, sampling=replace(own, max_tokens=most, min_tokens=least))


def task_of(row: Fields, field: str | None, kind: RowTask = "generate") -> Task:
    """The prompt in ``row``: at ``field``, or else where a row of its ``kind`` has it.

    Raises InputError when there is none or it has the wrong shape.
    """
    names = _DEFAULT_FIELDS[kind] if field is None else (field,)
    return task_at(*_first(row, names, names[::-1]))


def _first(row: Fields, names: Sequence[str], told: Sequence[str] = ()) -> tuple[Any, str]:
    """The value of the first of ``names`` that is there, and its name. Raises InputError, with them
    in the order of ``told``, if any."""
    for name in names:
        if (value := lookup(row, name)) is not MISSING:
            return value, name
    wanted = " or ".join(map(repr, told or names))
    raise InputError("missing_field", f"the row has no {wanted}")


def _said(row: Fields, path: str | None) -> Any:
    """The value at ``path``; None where there is none, or only one that is there for other rows."""
    value = MISSING if path is None else lookup(row, path)
    return None if value in (MISSING, "") else value


def lookup(row: Fields, path: str) -> Any:
    """The value at a dotted path (``a.b.0``), or ``MISSING``. A key with dots in it wins."""
    if path in row:
        return row[path]
    value: Any = row
    for part in path.split("."):
        number = int(part) if part.isascii() and part.isdigit() else -1
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and 0 <= number < len(value):
            value = value[number]
        else:
            return MISSING
    return value


def row_id(row: Fields, index: int) -> str | int:
    """The row's own ``custom_id``, ``id`` or ``question_id``; else its index."""
    for name in _ID_FIELDS:
        value = row.get(name)
        # Floats (1e999 parses as infinity), lists and the like cannot identify a row.
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
            return value
    return index


# Rows that are lines of an OpenAI batch: a request each, with custom_id, method, url and body


def _endpoint_of(row: Fields) -> Endpoint | None:
    """Return the endpoint of a row that was meant as a line of an OpenAI batch, well made or not:
    chat where it names none rightly. None for any other row."""
    if "prompt" in row or "messages" in row:
        return None
    if "custom_id" in row:
        meant = "body" in row or "url" in row
    else:
        meant = isinstance(row.get("body"), Mapping) and ("url" in row or "method" in row)
    url = row.get("url")
    return ENDPOINTS.get(url if isinstance(url, str) else "", "chat") if meant else None


def _request_task(row: Fields, defaults: SamplingParams, *, strict: bool) -> Task:
    """The task of a batch line. Raises InputError as ``body_task`` does."""
    identity = row.get("custom_id", MISSING)
    if not isinstance(identity, str) or not identity:
        raise InputError("missing_parameter", f"custom_id must be a text, not {shown(identity)}")
    as_unicode(identity, "custom_id")  # by which its answer has to be found
    method = row.get("method", MISSING)
    if method != "POST":
        raise InputError("invalid_value", f'method must be "POST", not {shown(method)}')
    url = row.get("url", MISSING)
    if not isinstance(url, str) or url not in ENDPOINTS:
        raise InputError(
            "unsupported_url", f"url must be {' or '.join(ENDPOINTS)}, not {shown(url)}"
        )
    body, endpoint = row.get("body", MISSING), ENDPOINTS[url]
    if endpoint == "embeddings":
        return embedding_task(body)
    if endpoint == "chat":
        return body_task(body, endpoint, defaults, strict=strict)
    tasks = completion_tasks(body, defaults, served=False, strict=strict)
    return tasks[0] if len(tasks) == 1 else Task(parts=tuple(tasks))


# Characters of a prompt: far beyond any context, far below what memory holds for all running rows.
MOST_CHARACTERS = 16 * 2**20
_MOST_SOURCE = 2**17  # bytes of a template
# Filters that pad to any width a number says.
_PADDING_FILTERS = ("center", "indent", "format", "wordwrap", "slice", "batch")
_SHOWN = 12


class RowTemplate:
    """Prompts made from a row's fields by a compiled Jinja2 template, in a sandbox.

    Rows are data: nothing in them is ever taken for template code. The template itself can neither
    reach Python's internals nor change the row; what a short one could blow up to gigabytes is
    bounded.
    """

    def __init__(self, text: str, name: str) -> None:
        """Compile ``text``, which messages call ``name``. Raises RequestError with the line."""
        environment = Sandbox(undefined=jinja2.StrictUndefined, keep_trailing_newline=False)
        for filter_name in _PADDING_FILTERS:
            del environment.filters[filter_name]
        # Jinja2's own escapes for HTML.
        environment.filters["tojson"] = partial(tojson, default=_no_json)
        try:
            with within(Budget()):
                self._template = environment.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise RequestError(f"{name}, line {error.lineno}: {error.message}") from error
        except Exception as error:  # also what Python says of the code that is made of it
            raise RequestError(f"{name} does not compile: {str(error)[:500]}") from error

    @classmethod
    def load(cls, path: Path) -> RowTemplate:
        """The template in a UTF-8 file. Raises RequestError."""
        try:
            return cls(named_text(path, "utf-8-sig", _MOST_SOURCE), str(path))
        except UnicodeDecodeError as error:
            raise RequestError(f"{path} is not UTF-8") from error
        except ValueError as error:
            raise RequestError(f"{path} is no template: {error}") from error
        except OSError as error:
            raise RequestError(f"{path} cannot be read: {reason(error)}") from error

    def render(self, fields: Fields) -> str:
        """The text for a row, its fields by name and, for names that are no words, in ``row``.

        Raises InputError: the row lacks a field (code ``missing_field``), the template fails on
        it, or makes too much text.
        """
        pieces, room = [], MOST_CHARACTERS
        try:
            with within(Budget()):
                for piece in self._template.generate({"row": fields, **fields}):
                    pieces.append(piece)
                    room -= len(piece)
                    if room < 0:
                        said = f"the template makes more than {MOST_CHARACTERS:,} characters of it"
                        raise InputError("template_error", said)
        except jinja2.UndefinedError as error:
            there = ", ".join(repr(name)[1:-1][:40] for name in list(fields)[:_SHOWN]) or "none"
            said = f"the template: {str(error.message)[:120]}; the row has: {there}"
            raise InputError("missing_field", said) from error
        except InputError:
            raise
        except Exception as error:  # whatever an expression of the template runs into
            said = f"the template fails: {type(error).__name__}: {error}"
            raise InputError("template_error", said[:220]) from error
        return "".join(pieces)


def _no_json(value: Any) -> Any:
    if isinstance(value, jinja2.Undefined):
        str(value)  # raises UndefinedError, which names the field
    raise TypeError(f"{type(value).__name__} has no form in JSON")
