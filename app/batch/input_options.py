"""Options of `ingot batch` that say what the input is and how a row becomes a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from app.batch.input.prompting import Prompting
    from runtimes.request import SamplingParams

_INPUT = "Input"


@dataclass(frozen=True, slots=True)
class InputOptions:
    """Where rows come from; what is not said is told from the input itself."""

    field: Annotated[
        str | None,
        typer.Option(
            help="Where the prompt is in a row: a name or a dotted path. A list of strings is a "
            "conversation whose turns are answered one after another.",
            rich_help_panel=_INPUT,
        ),
    ] = None
    template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.j2",
            help="A Jinja2 template that makes the prompt from the row's fields.",
            rich_help_panel=_INPUT,
        ),
    ] = None
    input_format: Annotated[
        Literal["auto", "jsonl", "text", "csv", "parquet", "folder"],
        typer.Option(
            "--input-format", help="What IN is, if its name misleads.", rich_help_panel=_INPUT
        ),
    ] = "auto"
    priority_field: Annotated[
        str | None,
        typer.Option(
            help="Where a row's priority is: critical, high, normal or low, or 0 to 3.",
            rich_help_panel=_INPUT,
        ),
    ] = None
    json_schema_field: Annotated[
        str | None,
        typer.Option(
            help="Where a row's own JSON schema is, which its answer must follow.",
            rich_help_panel=_INPUT,
        ),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Only the first N rows of IN; OUT then holds just those.",
            metavar="N",
            rich_help_panel=_INPUT,
        ),
    ] = None
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Rows that are not valid end the job before it begins, instead of becoming errors "
            "in OUT.",
            rich_help_panel=_INPUT,
        ),
    ] = False
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only look: rows, tokens, memory and time; loads no weights, writes nothing.",
            rich_help_panel=_INPUT,
        ),
    ] = False

    def prompting(self, sampling: SamplingParams, most_tokens: int | None = None) -> Prompting:
        """How rows become tasks. Raises RequestError for a template that cannot be used, or that
        contradicts --field."""
        from app.batch.input.prompting import Prompting
        from app.batch.input.template import RowTemplate
        from runtimes.errors import RequestError

        if self.template is not None and self.field is not None:
            raise RequestError("--field and --template both make the prompt; give one of them")
        template = RowTemplate.load(self.template) if self.template is not None else None
        return Prompting(
            self.field,
            template,
            self.priority_field,
            sampling,
            most_tokens,
            self.json_schema_field,
        )
