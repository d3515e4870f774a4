"""Columns that line up."""

from collections.abc import Sequence


def aligned(lines: Sequence[Sequence[str]], left: int = 2) -> list[str]:
    """Lines of cells as text; the first ``left`` columns are words, the others numbers."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
