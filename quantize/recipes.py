"""Named ways to build a file: what `--recipe`, `--to`, `--bits` and targets mean, and the list to
choose from; how matrices of an ONNX graph may be stored, and how many bits a built file stores for
a weight.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from quantize.errors import UsageError
from runtimes.errors import ModelError
from runtimes.settings import KvType

if TYPE_CHECKING:
    from runtimes.models.gguf import GgufHeader

_BLOCK_SIZES = (16, 32, 64, 128, 256)  # of MatMulNBits
W8A8 = "w8a8"
_SCALE_BYTES = 4  # bytes of a channel's in such a matrix
_VARIANT = re.compile(r"([48])([sz])(\d+)")


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
            return inputs + _SCALE_BYTES
        blocks = -(-inputs // self.block)
        zeros = 0 if self.symmetric else -(-blocks * self.bits // 8)
        return blocks * (self.block * self.bits // 8 + 2) + zeros

    def bits_per_weight(self, inputs: int) -> float:
        """In rows of ``inputs`` weights."""
        return 8 * self.row_bytes(inputs) / inputs

    def fitting(self, inputs: int) -> Variant:
        """With the largest block, from its own down to 32, that divides ``inputs``: to fill up a
        block takes space for nothing."""
        if not self.block:
            return self
        sizes = [size for size in _BLOCK_SIZES if 32 < size <= self.block and inputs % size == 0]
        return replace(self, block=max(sizes, default=min(self.block, 32)))


@dataclass(frozen=True, slots=True)
class Mix:
    """A variant for each tensor, both by their names (a tensor has that of GGUF), instead of a
    recipe's; none where the recipe decides. ``importance`` (.npz) has for each tensor that is known
    how much its input channels matter, ``moments`` is a folder of `write_moments`. ``metadata`` is
    what the graph says of itself."""

    variants: Mapping[str, str]
    importance: Path | None
    moments: Path | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


def parse_variant(name: str) -> Variant:
    """The variant that is called ``name``; raises UsageError."""
    if name == W8A8:
        return Variant(8, 0, True)
    found = _VARIANT.fullmatch(name)
    if found is None or int(found[3]) not in _BLOCK_SIZES:
        raise UsageError(
            f"{name!r} is no way to store a matrix: 4 or 8 bits, s or z (with zero points), a block"
            f" of {', '.join(map(str, _BLOCK_SIZES))}, such as 4z32 or 8s64"
        )
    return Variant(int(found[1]), int(found[3]), found[2] == "s")


def variants_of(options: Mapping[str, str]) -> tuple[Variant, Variant]:
    """The usual and the careful one of a recipe's options; raises UsageError."""
    return parse_variant(options["usual"]), parse_variant(options["careful"])


# Sines and cosines of every position, which the builder computes: no weights of the model.
_TABLE = re.compile(r"(?:cos|sin)_cache")


@dataclass(frozen=True, slots=True)
class FileSize:
    """Size of a file, built or predicted: all its bytes, and bits a weight, scales included."""

    bytes: int
    bits_per_weight: float


def gguf_bits(header: GgufHeader) -> float:
    """Bits a weight of all tensors of a GGUF file together, scales included. Raises ModelError if
    none has any weights."""
    weights = sum(math.prod(tensor.shape) for tensor in header.tensors)
    if not weights:
        raise ModelError(f"{header.where} holds no weights")
    return sum(tensor.nbytes for tensor in header.tensors) * 8 / weights


def bits_per_weight(path: Path, parameters: int) -> float:
    """Bits a weight of the GGUF file or ONNX folder ``path``; what a graph stores of them is
    divided by the model's ``parameters``, because packed weights cannot be counted. Raises
    ModelError."""
    # Imported where a file is looked at: the command line lists recipes in its help.
    from runtimes.models.gguf import read_parts
    from runtimes.models.registry import read_model
    from runtimes.onnx.memory import graphs_of

    if path.is_file():
        return gguf_bits(read_parts(path)[0])
    weights = {  # two graphs share what has one name and size
        (name, tensor.nbytes)
        for graph in graphs_of(read_model(path))
        for name, tensor in graph.initializers.items()
        if not _TABLE.match(name)
    }
    return sum(nbytes for _, nbytes in weights) * 8 / parameters


Bound = Literal["kl", "bytes", "bits", "memory"]

_UNITS = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SIZE = r"[\d.]+ ?[kmg]i?b"
_NATS = r"[\d.]+(?:e-\d+)?"
_NAME = re.compile(
    rf"(?:kl(?P<kl>{_NATS})|(?P<bits>[\d.]+)bpw|fits-(?P<memory>{_SIZE})-(?P<context>\d+)"
    rf"(?:-kl(?P<most>{_NATS}))?|(?P<bytes>{_SIZE}))(?:-fast(?P<rows>\d+))?"
)


@dataclass(frozen=True, slots=True)
class QualityTarget:
    """The bound that a file keeps: mean KL divergence in nats, bytes of the file, bits a weight, or
    bytes of memory with a chat of ``context`` tokens. ``name`` says it in a file's name.

    Of the files that keep it the one of the fewest bytes, or of the least divergence, is wanted;
    with ``rows`` the one whose step of so many rows is fastest. One that keeps a bound of memory
    may also be bound to lose no more than ``most_kl`` nats, its keys and values included.
    """

    bound: Bound
    value: float
    name: str
    context: int = 0
    rows: int = 0
    cache: KvType = "f16"  # of a bound of memory: the type of keys and values that was chosen
    most_kl: float | None = None

    def losing(self, other: QualityTarget) -> QualityTarget:
        """Target that keeps ``other``, a bound of divergence, too."""
        return replace(self, most_kl=other.value, name=f"{self.name}-{other.name}")

    def fastest(self, rows: int) -> QualityTarget:
        """Target with this bound, for speed."""
        return replace(self, rows=rows, name=f"{self.name}-fast{rows}")


# Of each bound its flag, and what that takes.
_FLAGS: dict[Bound, tuple[str, str]] = {
    "kl": ("--max-kl", "nats, such as 0.02"),
    "bits": ("--bits-per-weight", "a number, such as 4.5"),
    "bytes": ("--max-size", "a size such as 1.2GB"),
    "memory": ("--fits", "a size such as 1.2GB"),
}


def target_of(bound: Bound, text: str, context: int = 0) -> QualityTarget:
    """Target of the ``text`` that the flag of ``bound`` was given, with --context. Raises
    UsageError."""
    flag, example = _FLAGS[bound]
    number = plain = text.strip()
    factor = 1.0
    if bound in ("bytes", "memory"):
        # Such as "1.2GB" (a thousand millions) or "900MiB" (powers of 2).
        if not re.fullmatch(_SIZE, plain, re.IGNORECASE):
            raise UsageError(
                f"{flag} takes a size with its unit, such as 1.2GB or 900MiB, not {text!r}"
            )
        number, unit = re.split(r" ?(?=[kmg])", plain.lower(), maxsplit=1)
        text, factor, plain = number, _UNITS[unit], plain.replace(" ", "").lower()
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"{flag} takes {example}, not {text!r}")
    names = {"kl": f"kl{plain}", "bits": f"{plain}bpw", "memory": f"fits-{plain}-{context}"}
    return QualityTarget(bound, value * factor, names.get(bound, plain), context)


def named_target(name: str) -> QualityTarget | None:
    """The target of that name; None if it is none. Raises UsageError for a bad number in it."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    bound = next(bound for bound in _FLAGS if found[bound])
    target = target_of(bound, found[bound], int(found["context"] or 0))
    if found["most"]:
        target = target.losing(target_of("kl", found["most"]))
    return target.fastest(int(found["rows"])) if found["rows"] else target


Format = Literal["gguf", "onnx"]
ONNX: Format = "onnx"
FORMATS: tuple[Format, ...] = ("gguf", ONNX)

# A file may have this many times its type's published KL divergence, but at most so many nats more;
# the last is explained in `limits_for`. docs/quantize.md, "Limits", has the figures behind them.
_Q8_0, _EIGHT_BITS = 7, 8.5  # llama_ftype of the tensors that no target chooses for
_SLACK, _MOST_ABOVE, _TOP_SLACK = 10.0, 1.0, 1.5


@dataclass(frozen=True, slots=True)
class Limits:
    """The worst figures that a file of a recipe may have; beyond them it is not published."""

    kl_mean: float  # nats
    same_top: float  # a share, as in `Fidelity`


@dataclass(frozen=True, slots=True)
class Recipe:
    """One kind of built file."""

    name: str
    format: Format
    bits: int  # the size class that ``--bits`` selects by
    bits_per_weight: float  # nominal, with scales: for estimates; every built file has its own
    advice: str
    ftype: int = -1  # llama.cpp's ``enum llama_ftype``
    # What onnxruntime-genai's model builder is asked for; it also makes the single-precision graph
    # of a ``w8a8`` file. "int4+w8a8" is two graphs, for narrow and for wide passes. Where matrices
    # are rounded, how the ``usual`` and the ``careful`` ones are stored (`plan_variants` of
    # quantize/onnx/nbits.py).
    precision: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    limits: Limits | None = None
    needs_imatrix: bool = False  # cannot be made without an importance matrix
    published_kl: float | None = None  # of the type on Llama-3-8B, in nats
    target: QualityTarget | None = None  # each tensor's type is chosen to keep it

    @property
    def is_float(self) -> bool:
        """Not quantized: the reference that tests compare with."""
        return self.bits >= 16

    @property
    def is_weighed(self) -> bool:
        """An importance matrix weighs the errors of its rounding."""
        return bool(self.options) if self.format == ONNX else not self.is_float

    @property
    def takes_gptq(self) -> bool:
        """Matrices of it may have few bits, whose errors can be made up for."""
        if self.target is not None:
            return True
        if self.format == ONNX:
            return any(way.startswith("4") for way in self.options.values())
        return not self.is_float and self.ftype != _Q8_0

    @property
    def for_gpus(self) -> bool:
        """Made for GPUs only: processors compute slowly in half precision."""
        return self.precision == "fp16"

    @property
    def rounds_activations(self) -> bool:
        """A graph of it multiplies 8-bit activations: made of a float graph, on processors."""
        return self.precision.endswith(W8A8)

    def output_name(self, model: str) -> str:
        """The file's, or for ONNX the folder's, name in the output folder."""
        return f"{model}-{self.name}.gguf" if self.format == "gguf" else self.name


def recipe_for(target: QualityTarget, made_in: Format = "gguf") -> Recipe:
    """The recipe of a file that keeps ``target``."""
    bits = target.value if target.bound == "bits" else _EIGHT_BITS
    advice = "the types of its tensors are chosen for it"
    most = target.value if target.bound == "kl" else target.most_kl
    limits = Limits(kl_mean=most, same_top=0.0) if most else None
    gguf = Recipe(target.name, "gguf", 8, bits, advice, _Q8_0, limits=limits, target=target)
    if made_in == "gguf":
        return gguf
    return replace(gguf, name=f"onnx-{target.name}", format="onnx", ftype=-1, precision="int4")


def limits_for(published_kl: float | None) -> Limits | None:
    """The limits of a type whose KL divergence on a well-known model is ``published_kl``; None
    where none was published.

    The share of changed top tokens grows with the square root of the divergence: it is 0.4 to 0.7
    times the root on Llama-3-8B and on Pebble, and up to twice the root on random models, whose
    top tokens are near-ties.
    """
    if published_kl is None:
        return None
    kl = min(_SLACK * published_kl, published_kl + _MOST_ABOVE)
    return Limits(kl_mean=kl, same_top=max(0.0, 1.0 - _TOP_SLACK * math.sqrt(kl)))


def _read(line: str) -> Recipe:
    """The recipe of a line of data/recipes.txt, which says what its columns are."""
    name, ftype, bits, kl, how, advice = line.split(None, 5)
    size = int(re.findall(r"\d+", name)[0])  # which the name begins with after letters
    published = None if kl == "-" else float(kl)
    limits = limits_for(published)
    if ftype == "-":
        precision, *stored = how.split(":")
        options = dict(zip(("usual", "careful"), stored, strict=False))
        return Recipe(name, "onnx", size, float(bits), advice, -1, precision, options, limits)
    return Recipe(
        *(name, "gguf", size, float(bits), advice, int(ftype)),
        limits=limits,
        needs_imatrix=how == "imatrix",
        published_kl=published,
    )


_LINES = (Path(__file__).parent / "data" / "recipes.txt").read_text(encoding="utf-8").splitlines()
_ALL = (_read(line) for line in _LINES if not line.startswith("#"))
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _ALL}

# The usual ones.
PRESETS = tuple(
    "q8_0 q6_k q5_k_m q4_k_m q4_0 iq4_xs onnx-int8 onnx-w8a8 onnx-int4 onnx-int4-rtn".split()
)


_HEADINGS = ("recipe", "format", "nominal bits", "advice")
# Other names that llama.cpp's own tool takes (tools/quantize/quantize.cpp).
_ALIASES = {
    "q3_k": "q3_k_m",
    "q4_k": "q4_k_m",
    "q5_k": "q5_k_m",
    "fp16": "f16",
    "fp32": "f32",
}
# What `--bits` means for each format.
_BY_BITS: dict[int, dict[Format, str]] = {
    4: {"gguf": "q4_k_m", "onnx": "onnx-int4"},
    8: {"gguf": "q8_0", "onnx": "onnx-int8"},
}


def find_recipe(name: str) -> Recipe:
    """The recipe of that name. Raises UsageError with near names for an unknown one."""
    if recipe := known_recipe(name):
        return recipe
    key = name.strip().lower()
    flat = key.replace("-", "_")
    found = (difflib.get_close_matches(text, RECIPES, n=3, cutoff=0.5) for text in (flat, key))
    near = list(dict.fromkeys(itertools.chain(*found)))[:3]
    hint = f"did you mean {' or '.join(near)}?" if near else "see `quantize recipes`"
    raise UsageError(f"unknown recipe {name!r}: {hint}")


def known_recipe(name: str) -> Recipe | None:
    """The recipe, or the target, of that name. Raises UsageError for a target that is no number."""
    key = name.strip().lower()
    flat = key.replace("-", "_")
    if recipe := RECIPES.get(key) or RECIPES.get(_ALIASES.get(flat, flat)):
        return recipe
    made_in: Format = "onnx" if key.startswith("onnx-") else "gguf"
    target = named_target(key.removeprefix("onnx-"))
    return recipe_for(target, made_in) if target else None


def choose_formats(names: Iterable[str]) -> tuple[Format, ...]:
    """Formats of ``--to``; raises UsageError for one that there is not, or none."""
    for name in names:
        if name not in FORMATS:
            raise UsageError(f"unknown format {name!r} for --to: choose from {', '.join(FORMATS)}")
    if not (chosen := tuple(fmt for fmt in FORMATS if fmt in names)):
        raise UsageError(f"nothing to build: --to is empty; it takes {', '.join(FORMATS)}")
    return chosen


def choose_recipes(
    *, formats: Sequence[str] = FORMATS, bits: Sequence[int] = (4, 8)
) -> tuple[Recipe, ...]:
    """The presets of ``formats`` and ``bits``; raises UsageError for one that there is not."""
    made_in = choose_formats(formats)
    if unknown := [size for size in bits if size not in _BY_BITS]:
        raise UsageError(
            f"no preset of {unknown[0]} bits: --bits takes {' and '.join(map(str, _BY_BITS))};"
            " use --recipe for another type"
        )
    chosen = dict.fromkeys(_BY_BITS[size][fmt] for fmt in made_in for size in bits)
    if not chosen:
        raise UsageError("nothing to build: --bits is empty")
    return tuple(RECIPES[name] for name in chosen)


def require_matrix(recipes: Iterable[Recipe], imatrix: Path | None) -> None:
    """Raise UsageError when one of ``recipes`` cannot be made without an importance matrix."""
    needy = [recipe.name for recipe in recipes if recipe.needs_imatrix]
    if needy and imatrix is None:
        raise UsageError(
            f"{', '.join(needy)} cannot be made without an importance matrix, which says which"
            " weights matter: give --imatrix TEXT.txt to compute one from a text (some hundred kB"
            " of what the model is for), or --imatrix FILE with one that llama-imatrix made"
        )


def print_listing() -> None:
    """Print the presets, llama.cpp's further types, and the references to stdout: a table on a
    terminal, else tab-separated lines with a heading."""
    others = [recipe for name, recipe in RECIPES.items() if name not in PRESETS]
    groups = (
        [RECIPES[name] for name in PRESETS],
        [recipe for recipe in others if not recipe.is_float],
        [recipe for recipe in others if recipe.is_float],
    )
    if not sys.stdout.isatty():
        rows = [_HEADINGS, *(_row(recipe) for group in groups for recipe in group)]
        sys.stdout.write("".join("\t".join(row) + "\n" for row in rows))
        return
    from rich.table import Table

    from quantize.terminal import Console

    table = Table()
    for heading in _HEADINGS:
        table.add_column(heading, justify="right" if heading == "nominal bits" else "left")
    for group in groups:
        for recipe in group:
            table.add_row(*_row(recipe))
        table.add_section()
    Console(highlight=False).print(table)


def _row(recipe: Recipe) -> tuple[str, str, str, str]:
    needs = "; needs --imatrix" if recipe.needs_imatrix else ""
    return recipe.name, recipe.format, f"{recipe.bits_per_weight:.1f}", f"{recipe.advice}{needs}"
