"""Tables of what each tensor's types cost and lose, and the choice: the least of one total that
keeps a bound on the other.
"""

import json
import math
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quantize.allocate.sweep import Matrix
from quantize.arrays import Floats, Ints
from quantize.disk import sha256_text, write_atomically
from quantize.errors import ToolError
from quantize.fromjson import GARBLED, from_json
from quantize.quality.fidelity import CacheLosses
from quantize.quality.text import WINDOW
from quantize.source import SourceModel
from quantize.source.shapes import shapes_of
from runtimes.errors import ModelError
from runtimes.settings import KvType


@dataclass(frozen=True, slots=True)
class TypeChoice:
    """One type of one tensor: its ``bytes`` in the file, and the mean KL divergence a token, in
    nats, that it alone is predicted to cause."""

    kind: str
    bytes: int
    kl: float


@dataclass(frozen=True, slots=True)
class Unit:
    """A tensor of so many ``matrices`` [``rows``, ``width``], whose type is chosen by itself.

    ``importance`` has for each column how much errors in it matter, where the format's rounding is
    weighed by the table."""

    name: str
    matrices: int
    rows: int
    width: int
    choices: tuple[TypeChoice, ...]
    importance: tuple[float, ...] = ()

    @property
    def weights(self) -> int:
        """How many there are."""
        return self.matrices * self.rows * self.width

    def choice(self, kind: str) -> TypeChoice:
        """The one of that type. Raises KeyError."""
        found = next((choice for choice in self.choices if choice.kind == kind), None)
        if found is None:
            raise KeyError(f"{self.name} has no {kind}")
        return found


Figure = Callable[[Unit, TypeChoice], float]
Types = Mapping[str, str]  # of tensors, by their names


@dataclass(frozen=True, slots=True)
class TypeTable:
    """All tensors of a model whose type can be chosen; measured over ``tokens`` of ``text``."""

    units: tuple[Unit, ...]
    tokens: int
    text: str

    def least(self, figure: Figure) -> float:
        """The sum of the least ``figure`` of each tensor."""
        return sum(min(figure(unit, c) for c in unit.choices) for unit in self.units)

    def total(self, kinds: Types) -> TypeChoice:
        """Bytes and predicted divergence together, of the types by tensor ``kinds``."""
        return total([unit.choice(kinds[unit.name]) for unit in self.units])


def write_table(path: Path, table: TypeTable) -> None:
    """With a checksum, which `read_table` looks at."""
    whole = {"table": asdict(table)}
    whole["sha256"] = _checksum(whole["table"])  # type: ignore[assignment]
    write_atomically(path, json.dumps(whole))


def read_table(path: Path) -> TypeTable:
    """Raises ToolError for a file that is not as it was written, OSError where there is none."""
    text = path.read_text(encoding="utf-8")
    try:
        whole = json.loads(text)
        if whole["sha256"] != _checksum(whole["table"]):
            raise ValueError("its checksum is another")
        return from_json(TypeTable, whole["table"])
    except GARBLED as error:
        raise ToolError(
            f"the table of sensitivities {path} was changed or damaged ({error}): delete it, and it"
            " is measured again"
        ) from error


def _checksum(value: Any) -> str:
    return sha256_text(json.dumps(value, sort_keys=True))


_STEPS = 1 << 15  # of the bound; what rounding up to them leaves is spent one tensor at a time

_PRICES = 60


def size(_unit: Unit, choice: TypeChoice) -> float:
    """Bytes of a choice."""
    return choice.bytes


def loss(_unit: Unit, choice: TypeChoice) -> float:
    """The divergence that it is predicted to cause."""
    return choice.kl


def solve(
    units: Sequence[Unit], cost: Figure, bound: Figure, limit: float
) -> dict[str, str] | None:
    """The types by tensor of the least ``cost`` whose ``bound`` adds up to ``limit`` at most; None
    where even the least of all choices is beyond it.

    A knapsack of one choice a unit, by dynamic programming over the bound in `_STEPS`.
    """
    options = [
        [(cost(unit, choice), bound(unit, choice)) for choice in unit.choices] for unit in units
    ]
    least = [min(taken for _, taken in option) for option in options]
    room = limit - sum(least)
    if room < 0:
        return None
    # Of each unit its least choice is paid for; what is shared out is what is left.
    step = max(room / _STEPS, 1e-300)
    reached = np.zeros(_STEPS + 1)
    picks = []
    for option, low in zip(options, least, strict=True):
        found = np.full(_STEPS + 1, np.inf)
        pick = np.zeros(_STEPS + 1, np.uint8)
        for i, (price, taken) in enumerate(option):
            steps = _steps(taken - low, step)
            if steps > _STEPS:
                continue
            tried = reached[: _STEPS + 1 - steps] + price
            better = tried < found[steps:]
            found[steps:][better] = tried[better]
            pick[steps:][better] = i
        reached = found
        picks.append(pick)
    at, chosen = int(reached.argmin()), list[int]()
    for option, low, pick in zip(reversed(options), reversed(least), reversed(picks), strict=True):
        chosen.append(int(pick[at]))
        at -= _steps(option[chosen[-1]][1] - low, step)
    chosen.reverse()
    _spend(options, chosen, limit)
    return {unit.name: unit.choices[i].kind for unit, i in zip(units, chosen, strict=True)}


def mixes(units: Sequence[Unit]) -> list[TypeChoice]:
    """Bytes and predicted divergence of some of the best choices there are, by size: those that a
    price of bytes in divergence, from very low to very high, picks."""
    found: dict[float, TypeChoice] = {}
    for price in np.logspace(-16, 2, _PRICES):
        picked = [min(u.choices, key=lambda c: c.bytes * price + c.kl) for u in units]
        mix = total(picked)
        found[mix.bytes] = mix
    return [found[size] for size in sorted(found)]


def total(choices: Sequence[TypeChoice]) -> TypeChoice:
    """Bytes and divergence of all together."""
    return TypeChoice("", sum(c.bytes for c in choices), sum(c.kl for c in choices))


def _steps(taken: float, step: float) -> int:
    return int(np.ceil(taken / step - 1e-9))


def _spend(
    options: Sequence[Sequence[tuple[float, float]]], chosen: list[int], limit: float
) -> None:
    """Make the most useful single changes that what is left of the bound still allows."""
    left = limit - sum(option[i][1] for option, i in zip(options, chosen, strict=True))
    while True:
        changes = [
            (option[now][0] - cost, unit, other)
            for unit, (option, now) in enumerate(zip(options, chosen, strict=True))
            for other, (cost, taken) in enumerate(option)
            if cost < option[now][0] and taken - option[now][1] <= left
        ]
        if not changes:
            return
        _, unit, other = max(changes)
        left -= options[unit][other][1] - options[unit][chosen[unit]][1]
        chosen[unit] = other


# What the types of a format cost and lose, tried on a tensor's weights.


SAMPLE = 1 << 18  # weights of a tensor that are rounded in every type; of more a sample of rows


@dataclass(frozen=True, slots=True)
class Rater:
    """How a format's table is made: ``rate`` tells what each of its types takes and loses, of a
    tensor whose sensitivities were summed over so many tokens. It is called in a child process.
    ``key`` is a hash of what decides the table besides the code in this folder."""

    key: str
    rate: Callable[[Matrix, int], Unit]


def rated(
    tensor: Matrix,
    tokens: int,
    kinds: Mapping[str, tuple[int, float]],
    stored: Callable[[Floats, str, int], Floats],
    importance: tuple[float, ...] = (),
) -> Unit:
    """The ``tensor``, of sensitivities summed over the ``tokens``, with its choices.

    ``kinds`` has the bytes of each type, and the divergence by the inputs of its kernels, summed
    over the tokens; ``stored`` makes of rows of the tensor's matrix of that number what the type
    stores. Raises ModelError.
    """
    lost = dict.fromkeys(kinds, 0.0)
    most = SAMPLE // len(tensor.weight)
    for i, (weight, fisher) in enumerate(zip(tensor.weight, tensor.fisher, strict=True)):
        rows, scale = _sampled(weight, fisher, most)
        weight, worth = weight[rows], fisher[rows] * scale[:, None]
        for kind in lost:
            moved = stored(weight, kind, i) - weight
            lost[kind] += 0.5 * float((worth * moved**2).sum(dtype=np.float64))
    if not np.isfinite(list(lost.values())).all():
        raise ModelError(f"{tensor.name} has weights or gradients that are not finite")
    choices = (
        TypeChoice(kind, nbytes, (lost[kind] + inputs) / tokens)
        for kind, (nbytes, inputs) in kinds.items()
    )
    count, rows, width = tensor.weight.shape
    return Unit(tensor.name, count, rows, width, tuple(choices), importance)


def _sampled(weight: Floats, fisher: Floats, most: int) -> tuple[Ints, Floats]:
    """Rows whose errors stand for those of all, and how many rows each stands for: those that
    matter most by themselves, and of the rest some that are drawn."""
    rows, keep = len(weight), max(64, most // weight.shape[1])
    if rows <= keep:
        return np.arange(rows), np.ones(rows, np.float32)
    order = np.argsort(-np.einsum("ij,ij,ij->i", fisher, weight, weight))
    top, rest = order[: keep // 2], order[keep // 2 :]
    drawn = np.random.default_rng(0).choice(rest, keep - len(top), replace=False)
    scale = np.ones(keep, np.float32)
    scale[len(top) :] = len(rest) / len(drawn)
    return np.concatenate([top, drawn]), scale


# What measuring a table takes, before it begins: memory, and time.


WINDOWS = 8  # of text that sensitivities are measured on
_FLOAT = 4  # bytes
_COPIES = 3  # of a layer's weights: in single precision, gradients, and their squares
_OF_OUTPUT = 2  # whose gradients are never held at once
_LOGITS = 4  # copies of a window's: of half and of single precision, probabilities, gradients
_STATES = 24  # times the hidden size, for each token of a window: what one layer keeps to go back
_PASSES = 4  # forward, once more, and back, which is two
_ROUNDING_S = 4e-7  # seconds a weight, for all types; of large matrices a sample is rounded
_SIDE = 1024  # of the matrix product that tells how fast this machine is


def sweep_bytes(source: SourceModel) -> int:
    """Memory that `quantize.allocate.sweep` takes at most: the weights, which are read where they
    lie, and with them a layer, the output or the embedding in single precision, and a window's
    states. An embedding of its own is not read before its turn."""
    layer, head, width, vocab, tied = _parts(source)
    stored = source.bytes / max(source.parameters, 1)
    wide, window = head * _FLOAT * _OF_OUTPUT, WINDOW * _FLOAT
    return source.bytes + max(
        layer * _FLOAT * _COPIES + window * width * _STATES,
        wide + window * vocab * _LOGITS - (0 if tied else int(head * stored)),
        wide,
    )


def sweep_seconds(source: SourceModel) -> float:
    """About how long it takes here, by the speed of one matrix product."""
    a = np.ones((_SIDE, _SIDE), np.float32)
    rate = 2 * _SIDE**3 / min(timeit.repeat(lambda: a @ a, number=1, repeat=3))
    products = 2 * source.parameters * WINDOW * WINDOWS * _PASSES / rate
    return products + source.parameters * _ROUNDING_S


def _parts(source: SourceModel) -> tuple[int, int, int, int, bool]:
    """Weights of the largest layer and of the output, the hidden size, the vocabulary, and whether
    the output is the embedding."""
    shapes = shapes_of(source).weights
    layers: dict[str, int] = {}
    for name, shape in shapes.items():
        if name.startswith("blk."):
            number = name.split(".")[1]
            layers[number] = layers.get(number, 0) + math.prod(shape)
    width, vocab = (*shapes.get("token_embd.weight", (0, 0)), 0)[:2]
    tied = "output.weight" not in shapes
    return max(layers.values(), default=0), width * vocab, width, vocab, tied


# A cache's types beside those of the weights: one sum of bytes, one sum of divergence.


def choose_cache(
    mixes: Sequence[TypeChoice], room: Callable[[KvType], float], found: CacheLosses
) -> KvType:
    """The types of keys and values with which the best weights for what memory they leave,
    ``room(types)`` bytes, are predicted to lose least. ``mixes`` are weights by size, the smallest
    first. Where not even those fit beside any cache, it is the smallest cache."""
    kinds = ["f16", *dict.fromkeys(kind.replace("f16", "").strip(":") for kind in found.losses)]
    pairs = {
        (keys if keys == values else f"{keys}:{values}"): found.of(keys, values)
        for keys in kinds
        for values in kinds
    }
    lost = {pair: loss + _best(mixes, room(pair)) for pair, loss in pairs.items()}
    best = min(lost, key=lambda pair: lost[pair])
    return best if math.isfinite(lost[best]) else max(pairs, key=room)


def _best(mixes: Sequence[TypeChoice], room: float) -> float:
    """Predicted loss of the best weights in so many bytes, between two mixes by a straight line in
    the logarithm of the loss; infinite where none is as small."""
    smaller = [mix for mix in mixes if mix.bytes <= room]
    if not smaller:
        return math.inf
    below = smaller[-1]
    if len(smaller) == len(mixes):
        return below.kl
    above = mixes[len(smaller)]
    if min(below.kl, above.kl) <= 0:
        return below.kl
    part = (room - below.bytes) / (above.bytes - below.bytes)
    return below.kl * math.exp(part * math.log(above.kl / below.kl))
