"""What an input format is: one record, which stands in the file of the format."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from app.batch.input.row import Raw


@dataclass(frozen=True, slots=True)
class Reader:
    """A format. ``read`` takes a path and what messages call it, and gives every row in order. What
    is wrong with one row is that row's problem; it raises RequestError when the input as a whole
    cannot be read."""

    name: str
    read: Callable[[Path, str], Iterator[Raw]]
    hint: str  # what to do about an input without rows
    suffixes: tuple[str, ...] = ()  # of names of such files
    magic: bytes | None = None  # how each such file begins, whatever its name is
    first: bytes | None = None  # the first character, where nothing else says what a file is
    packed: bool = True  # whether it may be packed with gzip or zstd
    place: str = "line {line}"  # what messages call a row's place; {id} is the row's id as JSON
    # Of a folder: path, size and time of each file, which tell whether it changed.
    listing: Callable[[Path, str], Iterator[tuple[str, int, int]]] | None = None
