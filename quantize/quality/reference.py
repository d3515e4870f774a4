"""The float model's distributions on disk, a window at a time, for many files to be compared with.

Layout of the folder: ``reference.json`` (ids, text, figures), ``base.f16`` with the rows that
`fidelity.shifted` made, one for each scored position, and ``tops.i64`` with the likeliest ids.
``reference.json`` is written last: a folder that has it is whole.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quantize.errors import ToolError
from quantize.fromjson import from_json
from quantize.manifest import Perplexity
from quantize.quality.fidelity import (
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
    """The float model's distributions over a text."""

    folder: Path
    windows: Windows
    vocab: int
    perplexity: Perplexity

    def blocks(self) -> Iterator[tuple[Halves, Ints]]:
        """Each window's rows of logits [scored, vocab], and their likeliest ids.

        Raises ToolError when the files are shorter than they should be.
        """
        with (self.folder / _BASE).open("rb") as base, (self.folder / _TOPS).open("rb") as tops:
            for targets in self.windows.targets:
                rows = len(targets)
                half = np.fromfile(base, np.float16, rows * self.vocab)
                top = np.fromfile(tops, np.int64, rows)
                if half.size != rows * self.vocab or top.size != rows:
                    raise ToolError(
                        f"{self.folder} is shorter than it was written; start the run again"
                    )
                yield half.reshape(rows, self.vocab), top


def record(folder: Path, windows: Windows, text: Text, scored: Iterable[Floats]) -> None:
    """Write a reference: ``scored`` gives for each window the logits [scored, vocab] of its scored
    positions. Raises ToolError when the model gave no finite probabilities."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _NAME).unlink(missing_ok=True)
    nll, vocab = [], 0
    with (folder / _BASE).open("wb") as base, (folder / _TOPS).open("wb") as tops:
        for targets, logits in zip(windows.targets, scored, strict=True):
            vocab = logits.shape[1]
            base.write(shifted(logits).data)
            tops.write(logits.argmax(axis=1).astype(np.int64).data)
            nll.append(negative_log_likelihood(logits, targets))
    found = Perplexity(
        *perplexity(np.concatenate(nll)),
        tokens=windows.scored,
        text=text.name,
        text_sha256=text.sha256,
        windows=len(windows.ids),
    )
    if not np.isfinite(found.value):
        raise ToolError(
            "the float model gives no finite probabilities on the text that files are measured"
            " on: its weights are damaged, or its precision is too low for it"
        )
    written = dataclasses.asdict(FloatReference(folder, windows, vocab, found))
    del written["folder"]
    (folder / _NAME).write_text(json.dumps(written), encoding="utf-8")


def load_reference(folder: Path) -> FloatReference:
    """What ``record`` wrote to ``folder``. Raises ToolError when it is not there or damaged."""
    try:
        data = json.loads((folder / _NAME).read_text(encoding="utf-8"))
        found = from_json(FloatReference, {**data, "folder": folder})
        rows = (folder / _BASE).stat().st_size / 2 / found.vocab
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ToolError(f"{folder} holds no distributions of a float model ({error})") from error
    if rows != found.windows.scored:
        raise ToolError(f"{folder} is not whole: {rows:,.1f} of {found.windows.scored:,} positions")
    return found
