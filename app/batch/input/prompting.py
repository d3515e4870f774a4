"""What is asked of the model for a row: the choices that hold for all rows of an input."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.batch.input.template import RowTemplate
from app.openai.constraints import schema_constraint
from app.openai.request import ENDPOINTS, Endpoint, body_task, priority_of
from app.openai.task import MISSING, InputError, Task, as_unicode, shown, task_at
from runtimes.request import Priority, SamplingParams

_DEFAULT_FIELDS = ("messages", "prompt")
_ID_FIELDS = ("custom_id", "id", "question_id")


@dataclass(frozen=True, slots=True)
class Prompting:
    """Without ``field`` and ``template`` a row is an OpenAI request, or has a ``prompt`` or
    ``messages``."""

    field: str | None = None  # where a row's prompt is
    template: RowTemplate | None = None  # makes it from all of a row's fields
    priority_field: str | None = None
    # What rows change with parameters of their own, and the most tokens that they may ask for.
    sampling: SamplingParams = dataclasses.field(default_factory=SamplingParams)
    most_tokens: int | None = None
    schema_field: str | None = None
    requests: Endpoint | None = None  # every row is one, to this endpoint, whatever it looks like
    priority: Priority = Priority.NORMAL  # of rows without one

    def endpoint(self, fields: Mapping[str, Any]) -> Endpoint | None:
        """Where a row that is a request goes; None for a plain row."""
        if self.requests is not None:
            return self.requests
        return _endpoint_of(fields) if self.field is None and self.template is None else None

    def task(self, fields: Mapping[str, Any], endpoint: Endpoint | None) -> Task:
        """What to ask for a row with these fields. Raises InputError."""
        if self.template is not None:
            task = task_at(self.template.render(fields), "template")
        elif endpoint is None:
            task = task_of(fields, self.field)
        else:
            task = self._bounded(_request_task(fields, self.sampling))
        if self.schema_field is not None:
            schema = lookup(fields, self.schema_field)
            if schema not in (MISSING, None, ""):
                constraint = schema_constraint(schema, self.schema_field)
                own = replace(task.sampling or self.sampling, constraint=constraint)
                task = replace(task, sampling=own)
        priority = self.priority
        if self.priority_field is not None:
            priority = _priority(fields, self.priority_field)
        return task if priority is task.priority else replace(task, priority=priority)

    def _bounded(self, task: Task) -> Task:
        own, most = task.sampling, self.most_tokens
        if own is None or most is None or own.max_tokens <= most:
            return task
        least = min(own.min_tokens, most)
        return replace(task, sampling=replace(own, max_tokens=most, min_tokens=least))


def _priority(fields: Mapping[str, Any], name: str) -> Priority:
    value = lookup(fields, name)
    if value in (MISSING, None, ""):
        return Priority.NORMAL
    return priority_of(value, name)


def task_of(row: Mapping[str, Any], field: str | None) -> Task:
    """The task in ``row``: at ``field``, or else under ``messages`` or ``prompt``.

    Raises InputError when there is none or it has the wrong shape.
    """
    names = _DEFAULT_FIELDS if field is None else (field,)
    for name in names:
        value = lookup(row, name)
        if value is not MISSING:
            return task_at(value, name)
    wanted = " or ".join(repr(name) for name in reversed(names))
    raise InputError("missing_field", f"the row has no {wanted}")


def lookup(row: Mapping[str, Any], path: str) -> Any:
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


def row_id(row: Mapping[str, Any], index: int) -> str | int:
    """The row's own ``custom_id``, ``id`` or ``question_id``; else its index."""
    for name in _ID_FIELDS:
        value = row.get(name)
        # Floats (1e999 parses as infinity), lists and the like cannot identify a row.
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
            return value
    return index


# Rows that are lines of an OpenAI batch: a request each, with custom_id, method, url and body


def _endpoint_of(row: Mapping[str, Any]) -> Endpoint | None:
    """Where a row that was meant as a line of an OpenAI batch goes, well made or not: to chat where
    it does not say so rightly. None for any other row."""
    if "prompt" in row or "messages" in row:
        return None
    if "custom_id" in row:
        meant = "body" in row or "url" in row
    else:
        meant = isinstance(row.get("body"), Mapping) and ("url" in row or "method" in row)
    url = row.get("url")
    return ENDPOINTS.get(url if isinstance(url, str) else "", "chat") if meant else None


def _request_task(row: Mapping[str, Any], defaults: SamplingParams) -> Task:
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
    return body_task(row.get("body", MISSING), ENDPOINTS[url], defaults)
