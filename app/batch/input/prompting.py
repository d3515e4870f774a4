"""What is asked of the model for a row: the choices that hold for all rows of an input."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.batch.input.openai_rows import is_request, request_task, style_of
from app.batch.input.tasks import (
    MISSING,
    BadRowError,
    RowProblem,
    Task,
    lookup,
    task_at,
    task_of,
)
from app.batch.input.template import RowTemplate
from app.openai.constraint_body import schema_constraint
from runtimes.request import Priority, SamplingParams

_PRIORITIES = {priority.name.lower(): priority for priority in Priority}


@dataclass(frozen=True, slots=True)
class Prompting:
    """``field`` says where a row's prompt is, ``template`` how it is made from all of its fields;
    without either a row is an OpenAI request or has a ``prompt`` or ``messages``. ``sampling`` is
    what rows change with parameters of their own, ``most_tokens`` bounds what they may ask for;
    ``priority_field`` and ``schema_field`` say where a row's priority and JSON schema are."""

    field: str | None = None
    template: RowTemplate | None = None
    priority_field: str | None = None
    sampling: SamplingParams = dataclasses.field(default_factory=SamplingParams)
    most_tokens: int | None = None
    schema_field: str | None = None

    def task(self, fields: Mapping[str, Any]) -> Task | RowProblem:
        """What to ask for a row with these fields, or why it cannot be asked."""
        style = style_of(fields) if self._is_request(fields) else "flat"
        try:
            task = self._task(fields)
            # Spelled out, since `replace` takes longer than all the rest.
            return Task(
                task.history,
                task.turns,
                task.sampling if self.schema_field is None else self._schema(fields, task),
                self._priority(fields),
                task.style,
                fields,
            )
        except BadRowError as error:
            return replace(error.problem, style=style, source=fields)

    def _is_request(self, fields: Mapping[str, Any]) -> bool:
        return self.field is None and self.template is None and is_request(fields)

    def _task(self, fields: Mapping[str, Any]) -> Task:
        if self.template is not None:
            return task_at(self.template.render(fields), "template")
        if not self._is_request(fields):
            return task_of(fields, self.field)
        task = request_task(fields, self.sampling)
        own, most = task.sampling, self.most_tokens
        if own is None or most is None or own.max_tokens <= most:
            return task
        least = min(own.min_tokens, most)
        return replace(task, sampling=replace(own, max_tokens=most, min_tokens=least))

    def _schema(self, fields: Mapping[str, Any], task: Task) -> SamplingParams | None:
        name = str(self.schema_field)
        schema = lookup(fields, name)
        if schema is MISSING or schema is None or schema == "":
            return task.sampling
        return replace(task.sampling or self.sampling, constraint=schema_constraint(schema, name))

    def _priority(self, fields: Mapping[str, Any]) -> Priority:
        if self.priority_field is None:
            return Priority.NORMAL
        value = lookup(fields, self.priority_field)
        if value is MISSING or value is None or value == "":
            return Priority.NORMAL
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # whole numbers of a table's column that has gaps
        text = str(value).strip().lower()
        if text in _PRIORITIES:
            return _PRIORITIES[text]
        if text in {str(int(priority)) for priority in Priority}:
            return Priority(int(text))
        raise BadRowError(
            "invalid_value",
            f"{self.priority_field} must be one of {', '.join(_PRIORITIES)} or 0 to 3, "
            f"not {str(value)[:40]!r}",
        )
