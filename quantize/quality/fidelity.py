"""The float model's next-token distributions on disk, a window at a time, and how far a file's are
from them and may be.

Layout of the folder: ``reference.json`` (ids, text, figures), ``base.f16`` with the rows that
`shifted` made, one for each scored position, and ``tops.i64`` with the likeliest ids.
``reference.json`` is written last: a folder that has it is whole.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quantize.arrays import Doubles, Floats, Halves, Ints
from quantize.errors import MissedTargetError, QualityError, ToolError
from quantize.fromjson import GARBLED, from_json
from quantize.manifest import Fidelity, Perplexity
from quantize.quality.text import Text, Windows
from quantize.recipes import Recipe
from runtimes.settings import KvType

_NAME, _BASE, _TOPS = "reference.json", "base.f16", "tops.i64"
_FLOOR = np.float32(-65504.0)  # stands for minus infinity: exp() of it is 0, and 0 times it is 0
_BLOCK = 2**22  # logits that are worked on at once


class Scores(NamedTuple):
    """Figures of each scored position of a text, in order."""

    nll: Doubles  # minus the natural log-probability of the id that follows
    kl: Doubles  # the divergence from the float model in nats
    same: npt.NDArray[np.bool_]  # whether both find the same id the most likely


def shifted(logits: Floats) -> Halves:
    """Logits less the largest of their row, in half precision: [rows, vocab].

    The softmax of what comes out is the float model's distribution with each probability p off by
    a factor of at most 1 + 2^-11 |log p - log max p|: a divergence of about 1e-7 nats, a thousandth
    of what 8-bit weights make.
    """
    with np.errstate(over="ignore"):
        blocks = (block - block.max(axis=1, keepdims=True) for _, block in _blocks(logits))
        return np.concatenate([block.astype(np.float16) for block in blocks])


def negative_log_likelihood(logits: Floats, targets: Ints) -> Doubles:
    """Minus the log-softmax of each row at its target: [rows]."""
    parts = [
        _log_total(block) - block[np.arange(len(block)), targets[rows]]
        for rows, block in _blocks(logits)
    ]
    return np.concatenate(parts)


def compare(base: Halves, tops: Ints, logits: Floats, targets: Ints) -> Scores:
    """Score ``logits`` [rows, vocab] against what ``shifted`` made of the float model's.

    ``tops`` are the float model's likeliest ids. Where one of the two has more columns (rows that
    only fill up a vocabulary), both are taken over the ids that they share.
    """
    width = min(base.shape[1], logits.shape[1])
    parts = []
    for rows, block in _blocks(logits[:, :width]):
        p, q = np.maximum(base[rows, :width].astype(np.float32), _FLOOR), np.maximum(block, _FLOOR)
        q_total = _log_total(q)
        weights = np.exp(p)
        mass = weights.sum(axis=1, dtype=np.float64)
        # The sum over ids of p (log p - log q), with log p = p - log(mass), log q = q - q_total.
        apart = (weights * (p - q)).sum(axis=1, dtype=np.float64) / mass
        nll = q_total - q[np.arange(len(q)), targets[rows]]
        parts.append(Scores(nll, apart - np.log(mass) + q_total, q.argmax(axis=1) == tops[rows]))
    return joined(parts)


def joined(parts: Sequence[Scores]) -> Scores:
    """The positions of all ``parts``, one part after the other."""
    return Scores(*map(np.concatenate, zip(*parts, strict=True)))


def mean(values: Doubles) -> tuple[float, float]:
    """Mean and standard error, taking positions as independent, as llama.cpp's tool does."""
    count = len(values)
    return float(values.mean()), float(values.std() / math.sqrt(max(count - 1, 1)))


def perplexity(nll: Doubles) -> tuple[float, float]:
    """The exponential of the mean, and its error by first-order propagation."""
    log, error = mean(nll)
    value = math.exp(min(log, 700.0))  # beyond, a double ends
    return value, value * error


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


@dataclass(frozen=True, slots=True)
class CacheLosses:
    """Mean KL divergence, in nats, that a type of the keys alone ("q8_0:f16") or of the values
    alone ("f16:q8_0") adds, scored at the end of pieces of ``tokens`` tokens."""

    tokens: int
    losses: dict[KvType, float]

    def of(self, keys: str, values: str) -> float:
        """The loss of both together: small errors of the two add up."""
        return sum(max(self.losses.get(one, 0.0), 0.0) for one in (f"{keys}:f16", f"f16:{values}"))


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
    """Read what ``record`` wrote to ``folder``. Raises ToolError when it is not there or
    damaged."""
    try:
        data = json.loads((folder / _NAME).read_bytes())
        found = from_json(FloatReference, {**data, "folder": folder})
        rows = (folder / _BASE).stat().st_size / 2 / found.vocab
    except (OSError, ArithmeticError, RecursionError, *GARBLED) as error:
        raise ToolError(f"{folder} holds no distributions of a float model ({error})") from error
    if rows != found.windows.scored:
        raise ToolError(f"{folder} is not whole: {rows:,.1f} of {found.windows.scored:,} positions")
    return found


def summed_up(scores: Scores, of: Perplexity) -> Fidelity:
    """The figures of a file that scored so on the text of the float model's perplexity ``of``."""
    value, error = perplexity(scores.nll)
    median, p99, p999, most = map(float, np.percentile(scores.kl, (50, 99, 99.9, 100)))
    return Fidelity(
        replace(of, value=value, error=error),
        *mean(scores.kl),
        kl_p99=p99,
        same_top=float(scores.same.mean()),
        kl_median=median,
        kl_p999=p999,
        kl_max=most,
    )


def require_quality(recipe: Recipe, fidelity: Fidelity) -> None:
    """Raise QualityError when a file is worse than ``recipe.limits``, or gives no probabilities.

    A recipe without limits takes any finite figures.
    """
    problems, limits, of = [], recipe.limits, fidelity.perplexity
    if not (math.isfinite(fidelity.kl_mean) and math.isfinite(of.value)):
        problems.append("it gives no finite probabilities")
    elif limits is not None:
        if fidelity.kl_mean > limits.kl_mean:
            problems.append(
                f"mean KL divergence {fidelity.kl_mean:.4g} (error {fidelity.kl_error:.2g}), the"
                f" limit is {limits.kl_mean:.4g}"
            )
        if fidelity.same_top < limits.same_top:
            problems.append(
                f"the same most likely token at {fidelity.same_top:.1%} of the positions, the limit"
                f" is {limits.same_top:.1%}"
            )
    if problems and recipe.target and recipe.target.most_kl:
        raise MissedTargetError(
            f"{recipe.name} is too far from the float model: {'; '.join(problems)}, keys and values"
            " included. Nothing was published for it: give more memory (--fits), a shorter"
            " --context, or a larger --max-kl"
        )
    if problems:
        raise QualityError(
            f"{recipe.name} is too far from the float model: {'; '.join(problems)}.\n"
            f"Measured on {of.tokens:,} tokens of the {of.text} (perplexity {of.value:.4g}).\n"
            "Nothing was published for it. If the text does not suit the model (another language,"
            " say), measure with one that does: --measure-text FILE. Otherwise choose a recipe with"
            f" more bits than {recipe.name}, an importance matrix (--imatrix FILE), --gptq, or"
            " publish it all the same with --no-gates"
        )


def _blocks(logits: Floats) -> list[tuple[slice, Floats]]:
    rows = max(1, _BLOCK // logits.shape[1])
    starts = range(0, len(logits), rows)
    return [(slice(at, at + rows), logits[at : at + rows]) for at in starts]


def _log_total(logits: Floats) -> Doubles:
    """log(sum(exp(logits))) of each row."""
    top = logits.max(axis=1)
    total: Doubles = top + np.log(np.exp(logits - top[:, None]).sum(axis=1, dtype=np.float64))
    return total
