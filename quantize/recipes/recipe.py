"""Named ways to build a file: what `--recipe` means."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from quantize.recipes.target import QualityTarget

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
    # of a ``w8a8`` file. Where matrices are rounded, how the ``usual`` and the ``careful`` ones are
    # stored (`plan_variants` of quantize/onnx/nbits.py).
    precision: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    limits: Limits | None = None
    needs_imatrix: bool = False  # cannot be made without an importance matrix
    published_kl: float | None = None  # of the type on Llama-3-8B, in nats; see ``_gguf``
    target: QualityTarget | None = None  # each tensor's type is chosen to keep it

    @property
    def is_float(self) -> bool:
        """Not quantized: the reference that tests compare with."""
        return self.bits >= 16

    @property
    def for_gpus(self) -> bool:
        """Made for GPUs only: processors compute slowly in half precision."""
        return self.precision == "fp16"

    def output_name(self, model: str) -> str:
        """The file's, or for ONNX the folder's, name in the output folder."""
        return f"{model}-{self.name}.gguf" if self.format == "gguf" else self.name


def recipe_for(target: QualityTarget, made_in: Format = "gguf") -> Recipe:
    """The recipe of a file that keeps ``target``."""
    bits = target.value if target.bound == "bits" else _EIGHT_BITS
    advice = "the types of its tensors are chosen for it"
    limits = Limits(kl_mean=target.value, same_top=0.0) if target.bound == "kl" else None
    gguf = Recipe(target.name, "gguf", 8, bits, advice, _Q8_0, limits=limits, target=target)
    if made_in == "gguf":
        return gguf
    return replace(gguf, name=f"onnx-{target.name}", format="onnx", ftype=-1, precision="int4")


def limits_for(published_kl: float) -> Limits:
    """The limits of a type whose KL divergence on a well-known model is ``published_kl``.

    The share of changed top tokens grows with the square root of the divergence: it is 0.4 to 0.7
    times the root on Llama-3-8B and on Pebble, and up to twice the root on random models, whose
    top tokens are near-ties.
    """
    kl = min(_SLACK * published_kl, published_kl + _MOST_ABOVE)
    return Limits(kl_mean=kl, same_top=max(0.0, 1.0 - _TOP_SLACK * math.sqrt(kl)))


def _limits(kl: float | None) -> Limits | None:
    return limits_for(kl) if kl is not None else None


def _gguf(
    name: str,
    ftype: int,
    bits: int,
    size: float,
    kl: float | None,
    advice: str,
    needs_imatrix: bool = False,
) -> Recipe:
    """A type of llama.cpp. ``size`` is measured on Llama-3.1-8B where llama.cpp's
    tools/quantize/README.md has the figure, else the type's blocks. ``kl`` is the mean divergence
    from the half-precision Llama-3-8B on WikiText-2 (llama.cpp's tools/perplexity/README.md,
    without importance matrix where there is such a row). It needs a matrix if it has tensors that
    llama.cpp does not quantize without (``tensor_requires_imatrix`` in src/llama-quant.cpp)."""
    return Recipe(
        *(name, "gguf", bits, size, advice, ftype),
        limits=_limits(kl),
        needs_imatrix=needs_imatrix,
        published_kl=kl,
    )


def _onnx(
    name: str, bits: int, size: float, precision: str, kl: float | None, advice: str, **options: str
) -> Recipe:
    return Recipe(name, "onnx", bits, size, advice, -1, precision, options, _limits(kl))


_TERNARY = "only for models that were trained with weights of three values"
_BATCHES = "8-bit activations too: the fastest in batches on processors with VNNI or AMX"
_MIXED = "4-bit, the most sensitive layers in 8 bits"
_ALL_4 = "4-bit, all layers alike: smaller than onnx-int4, and worse"
_EIGHT = "8-bit: hardly any loss"
_TINY = "only to fit a large model into very little memory"

# Ordered as `quantize recipes` shows them: the usual ones from large to small, then the rest.
_ALL = (
    _gguf("q8_0", 7, 8, 8.5, 0.001355, "8-bit: hardly any loss; when there is room"),
    _gguf("q6_k", 18, 6, 6.6, 0.005452, "6-bit: next to no loss, a quarter smaller than q8_0"),
    _gguf("q5_k_m", 17, 5, 5.7, 0.010762, "5-bit: when q4_k_m loses too much"),
    _gguf("q4_k_m", 15, 4, 4.9, 0.031273, "4-bit: where to begin; the report says what is lost"),
    _gguf("q4_0", 2, 4, 4.7, 0.071940, "4-bit, simplest: the fastest on most processors"),
    _gguf(
        "iq4_xs", 30, 4, 4.5, 0.036334, "4-bit, smallest: nearly q4_k_m's quality with --imatrix"
    ),
    _gguf("q5_k_s", 16, 5, 5.6, 0.016595, "a little smaller and worse than q5_k_m"),
    _gguf("q5_1", 9, 5, 6.0, 0.018045, "older 5-bit type; prefer q5_k_m"),
    _gguf("q5_0", 8, 5, 5.6, 0.022239, "older 5-bit type; prefer q5_k_m"),
    _gguf("q4_k_s", 14, 4, 4.7, 0.043136, "a little smaller and worse than q4_k_m"),
    _gguf("q4_1", 3, 4, 5.1, 0.071683, "older 4-bit type; prefer q4_k_m"),
    _gguf("iq4_nl", 25, 4, 4.7, 0.035742, "like iq4_xs, for rows of any multiple of 32"),
    _gguf("q3_k_l", 13, 3, 4.3, 0.087176, "3-bit, large; iq4_xs is little larger and better"),
    _gguf("q3_k_m", 12, 3, 4.0, 0.101913, "3-bit: a visible loss, less with --imatrix"),
    _gguf("iq3_m", 27, 3, 3.8, 0.102534, "3-bit: as good as q3_k_m and smaller"),
    _gguf("iq3_s", 26, 3, 3.7, 0.111278, "3-bit: a little smaller than iq3_m"),
    _gguf("q3_k_s", 11, 3, 3.6, 0.228217, "3-bit, small; prefer iq3_s"),
    _gguf("iq3_xs", 22, 3, 3.5, 0.138693, "3-bit: a clear loss", needs_imatrix=True),
    _gguf("iq3_xxs", 23, 3, 3.3, 0.183625, "3-bit, smallest: a clear loss", needs_imatrix=True),
    _gguf("q2_k", 10, 2, 3.2, 0.445132, f"2-bit: a large loss; {_TINY}"),
    _gguf("q2_k_s", 21, 2, 3.0, 0.403360, f"2-bit: a large loss; {_TINY}", needs_imatrix=True),
    _gguf("iq2_m", 29, 2, 2.9, 0.325989, f"2-bit: a large loss; {_TINY}", needs_imatrix=True),
    _gguf("iq2_s", 28, 2, 2.7, 0.439197, f"2-bit: a large loss; {_TINY}", needs_imatrix=True),
    _gguf("iq2_xs", 20, 2, 2.6, 0.546290, f"2-bit: a large loss; {_TINY}", needs_imatrix=True),
    _gguf("iq2_xxs", 19, 2, 2.4, 0.812022, f"2-bit: a large loss; {_TINY}", needs_imatrix=True),
    _gguf("iq1_m", 31, 1, 2.1, 1.393084, "1-bit: answers suffer badly", needs_imatrix=True),
    _gguf("iq1_s", 24, 1, 2.0, 2.211278, "1-bit: answers suffer badly", needs_imatrix=True),
    _gguf("tq2_0", 37, 2, 2.1, None, _TERNARY),
    _gguf("tq1_0", 36, 1, 1.7, None, _TERNARY),
    _gguf("q2_0", 41, 2, 2.3, None, "only for models that were trained for this type"),
    _gguf("q1_0", 40, 1, 1.1, None, "only for models that were trained for this type"),
    _gguf("mxfp4_moe", 38, 4, 4.3, None, "mixtures of experts that were published in MXFP4"),
    _gguf("f16", 1, 16, 16.0, None, "half precision: the reference for llama.cpp"),
    _gguf("bf16", 32, 16, 16.0, None, "as f16, with bfloat16's range"),
    _gguf("f32", 0, 32, 32.0, None, "single precision: twice f16's size for nothing"),
    _onnx("onnx-int8", 8, 8.5, "int8", 0.001355, _EIGHT, usual="8s32", careful="8s32"),
    _onnx("onnx-w8a8", 8, 8.5, "w8a8", 0.01, _BATCHES),
    _onnx("onnx-int4", 4, 6.3, "int4", 0.031273, _MIXED, usual="4z32", careful="8s128"),
    _onnx("onnx-int4-rtn", 4, 4.5, "int4", 0.071940, _ALL_4, usual="4s32", careful="4s32"),
    _onnx("onnx-fp16", 16, 16.0, "fp16", None, "half precision, for GPUs: --target cuda, webgpu"),
    _onnx("onnx-fp32", 32, 32.0, "fp32", None, "single precision: the reference for ONNX Runtime"),
)
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _ALL}

# The usual ones.
PRESETS = (
    *("q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0", "iq4_xs"),
    *("onnx-int8", "onnx-w8a8", "onnx-int4", "onnx-int4-rtn"),
)
