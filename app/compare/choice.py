"""Which files to compare: from what a picker lists to what a comparison asks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from app.compare.records import Contender
from app.models.entries import Entry


def contender(entry: Entry) -> Contender:
    """What asks ``entry``."""
    return Contender(entry.model, entry.options, entry.label)


def first_choice(entries: Sequence[Entry], loaded: Path | None) -> list[Entry]:
    """Two files to begin with: the loaded one and, of the same model, the one with the most bits,
    whose answers are nearest to the original's. Nothing when there is no such pair."""
    usable = [entry for entry in entries if entry.broken is None]
    here = loaded.resolve() if loaded is not None else None
    mine = next((entry for entry in usable if entry.path.resolve() == here), None)
    if mine is None:
        return []
    others = [e for e in usable if e.name == mine.name and e.key != mine.key]
    if not others:
        return []
    return [mine, max(others, key=lambda entry: (entry.bits or 0, entry.bytes or 0))]
