"""Style sheets that are parsed once a session.

Each app parses more than a hundred, several times over: Textual 8.2.8 keeps 64 of them. That is a
quarter of what a test with an app of its own takes.
"""

from __future__ import annotations

from typing import Any

import pytest
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

_parsed: dict[tuple[Any, ...], list[RuleSet]] = {}


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every app use what another one has parsed from the same text with the same colours."""
    parse = Stylesheet._parse_rules

    def parse_once(self: Stylesheet, css: str, read_from: Any, *rest: Any, **named: Any) -> Any:
        key = (css, read_from, rest, *named.items(), *self._variables.items())
        if key not in _parsed:
            _parsed[key] = parse(self, css, read_from, *rest, **named)
        return _parsed[key]

    monkeypatch.setattr(Stylesheet, "_parse_rules", parse_once)
    # Its own returns the id, too, but in Python, and is asked some 400 times for each widget.
    monkeypatch.setattr(RuleSet, "__hash__", object.__hash__)
