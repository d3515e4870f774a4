"""Cards: what `ingot measure` found of a file, kept under the file's fingerprint.

A card is one JSON file of the data folder. So that lists of files need not read them, the state
folder remembers which card belongs to a path, as long as size and time are the same.
"""

import contextlib
import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantize.disk import files_of, write_atomically
from quantize.fromjson import GARBLED, from_json
from quantize.manifest import Fidelity, FileEntry, ModelInfo, TokenParity
from runtimes.machine.state_file import load_state, save_entry
from runtimes.paths import data_dir
from runtimes.untrusted import load_json

_STATE, _MOST = "measured", 2000


@dataclass(frozen=True, slots=True)
class Card:
    """A measured file. ``faults`` say in words why it is not what it should be.

    ``key`` names everything that the figures depend on beside the file. ``entry`` has them in the
    form of a manifest; its ``path`` is the file's name, its ``recipe`` what distinguishes it here.
    """

    fingerprint: str
    key: str
    entry: FileEntry
    original: ModelInfo
    templates: TokenParity | None = None  # conversations that were rendered, and came out otherwise
    weights: int | None = None  # tensors that were compared
    faults: tuple[str, ...] = ()
    # By the type of keys and values, at the end of pieces of a text that are so long.
    caches: dict[str, Fidelity] = field(default_factory=dict)
    cache_tokens: int = 0


def card_path(fingerprint: str) -> Path:
    """The path at which the card of such a file is kept, if there is one."""
    return data_dir() / "cards" / f"{fingerprint[:40]}.json"


def save_card(path: Path, card: Card) -> None:
    """Keep the card of the file or folder ``path``. Raises OSError."""
    text = json.dumps(dataclasses.asdict(card), indent=1, ensure_ascii=False)
    write_atomically(card_path(card.fingerprint), text + "\n")
    save_entry(_STATE, str(path.absolute()), [*_stamp(path), card.fingerprint], _MOST)


def load_card(fingerprint: str) -> Card | None:
    """The card of such a file; None where none is kept, or it cannot be read."""
    with contextlib.suppress(OSError, *GARBLED):
        return from_json(Card, load_json(card_path(fingerprint)))
    return None


def known_cards(paths: list[Path]) -> dict[Path, Card]:
    """The cards of those of ``paths`` that are as they were when they were measured. Takes
    milliseconds."""
    known = load_state(_STATE)
    found: dict[Path, Card] = {}
    for path in paths:
        entry: Any = known.get(str(path.absolute()))
        if isinstance(entry, list) and len(entry) == 3 and isinstance(entry[2], str):
            card = load_card(entry[2]) if entry[:2] == _stamp(path) else None
            if card is not None and card.fingerprint == entry[2]:
                found[path] = card
    return found


def _stamp(path: Path) -> list[int]:
    """Size and time of last change, of a folder those of its files."""
    try:
        found = [one.stat() for one in files_of(path)]
    except OSError:
        return []
    return [sum(one.st_size for one in found), max((one.st_mtime_ns for one in found), default=0)]
