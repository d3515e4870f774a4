"""How matrices of an ONNX graph may be stored."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from quantize.errors import UsageError

_BLOCKS = (16, 32, 64, 128, 256)  # of MatMulNBits
W8A8 = "w8a8"
_SCALE = 4  # bytes of a channel's in such a matrix
_NAME = re.compile(r"([48])([sz])(\d+)")


@dataclass(frozen=True, slots=True)
class Variant:
    """How a matrix is stored."""

    bits: int
    block: int  # weights that share a scale; 0 is a whole row, multiplied by inputs in 8 bits
    symmetric: bool  # no zero points: that of all is in the middle

    @property
    def name(self) -> str:
        """Name such as 4z32: 4 bits, blocks of 32 with zero points; 8s64 has none."""
        if not self.block:
            return W8A8
        return f"{self.bits}{'s' if self.symmetric else 'z'}{self.block}"

    def row_bytes(self, inputs: int) -> int:
        """Bytes of ``inputs`` weights, with scales in half precision and zero points."""
        if not self.block:
            return inputs + _SCALE
        blocks = -(-inputs // self.block)
        zeros = 0 if self.symmetric else -(-blocks * self.bits // 8)
        return blocks * (self.block * self.bits // 8 + 2) + zeros

    def bits_per_weight(self, inputs: int) -> float:
        """In rows of ``inputs`` weights."""
        return 8 * self.row_bytes(inputs) / inputs

    def fitting(self, inputs: int) -> "Variant":
        """With the largest block, from its own down to 32, that divides ``inputs``: to fill up a
        block takes space for nothing."""
        if not self.block:
            return self
        sizes = [size for size in _BLOCKS if 32 < size <= self.block and inputs % size == 0]
        return replace(self, block=max(sizes, default=min(self.block, 32)))


@dataclass(frozen=True, slots=True)
class Mix:
    """A variant for each tensor, both by their names (a tensor has that of GGUF), instead of a
    recipe's: ``importance`` (.npz) has for each how much its input channels matter. ``metadata`` is
    what the graph says of itself."""

    variants: Mapping[str, str]
    importance: Path
    metadata: Mapping[str, str]


def parse_variant(name: str) -> Variant:
    """The variant that is called ``name``; raises UsageError."""
    if name == W8A8:
        return Variant(8, 0, True)
    found = _NAME.fullmatch(name)
    if found is None or int(found[3]) not in _BLOCKS:
        raise UsageError(
            f"{name!r} is no way to store a matrix: 4 or 8 bits, s or z (with zero points), a block"
            f" of {', '.join(map(str, _BLOCKS))}, such as 4z32 or 8s64"
        )
    return Variant(int(found[1]), int(found[3]), found[2] == "s")


def variants_of(options: Mapping[str, str]) -> tuple[Variant, Variant]:
    """The usual and the careful one of a recipe's options; raises UsageError."""
    return parse_variant(options["usual"]), parse_variant(options["careful"])
