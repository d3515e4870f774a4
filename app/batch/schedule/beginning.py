"""What the rows of a job begin with: a system prompt, instructions, examples."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.models.prefixes import LEAST_TOKENS, SavedPrefixes
from runtimes.api import EngineApi
from runtimes.engine.prefix_pool import common_prefix
from runtimes.settings import RunnerSettings


@dataclass(slots=True)
class Beginning:
    """Of the rows of one engine, which was loaded with ``settings``: taken from the disk before
    they are read, and saved once, at the end."""

    prefixes: SavedPrefixes
    engine: EngineApi
    settings: RunnerSettings
    _common: Sequence[int] = field(default=(), init=False)  # or the only prompt so far
    _rows: int = field(default=0, init=False)  # that begin with it

    def before(self, prompt: Sequence[int]) -> None:
        """A row's first prompt, which will be asked now."""
        self.prefixes.before(self.engine, self.settings, prompt)
        shared = common_prefix(self._common, prompt)
        if shared >= LEAST_TOKENS:
            self._common, self._rows = self._common[:shared], self._rows + 1
        elif self._rows <= 1:
            self._common, self._rows = prompt, 1

    def keep(self) -> None:
        """Save what two rows or more began with."""
        if self._rows > 1:
            self.prefixes.keep(self.engine, self.settings, self._common)
