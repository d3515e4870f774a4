"""The float model's distributions on disk, a window at a time, for many files to be compared with.

Layout of the folder: ``reference.json`` (ids, text, figures), ``base.f16`` with the rows that
`divergence.shifted` made, one for each scored position, and ``tops.i64`` with the likeliest ids.
``reference.json`` is written last: a folder that has it is whole.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from quantize.errors import ToolError
from quantize.manifest import Perplexity
from quantize.quality.divergence import (
    Doubles,
    Floats,
    Halves,
    Ints,
    negative_log_likelihood,
    perplexity,
    shifted,
)
from quantize.quality.text import Text, Windows

_NAME, _BASE, _TOPS = "reference.json", "base.f16", "tops.i64"


def reference_bytes(vocab: int, tokens: int) -> int:
    """Bytes on disk of the float model's distributions at ``tokens`` scored positions."""
    return tokens * (2 * vocab + 8) + 16 * tokens + 4096  # rows and tops; the ids as text


@dataclass(frozen=True, slots=True)
class FloatReference:
    """The float model's distributions over a text. ``precision`` says what it was computed in."""

    folder: Path
    windows: Windows
    vocab: int
    perplexity: Perplexity
    precision: str

    def blocks(self) -> Iterator[tuple[tuple[int, ...], Halves, Ints]]:
        """Each window's ids, its rows of logits [scored, vocab], and their likeliest ids.

        Raises ToolError when the files are shorter than they should be.
        """
        with (self.folder / _BASE).open("rb") as base, (self.folder / _TOPS).open("rb") as tops:
            for ids in self.windows.ids:
                rows = len(ids) - 1 - self.windows.first
                half = np.fromfile(base, np.float16, rows * self.vocab)
                top = np.fromfile(tops, np.int64, rows)
                if half.size != rows * self.vocab or top.size != rows:
                    raise ToolError(
                        f"{self.folder} is shorter than it was written; start the run again"
                    )
                yield ids, half.reshape(rows, self.vocab), top


class Recorder:
    """Writes the windows of a reference one after another, then its description."""

    def __init__(self, folder: Path, windows: Windows, text: Text) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _NAME).unlink(missing_ok=True)
        self._folder, self._windows, self._text = folder, windows, text
        self._base: BinaryIO = (folder / _BASE).open("wb")
        self._tops: BinaryIO = (folder / _TOPS).open("wb")
        self._nll: list[Doubles] = []
        self._vocab = 0

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self._base.close()
        self._tops.close()

    def add(self, ids: tuple[int, ...], logits: Floats) -> None:
        """Take the logits [scored, vocab] of the next window's scored positions."""
        targets = np.array(ids[self._windows.first + 1 :], np.int64)
        self._vocab = logits.shape[1]
        self._base.write(shifted(logits).data)
        self._tops.write(logits.argmax(axis=1).astype(np.int64).data)
        self._nll.append(negative_log_likelihood(logits, targets))

    def finish(self, precision: str) -> None:
        """Write the description; raises ToolError when the model gave no finite probabilities."""
        figures = perplexity(np.concatenate(self._nll))
        if not np.isfinite(figures.value):
            raise ToolError(
                "the float model gives no finite probabilities on the text that files are measured"
                " on: its weights are damaged, or its precision is too low for it"
            )
        self._base.flush()
        self._tops.flush()
        found = Perplexity(
            value=figures.value,
            error=figures.error,
            tokens=self._windows.scored,
            text=self._text.name,
            text_sha256=self._text.sha256,
            windows=len(self._windows.ids),
        )
        described = {
            "windows": dataclasses.asdict(self._windows),
            "vocab": self._vocab,
            "perplexity": dataclasses.asdict(found),
            "precision": precision,
        }
        path = self._folder / _NAME
        path.write_text(json.dumps(described), encoding="utf-8")


def load_reference(folder: Path) -> FloatReference:
    """What a ``Recorder`` wrote to ``folder``. Raises ToolError when it is not there or damaged."""
    try:
        data: dict[str, Any] = json.loads((folder / _NAME).read_text(encoding="utf-8"))
        cut = data["windows"]
        windows = Windows(tuple(tuple(map(int, ids)) for ids in cut["ids"]), int(cut["first"]))
        found = FloatReference(
            folder=folder,
            windows=windows,
            vocab=int(data["vocab"]),
            perplexity=Perplexity(**data["perplexity"]),
            precision=str(data["precision"]),
        )
        rows = (folder / _BASE).stat().st_size / 2 / found.vocab
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ToolError(f"{folder} holds no distributions of a float model ({error})") from error
    if rows != windows.scored:
        raise ToolError(f"{folder} is not whole: {rows:,.1f} of {windows.scored:,} positions")
    return found
