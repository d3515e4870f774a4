"""In which order rows are computed: what begins alike together, long before short.

The output does not depend on it. Rows are rearranged within windows of bounded size, so that the
input may have any number of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from app.batch.schedule.work import Work

WINDOW_ROWS = 1024
WINDOW_CHARACTERS = 1 << 24
# Rows with so many first characters in common are kept together: the chat template's own beginning
# is shared anyhow.
_SHARED = 64
_COMPARED = 4096


def rearranged(
    work: Iterable[Work], rows: int = WINDOW_ROWS, characters: int = WINDOW_CHARACTERS
) -> Iterator[Work]:
    """The same work, window by window in the order of ``arranged``."""
    window: list[Work] = []
    held = 0
    for item in work:
        window.append(item)
        held += item.task.characters
        if len(window) >= rows or held >= characters:
            yield from arranged(window)
            window, held = [], 0
    yield from arranged(window)


def arranged(window: Sequence[Work]) -> list[Work]:
    """Higher priorities first. Rows that begin alike follow each other, so that the beginning is
    computed once; the longest of these groups and rows come first, so that no long row is left to
    run alone at the end."""
    texts = {item.row.index: _beginning(item) for item in window}
    alphabetical = sorted(window, key=lambda item: (item.task.priority, texts[item.row.index]))
    groups = [
        list(group)
        for _, group in groupby(
            alphabetical,
            key=lambda item: (item.task.priority, texts[item.row.index][:_SHARED]),
        )
    ]
    groups.sort(
        key=lambda group: (group[0].task.priority, -max(item.task.characters for item in group))
    )
    return [item for group in groups for item in group]


def shared_beginning(item: Work) -> tuple[int, str]:
    """Equal for rows that are kept together."""
    return item.task.priority, _beginning(item)[:_SHARED]


def _beginning(item: Work) -> str:
    parts = (*(message.content for message in item.task.history), item.task.turns[0])
    return "\n".join(parts)[:_COMPARED]
