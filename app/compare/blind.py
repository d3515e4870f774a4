"""A preference by one who does not know which file is which: answers that differ, in pairs, in an
order and on sides that chance decides. Votes are kept at once, and hold as long as the two texts
stay the same."""

from __future__ import annotations

import hashlib
import json
import os
import random
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from app.compare.results import Results, Votes, wilson


class Vote(StrEnum):
    """For the first file of a report, for the later one, or for none."""

    FIRST = "first"
    OTHER = "other"
    TIE = "tie"
    SKIP = "skip"


class Sided(StrEnum):
    """What the user says, who sees sides only."""

    LEFT = "left"
    RIGHT = "right"
    TIE = "tie"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class BlindPair:
    """Two answers to one prompt: the first file's, and that of file ``other``; ``swapped``: the
    other one's is shown at the left."""

    row: int  # which of the report's rows
    other: int
    swapped: bool
    key: str

    def vote(self, said: Sided) -> Vote:
        """Which file that is for."""
        if said in (Sided.TIE, Sided.SKIP):
            return Vote(said.value)
        return Vote.OTHER if (said is Sided.LEFT) == self.swapped else Vote.FIRST


class Ballot:
    """The pairs of a report, and what was said of them so far; in ``path``, a line a vote."""

    def __init__(
        self, results: Results, path: Path, *, chance: random.Random | None = None
    ) -> None:
        """Raises OSError when votes are there that cannot be read."""
        self.results = results
        self._path = path
        self.votes = _read(path)
        chance = chance or random.Random(path.parent.name)  # the same ones when one goes on later
        self.pairs = [
            BlindPair(
                at, other, chance.random() < 0.5, _key(row.prompt, row.answers[0].text, told.text)
            )
            for at, row in enumerate(results.rows)
            for other, told in enumerate(row.answers[1:], 1)
            if row.same(other) is False
        ]
        chance.shuffle(self.pairs)

    @property
    def next(self) -> BlindPair | None:
        """The one to be judged; None when all are."""
        return next((pair for pair in self.pairs if pair.key not in self.votes), None)

    @property
    def done(self) -> int:
        """How many were judged."""
        return sum(pair.key in self.votes for pair in self.pairs)

    def say(self, pair: BlindPair, said: Sided) -> None:
        """Keep a vote. Raises OSError."""
        vote = pair.vote(said)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": pair.key, "vote": str(vote)}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.votes[pair.key] = vote

    def take_back(self) -> bool:
        """Forget the last vote; False when there is none. Raises OSError."""
        if not self.votes:
            return False
        key = next(reversed(self.votes))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "vote": None}) + "\n")
        del self.votes[key]
        return True

    def count(self) -> tuple[Votes, ...]:
        """What the votes say of each later file; empty without votes."""
        found = []
        for other in range(1, len(self.results.files)):
            said = [self.votes.get(pair.key) for pair in self.pairs if pair.other == other]
            wins, losses = said.count(Vote.OTHER), said.count(Vote.FIRST)
            ties, skipped = said.count(Vote.TIE), said.count(Vote.SKIP)
            if wins or losses or ties or skipped:
                low, high = wilson(wins, wins + losses)
                found.append(Votes(other, wins, losses, ties, skipped, low, high))
        return tuple(found)


def _read(path: Path) -> dict[str, Vote]:
    found: dict[str, Vote] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return found
    for line in lines:
        try:
            said = json.loads(line)
            key, vote = str(said["key"]), said["vote"]
            found.pop(key, None)
            if vote is not None:
                found[key] = Vote(vote)
        except (ValueError, KeyError, TypeError):
            continue  # a line that a power cut tore
    return found


def _key(*texts: str) -> str:
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=12).hexdigest()
