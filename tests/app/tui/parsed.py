"""Style sheets that are parsed once a session, which is a quarter of what a test with an app of its
own takes."""

from typing import Any

import pytest
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

_parsed: dict[tuple[Any, ...], list[RuleSet]] = {}
parse_rules = Stylesheet._parse_rules


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every app use what another one has parsed from the same text with the same colours."""

    def parse_once(self: Stylesheet, css: str, read_from: Any, *rest: Any, **named: Any) -> Any:
        key = (css, read_from, rest, *named.items(), *self._variables.items())
        if key not in _parsed:
            _parsed[key] = parse_rules(self, css, read_from, *rest, **named)
        return _parsed[key]

    monkeypatch.setattr(Stylesheet, "_parse_rules", parse_once)
