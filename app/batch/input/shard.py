"""A part of the rows, so that several machines can share a job."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from runtimes.errors import RequestError

_MOST = 100_000


@dataclass(frozen=True, slots=True)
class Shard:
    """Part ``number`` of ``count``, counted from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From I/N on the command line. Raises RequestError."""
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        shard = cls(int(match[1]), int(match[2])) if match else cls(0, 0)
        if not 1 <= shard.number <= shard.count <= _MOST:
            raise RequestError(
                f"--shard must be I/N with I from 1 to N, such as 2/4, not {text[:40]!r}"
            )
        return shard

    def has(self, identity: str | int) -> bool:
        """Whether the row of this id belongs to the part. By a hash of the id, so that a row stays
        in its part when others are added or taken away; rows without an id go by their index."""
        text = str(identity).encode("utf-8", errors="surrogatepass")
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.count == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"
