"""Options that say what an answer must be."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from runtimes.request import Constraint

_PANEL = "What an answer must be (one of these)"


@dataclass(frozen=True, slots=True)
class ConstraintOptions:
    """At most one is given."""

    json_schema: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="JSON that this JSON schema describes: a file, or the schema itself.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    regex: Annotated[
        str | None,
        typer.Option(help="A text that this regular expression matches.", rich_help_panel=_PANEL),
    ] = None
    choice: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="One of these; repeat it.", rich_help_panel=_PANEL),
    ] = None
    grammar: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A text of this grammar (Lark, in llguidance's dialect).",
            rich_help_panel=_PANEL,
        ),
    ] = None

    def constraint(self) -> Constraint | None:
        """Checked. Raises RequestError for one that cannot be used, or for two of them."""
        from runtimes.engine.constraint import check
        from runtimes.errors import RequestError
        from runtimes.request import Constraint

        given: list[Constraint] = []
        if self.json_schema is not None:
            given.append(Constraint("json_schema", _schema_text(self.json_schema)))
        if self.regex is not None:
            given.append(Constraint("regex", self.regex))
        if self.choice:
            given.append(Constraint("choices", json.dumps(self.choice)))
        if self.grammar is not None:
            given.append(Constraint("grammar", _read(self.grammar, "--grammar")))
        if len(given) > 1:
            raise RequestError(
                "--json-schema, --regex, --choice and --grammar each say what an answer must be;"
                " give one of them"
            )
        for constraint in given:
            check(constraint)
        return given[0] if given else None


def _schema_text(value: str) -> str:
    if value.lstrip().startswith("{"):
        return value
    return _read(Path(value), "--json-schema")


def _read(path: Path, option: str) -> str:
    from runtimes.errors import RequestError

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise RequestError(f"{option}: {path} cannot be read: {said}") from error
