"""Named ways to build a file: what `--recipe`, `--bits` and `--to` mean."""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from quantize.errors import UsageError
from quantize.recipes.llamatypes import ALIASES, LLAMA_TYPES, LlamaType

Format = Literal["gguf", "onnx"]
FORMATS: tuple[Format, ...] = ("gguf", "onnx")

# A file may have this many times its type's published KL divergence, but at most so many nats more;
# the last is explained in `limits_for`. docs/quantize.md, "Limits", has the figures behind them.
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
    # Arguments of onnxruntime-genai's model builder, which also makes the single-precision graph
    # of a ``w8a8`` file.
    precision: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    limits: Limits | None = None
    needs_imatrix: bool = False  # cannot be made without an importance matrix

    @property
    def is_float(self) -> bool:
        """Not quantized: the reference that tests compare with."""
        return self.bits >= 16

    def output_name(self, model: str) -> str:
        """The file's, or for ONNX the folder's, name in the output folder."""
        return f"{model}-{self.name}.gguf" if self.format == "gguf" else self.name


def limits_for(published_kl: float) -> Limits:
    """The limits of a type whose KL divergence on a well-known model is ``published_kl``.

    The share of changed top tokens grows with the square root of the divergence: it is 0.4 to 0.7
    times the root on Llama-3-8B and on Pebble, and up to twice the root on random models, whose
    top tokens are near-ties.
    """
    kl = min(_SLACK * published_kl, published_kl + _MOST_ABOVE)
    return Limits(kl_mean=kl, same_top=max(0.0, 1.0 - _TOP_SLACK * math.sqrt(kl)))


def _gguf(kind: LlamaType) -> Recipe:
    return Recipe(
        kind.name,
        "gguf",
        kind.bits,
        kind.bits_per_weight,
        kind.advice,
        ftype=kind.ftype,
        limits=limits_for(kind.kl) if kind.kl is not None else None,
        needs_imatrix=kind.needs_imatrix,
    )


# Logits of the last position only (a prompt's other rows are never sampled from), and one cache
# length for all layers: a sliding window is then a matter of the attention mask alone.
_ONNX_COMMON = {"prune_lm_head": "true", "windowed_kv_cache": "false"}


def _onnx(
    name: str, bits: int, size: float, precision: str, kl: float | None, advice: str, **options: str
) -> Recipe:
    return Recipe(
        name,
        "onnx",
        bits,
        size,
        advice,
        precision=precision,
        options={**_ONNX_COMMON, **options},
        limits=limits_for(kl) if kl is not None else None,
    )


_ONNX: tuple[Recipe, ...] = (
    _onnx("onnx-int8", 8, 9.0, "int8", 0.001355, "8-bit: hardly any loss"),
    _onnx(
        "onnx-w8a8",
        8,
        8.5,
        "w8a8",
        0.01,
        "8-bit activations too: the fastest in batches on processors with VNNI or AMX",
    ),
    _onnx(
        "onnx-int4",
        4,
        5.0,
        "int4",
        0.031273,
        "4-bit, the most sensitive layers in 8 bits",
        algo_config="k_quant_mixed",
    ),
    _onnx(
        "onnx-int4-rtn",
        4,
        4.6,
        "int4",
        0.071940,
        "4-bit by plain rounding: smaller than onnx-int4, and worse",
        algo_config="rtn",
    ),
    _onnx("onnx-fp32", 32, 32.0, "fp32", None, "single precision: the reference for ONNX Runtime"),
)

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (*map(_gguf, LLAMA_TYPES), *_ONNX)}

# What `--bits` means for each format.
_BY_BITS: dict[tuple[Format, int], str] = {
    ("gguf", 4): "q4_k_m",
    ("gguf", 8): "q8_0",
    ("onnx", 4): "onnx-int4",
    ("onnx", 8): "onnx-int8",
}


def find_recipe(name: str) -> Recipe:
    """The recipe of that name. Raises UsageError with near names for an unknown one."""
    key = name.strip().lower()
    flat = key.replace("-", "_")
    if recipe := RECIPES.get(key) or RECIPES.get(ALIASES.get(flat, flat)):
        return recipe
    near = difflib.get_close_matches(flat, RECIPES, n=3, cutoff=0.5)
    near += [n for n in difflib.get_close_matches(key, RECIPES, n=3, cutoff=0.5) if n not in near]
    hint = f"did you mean {' or '.join(near[:3])}?" if near else "see `quantize recipes`"
    raise UsageError(f"unknown recipe {name!r}: {hint}")


def choose_recipes(
    *, formats: Sequence[str] = FORMATS, bits: Sequence[int] = (4, 8)
) -> tuple[Recipe, ...]:
    """The presets of ``formats`` and ``bits``; raises UsageError for one that there is not."""
    chosen: dict[str, Recipe] = {}
    for fmt in formats:
        if fmt not in FORMATS:
            raise UsageError(f"unknown format {fmt!r} for --to: choose from {', '.join(FORMATS)}")
        for size in bits:
            preset = _BY_BITS.get((fmt, size))
            if preset is None:
                known = sorted({b for _, b in _BY_BITS})
                raise UsageError(
                    f"no preset of {size} bits: --bits takes {' and '.join(map(str, known))};"
                    " use --recipe for another type"
                )
            chosen[preset] = RECIPES[preset]
    if not chosen:
        raise UsageError("nothing to build: --to and --bits are empty")
    return tuple(chosen.values())


def require_matrix(recipes: Iterable[Recipe], imatrix: Path | None) -> None:
    """Raise UsageError when one of ``recipes`` cannot be made without an importance matrix."""
    needy = [recipe.name for recipe in recipes if recipe.needs_imatrix]
    if needy and imatrix is None:
        raise UsageError(
            f"{', '.join(needy)} cannot be made without an importance matrix, which says which"
            " weights matter: give --imatrix TEXT.txt to compute one from a text (some hundred kB"
            " of what the model is for), or --imatrix FILE with one that llama-imatrix made"
        )
