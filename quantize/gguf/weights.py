"""The weights of a GGUF file against those of the original in single or half precision: which are
not what rounding makes of them, and the texts of their vocabularies. Runs in a child process, but
for `other_settings`.

A tensor is judged by what its type loses on some of its rows, rounded here. A group of 32 weights
that lies as far from its original as another's would is another's: a block that was shifted, a row
that was swapped. A tensor that lies several times as far as rounding does has wrong scales.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from quantize.arrays import Floats
from quantize.children import counted
from quantize.gguf.codes import COMPENSATED, moved_share
from quantize.gguf.ggml import rounded, unpacked
from quantize.gguf.imatrixfile import ImportanceMatrix, read_matrix
from quantize.gguf.quantize import TYPES, needs_matrix
from runtimes.llamacpp.tokenizer import LlamaTokenizer
from runtimes.models.gguf import GgufHeader, TensorInfo, read_header

_GROUP = 32
_SAMPLED, _FEW = 64, 4  # rows; few of the types whose rounding searches for long
_SEARCHING = ("iq1", "iq2", "iq3")
_AT_ONCE = 2**22  # weights
_FLOAT_ERROR = 1e-5  # of bfloat16, squared and relative, with room
_FLOATS = ("F32", "F16", "BF16")
_WORSE = 3.0  # times the error of plain rounding; an importance matrix makes it 1.5 at most
_MOVED = 0.01  # of the weights: a tensor's errors were made up for
_UNLIKE = 0.5  # cosine of a group and its original: another's, below
_RESIZED = 4.0  # times the square of a group and its original's
_OTHER = 0.5  # of a group's own square: rounding loses less of it, another group's weights more
_APART = 12.0  # times the mean error of a group
_ANOTHER = 2.0  # times its square lies another group apart: more than that is told from nothing
_SEEN = 0.2  # of the mean square of a group in its row: smaller ones may be lost in rounding
_DIFFERS = 0.01  # of the weights: the rounding followed a matrix
_FITS = 0.45  # of what a matrix gains over a random one; those of other texts gain 0.5 to 0.9
_SHOWN = 3
# Settings that a file may have otherwise without computing otherwise.
_FREE = ("vocab_size", "context_length")
_OF_TOKENS = (
    *("model", "pre", "add_bos_token", "add_eos_token", "bos_token_id", "eos_token_id"),
    *("add_space_prefix", "unknown_token_id"),
)


@dataclass(frozen=True, slots=True)
class WeightComparison:
    """How many tensors were compared, and what is wrong, in words; ``left_out`` are names of those
    that only one of the files has, or that have another shape there."""

    compared: int
    faults: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def other_settings(file: GgufHeader, original: GgufHeader) -> list[str]:
    """Settings that decide how the model computes and that the headers give otherwise, in words."""
    mine, theirs = file.metadata, original.metadata
    prefix = f"{theirs.get('general.architecture')}."
    keys = [key for key in theirs if key.startswith(prefix) and key[len(prefix) :] not in _FREE]
    keys += [f"tokenizer.ggml.{name}" for name in _OF_TOKENS]
    return [
        f"{key} is {mine[key]!r:.60} in the file and {theirs[key]!r:.60} in the original"
        for key in keys
        if key in mine and key in theirs and not _alike(mine[key], theirs[key])
    ]


def _alike(mine: object, theirs: object) -> bool:
    if isinstance(mine, float) or isinstance(theirs, float):
        numbers = [one for one in (mine, theirs) if isinstance(one, (int, float))]
        return len(numbers) == 2 and math.isclose(*numbers, rel_tol=1e-5, abs_tol=1e-12)
    return mine == theirs


def _other_tokens(path: Path, original: Path) -> list[str]:
    """Ids that stand for another text in the vocabulary of ``path``."""
    mine, theirs = LlamaTokenizer.load(path), LlamaTokenizer.load(original)
    size = min(mine.vocab_size, theirs.vocab_size)
    apart = [id for id in range(size) if mine.token_bytes(id) != theirs.token_bytes(id)]
    if not apart:
        return []
    first = apart[0]
    said = f"{theirs.token_bytes(first)!r:.40}, in the file {mine.token_bytes(first)!r:.40}"
    stands = f"{len(apart):,} ids of {size:,} stand for other texts, such as {first}: {said}"
    return [f"vocabulary: {stands}"]


def compare_weights(path: Path, original: Path, matrix: Path | None) -> WeightComparison:
    """Compare every tensor that ``path`` and ``original``, a GGUF file of floats, have both. With
    an importance ``matrix`` of the original also whether the rounding followed one that fits."""
    files = read_header(path), read_header(original)
    mine, theirs = ({one.name: one for one in header.tensors} for header in files)
    names = [name for name in theirs if name in mine and mine[name].shape == theirs[name].shape]
    maps = [
        np.memmap(one, np.uint8, "r", offset=header.data_begins)
        for one, header in zip((path, original), files, strict=True)
    ]
    given = read_matrix(matrix) if matrix is not None else None
    faults, ratios = list[str](), list[float]()
    compensated = COMPENSATED in files[0].metadata
    for name in counted(names, "tensors"):
        one, other = _Stored(maps[0], mine[name]), _Stored(maps[1], theirs[name])
        # The errors of such a tensor are what others were made up for, and follow no matrix.
        free = compensated and _moved(one, other)
        loss, ratio = _loss(one, other, None if free else given)
        ratios += [] if ratio is None else [ratio]
        if fault := _fault(one, other, loss, compensated=free):
            faults.append(f"weights: {name} ({mine[name].type_name}): {fault}")
    if len(faults) > _SHOWN:
        faults[_SHOWN:] = [f"weights: {len(faults) - _SHOWN} further tensors are wrong, too"]
    several = len(ratios) > len(names) // 4  # followed a matrix, and not one tensor by mistake
    if several and not faults and (gained := float(np.median(ratios))) < _FITS:
        faults.append(
            "weights: the rounding follows an importance matrix that does not fit: of what one of"
            f" this model gains on the text over a random one, it gains {gained:.0%}"
        )
    names_apart = {*mine, *theirs} - {*names}
    told = *_other_tokens(path, original), *faults
    return WeightComparison(len(names), told, tuple(sorted(names_apart)))


class _Stored:
    """A tensor in a file, as rows of floats."""

    def __init__(self, data: np.memmap, info: TensorInfo) -> None:
        self.kind = info.type_name
        self.width, self.rows = info.shape[0], math.prod(info.shape[1:])
        raw = data[info.offset : info.offset + info.nbytes]
        self.packed = raw.reshape(self.rows, -1)
        self.name = info.name

    def floats(self, at: slice | npt.NDArray[np.int64]) -> Floats:
        """The rows ``at``, an index of numpy."""
        rows = np.ascontiguousarray(self.packed[at])
        return unpacked(rows, self.kind.lower(), self.width)


def _sample(one: _Stored, count: int) -> npt.NDArray[np.int64]:
    """Some of the rows."""
    return np.unique(np.linspace(0, one.rows - 1, count).astype(np.int64))


def _moved(one: _Stored, other: _Stored) -> bool:
    """Whether errors of the tensor were made up for."""
    at = _sample(one, _SAMPLED)
    share = moved_share(one.packed[at], one.kind.lower(), other.floats(at))
    return share is not None and share > _MOVED


def _loss(
    one: _Stored, other: _Stored, given: ImportanceMatrix | None
) -> tuple[float, float | None]:
    """The loss of the type: squared error over squares, by plain rounding of some rows; and which
    part the file has of what ``given`` gains over one that does not fit, None where it rounds
    plainly."""
    if one.kind in _FLOATS:
        return _FLOAT_ERROR, None
    kind = one.kind.lower()
    count = _FEW if kind.startswith(_SEARCHING) else _SAMPLED
    at = _sample(one, count)
    rows = other.floats(at)
    if kind not in TYPES:
        return math.inf, None
    plain = np.ones(one.width, np.float32) if needs_matrix(kind, one.name) else None
    usual, stored = rounded(rows, kind, plain), one.floats(at)
    loss = float(np.square(rows - usual).sum() / max(np.square(rows).sum(), 1e-30))
    entry = given.entries.get(one.name) if given is not None else None
    if entry is None or entry.means.size != one.width or plain is not None:
        return loss, None
    if np.mean(stored != usual) < _DIFFERS:
        return loss, None
    # Some of the gain is anybody's: a matrix that says nothing of this model has it, too.
    astray = rounded(rows, kind, np.random.default_rng(0).permutation(entry.means))
    best = rounded(rows, kind, entry.means)
    worst, mine, least = (
        float((np.square(rows - found) * entry.means).sum()) for found in (astray, stored, best)
    )
    return loss, (worst - mine) / (worst - least) if worst > least else None


def _fault(one: _Stored, other: _Stored, loss: float, *, compensated: bool) -> str | None:
    """The fault of a tensor, in words; None where it is sound. Where its errors are ``compensated``
    a group may lie far from its original, but in no other direction and of no other size."""
    most = _WORSE * (_WORSE if compensated else 1)
    error = square = 0.0
    wrong, first = 0, -1
    for start, mine, theirs in _pieces(one, other):
        if not np.isfinite(mine).all():
            return "it holds values that are not numbers"
        apart, own, there = _groups(mine - theirs), _groups(theirs), _groups(mine)
        error, square = error + float(apart.sum()), square + float(own.sum())
        usual = own.mean(axis=1, keepdims=True)
        if _APART * loss > _ANOTHER:
            continue
        bad = (apart > _OTHER * own) & (apart > max(_APART * loss, _SEEN) * usual)
        if compensated:
            unlike = own + there - apart < 2 * _UNLIKE * np.sqrt(own * there)
            bad &= unlike | (there < own / _RESIZED) | (there > own * _RESIZED)
        if bad.any():
            first = start + int(bad.any(axis=1).argmax()) if first < 0 else first
            wrong += int(bad.sum())
    if wrong:
        groups = one.rows * -(-one.width // _GROUP)
        return (
            f"{wrong:,} of {groups:,} groups of {_GROUP} weights are not the original's, the first"
            f" in row {first:,}"
        )
    if error > most * loss * square and error > 1e-12 * square:
        times = error / square / loss
        return f"it lies {times:,.0f} times as far from the original as rounding to its type does"
    return None


def _pieces(one: _Stored, other: _Stored) -> Iterator[tuple[int, Floats, Floats]]:
    step = max(1, _AT_ONCE // one.width)
    for start in range(0, one.rows, step):
        at = slice(start, start + step)
        yield start, one.floats(at), other.floats(at)


def _groups(rows: Floats) -> Floats:
    """Sums of squares of each 32 weights: [rows, groups]."""
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % _GROUP)))
    found: Floats = np.square(padded.reshape(len(rows), -1, _GROUP)).sum(axis=2)
    return found
