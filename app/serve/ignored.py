"""Tell what is left out of requests: each client in a header, and the log once."""

import logging
import re
import threading
from collections.abc import Iterable, Sequence

from starlette.types import Scope

logger = logging.getLogger(__name__)

HEADER = b"x-ingot-ignored"
_KEY = "ingot.ignored"  # of a request's scope
_MOST_HEADER = 1024  # characters
_MOST_LOGGED = 512  # names of one process: clients make them up
_NUMBER = re.compile(r"\[\d+\]")


class LeftOut:
    """The names that are in the log already."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def of_request(self, scope: Scope, names: Sequence[str]) -> None:
        """A request is answered without the fields of these ``names``."""
        if names:
            scope[_KEY] = names
            self.log(scope["path"], names)

    def log(self, path: str, names: Iterable[str]) -> None:
        """A line for each that has none yet; the number of a tool makes no other name of it."""
        for name in names:
            plain = _NUMBER.sub("[]", name)
            with self._lock:
                if len(self._logged) >= _MOST_LOGGED or (path, plain) in self._logged:
                    continue
                self._logged.add((path, plain))
            logger.info("%s: %s is left out: it changes nothing here", path, plain)


def header_of(scope: Scope) -> bytes | None:
    """The names that were left out of a request, no longer than a header should be."""
    names: Sequence[str] = scope.get(_KEY, ())
    said = ""
    for name in names:
        longer = f"{said}, {name}" if said else name
        if len(longer) > _MOST_HEADER:
            return f"{said}, ...".encode("ascii", "replace")
        said = longer
    return said.encode("ascii", "replace") or None
