"""How a model on the hub is written: ORG/NAME, with an optional @revision."""

import re
from dataclasses import dataclass

_PART = r"[A-Za-z0-9](?:[\w.-]*\w)?"
_NAME = re.compile(rf"(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[\w./-]+))?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
MAIN = "main"


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository and the branch, tag or commit meant."""

    repo: str
    revision: str = MAIN

    @property
    def model(self) -> str:
        """The name without its organisation."""
        return self.repo.split("/")[1]

    @property
    def is_commit(self) -> bool:
        """Whether the revision cannot move."""
        return _COMMIT.fullmatch(self.revision) is not None

    def __str__(self) -> str:
        return self.repo if self.revision == MAIN else f"{self.repo}@{self.revision}"


def parse_hub_name(text: str, revision: str | None = None) -> HubName | None:
    """``text`` as a name on the hub, or None when it cannot be one (a path, a bare word).

    ``revision`` is one that was given apart from the name; it wins.
    """
    match = _NAME.fullmatch(text)
    if match is None or "--" in text or ".." in text:  # both are forbidden by the hub
        return None
    return HubName(match["repo"], revision or match["revision"] or MAIN)
