"""Named ways to build a file: what `--recipe`, `--bits` and `--to` mean."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from quantize.errors import UsageError

Format = Literal["gguf", "onnx"]
FORMATS: tuple[Format, ...] = ("gguf", "onnx")


@dataclass(frozen=True, slots=True)
class Limits:
    """The worst figures that a file of a recipe may have; beyond them it is not published.

    ``kl_mean`` in nats, ``same_top`` as a share; see `Fidelity`.
    """

    kl_mean: float
    same_top: float


@dataclass(frozen=True, slots=True)
class Recipe:
    """One kind of built file.

    ``bits`` is the size class that ``--bits`` selects by, ``bits_per_weight`` what a weight takes
    on disk with its scales (for size estimates). ``ftype`` is llama.cpp's ``enum llama_ftype``;
    ``precision`` and ``options`` are the arguments of onnxruntime-genai's model builder.
    ``needs_imatrix`` types refuse to be made without an importance matrix.
    """

    name: str
    format: Format
    bits: int
    bits_per_weight: float
    advice: str
    ftype: int = -1
    precision: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    limits: Limits | None = None
    needs_imatrix: bool = False

    @property
    def is_float(self) -> bool:
        """Not quantized: the reference that tests compare with."""
        return self.bits >= 16

    def output_name(self, model: str) -> str:
        """The file's, or for ONNX the folder's, name in the output folder."""
        return f"{model}-{self.name}.gguf" if self.format == "gguf" else self.name


# Logits of the last position only (a prompt's other rows are never sampled from), and one cache
# length for all layers: a sliding window is then a matter of the attention mask alone.
_ONNX_COMMON = {"prune_lm_head": "true", "windowed_kv_cache": "false"}

_PRESETS: tuple[Recipe, ...] = (
    Recipe("q4_k_m", "gguf", 4, 4.9, "4-bit for llama.cpp: the usual choice", ftype=15),
    Recipe("q8_0", "gguf", 8, 8.5, "8-bit for llama.cpp: hardly any loss", ftype=7),
    Recipe(
        "onnx-int4",
        "onnx",
        4,
        5.0,
        "4-bit for ONNX Runtime, the most sensitive layers in 8 bits",
        precision="int4",
        options={**_ONNX_COMMON, "algo_config": "k_quant_mixed"},
    ),
    Recipe(
        "onnx-int8",
        "onnx",
        8,
        9.0,
        "8-bit for ONNX Runtime: hardly any loss",
        precision="int8",
        options=_ONNX_COMMON,
    ),
    Recipe("f16", "gguf", 16, 16.0, "half precision for llama.cpp: a reference", ftype=1),
    Recipe(
        "onnx-fp32",
        "onnx",
        32,
        32.0,
        "single precision for ONNX Runtime: a reference",
        precision="fp32",
        options=_ONNX_COMMON,
    ),
)

# Further llama.cpp types by their number in `enum llama_ftype` (include/llama.h) and the bits per
# weight that its quantize tool prints for Llama-3-8B. Types that refuse to run without an
# importance matrix (iq1_*, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, q2_k_s) are not offered.
_GGUF_TYPES: tuple[tuple[str, int, int, float], ...] = (
    ("q4_0", 2, 4, 4.7),
    ("q4_1", 3, 4, 5.1),
    ("q5_0", 8, 5, 5.6),
    ("q5_1", 9, 5, 6.0),
    ("q2_k", 10, 2, 3.2),
    ("q3_k_s", 11, 3, 3.7),
    ("q3_k_m", 12, 3, 4.0),
    ("q3_k_l", 13, 3, 4.3),
    ("q4_k_s", 14, 4, 4.7),
    ("q5_k_s", 16, 5, 5.6),
    ("q5_k_m", 17, 5, 5.7),
    ("q6_k", 18, 6, 6.6),
    ("iq4_nl", 25, 4, 4.7),
    ("iq3_s", 26, 3, 3.7),
    ("iq3_m", 27, 3, 3.8),
    ("iq4_xs", 30, 4, 4.5),
)

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _PRESETS} | {
    name: Recipe(name, "gguf", bits, size, f"llama.cpp's {name.upper()}", ftype=ftype)
    for name, ftype, bits, size in _GGUF_TYPES
}

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
    if recipe := RECIPES.get(key) or RECIPES.get(key.replace("-", "_")):
        return recipe
    near = difflib.get_close_matches(key.replace("-", "_"), RECIPES, n=3, cutoff=0.5)
    near += [n for n in difflib.get_close_matches(key, RECIPES, n=3, cutoff=0.5) if n not in near]
    hint = f"did you mean {' or '.join(near[:3])}?" if near else "known: " + ", ".join(RECIPES)
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
