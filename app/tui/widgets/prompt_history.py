"""Earlier prompts, walked through as in a shell."""

from __future__ import annotations

from collections.abc import Iterable


class PromptHistory:
    """``prompts`` newest first. What was typed before walking back is kept at the end."""

    def __init__(self, prompts: Iterable[str] = ()) -> None:
        self._prompts = list(prompts)
        self._at = -1
        self._typed = ""

    def take(self, prompts: Iterable[str]) -> None:
        self._prompts = list(prompts)
        self.reset()

    def add(self, prompt: str) -> None:
        """The newest; an older one like it goes."""
        self._prompts = [prompt, *(old for old in self._prompts if old != prompt)]
        self.reset()

    def reset(self) -> None:
        """Begin at the newest again: what is in the prompt was typed."""
        self._at = -1

    def step(self, now: str, older: bool) -> str | None:
        """The prompt before (``older``) or after the one shown; None when there is none. ``now`` is
        what the prompt holds."""
        if self._at >= 0 and now != self._prompts[self._at]:
            self.reset()  # one that was changed counts as typed
        target = self._at + (1 if older else -1)
        if not -1 <= target < len(self._prompts):
            return None
        if self._at == -1:
            self._typed = now
        self._at = target
        return self._typed if target == -1 else self._prompts[target]
