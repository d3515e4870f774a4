"""Style sheets, each parsed once. Textual 8.2.8 parses all of them anew for every screen that
brings one of its own, and forgets the first where there are more than 64."""

from textual.cache import LRUCache
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

_SOURCES = 1024  # more than there are

RuleSet.__hash__ = object.__hash__  # type: ignore[method-assign]  # the same, without Python


class Sheet(Stylesheet):
    """Textual's, which keeps what it has parsed while the variables stay as they are."""

    def __init__(self, *, variables: dict[str, str] | None = None) -> None:
        super().__init__(variables=variables)
        self._parse_cache = LRUCache(_SOURCES)

    def set_variables(self, variables: dict[str, str]) -> None:
        if variables != self._variables:
            super().set_variables(variables)

    def reparse(self) -> None:
        self.parse()
