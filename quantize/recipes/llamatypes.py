"""llama.cpp's file types: their numbers, sizes, published losses, and what each is good for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LlamaType:
    """One member of ``enum llama_ftype`` (include/llama.h)."""

    name: str
    ftype: int
    bits: int  # the size class
    # A weight with its scales: measured on Llama-3.1-8B where llama.cpp's tools/quantize/README.md
    # has the figure, else the type's blocks.
    bits_per_weight: float
    # Mean KL divergence from the half-precision Llama-3-8B on WikiText-2, in nats (llama.cpp's
    # tools/perplexity/README.md, without importance matrix where there is such a row).
    kl: float | None
    advice: str
    # Has tensors that llama.cpp does not quantize without a matrix (``tensor_requires_imatrix`` in
    # src/llama-quant.cpp).
    needs_imatrix: bool = False


_TERNARY = "only for models that were trained with weights of three values"
_TINY = "only to fit a large model into very little memory"

# Ordered as `quantize recipes` shows them: the usual ones from large to small, then the rest.
LLAMA_TYPES: tuple[LlamaType, ...] = (
    LlamaType("q8_0", 7, 8, 8.5, 0.001355, "8-bit: hardly any loss; when there is room"),
    LlamaType("q6_k", 18, 6, 6.6, 0.005452, "6-bit: next to no loss, a quarter smaller than q8_0"),
    LlamaType("q5_k_m", 17, 5, 5.7, 0.010762, "5-bit: when q4_k_m loses too much"),
    LlamaType(
        "q4_k_m", 15, 4, 4.9, 0.031273, "4-bit: where to begin; the report says what is lost"
    ),
    LlamaType("q4_0", 2, 4, 4.7, 0.071940, "4-bit, simplest: the fastest on most processors"),
    LlamaType(
        "iq4_xs", 30, 4, 4.5, 0.036334, "4-bit, smallest: nearly q4_k_m's quality with --imatrix"
    ),
    LlamaType("q5_k_s", 16, 5, 5.6, 0.016595, "a little smaller and worse than q5_k_m"),
    LlamaType("q5_1", 9, 5, 6.0, 0.018045, "older 5-bit type; prefer q5_k_m"),
    LlamaType("q5_0", 8, 5, 5.6, 0.022239, "older 5-bit type; prefer q5_k_m"),
    LlamaType("q4_k_s", 14, 4, 4.7, 0.043136, "a little smaller and worse than q4_k_m"),
    LlamaType("q4_1", 3, 4, 5.1, 0.071683, "older 4-bit type; prefer q4_k_m"),
    LlamaType("iq4_nl", 25, 4, 4.7, 0.035742, "like iq4_xs, for rows of any multiple of 32"),
    LlamaType("q3_k_l", 13, 3, 4.3, 0.087176, "3-bit, large; iq4_xs is little larger and better"),
    LlamaType("q3_k_m", 12, 3, 4.0, 0.101913, "3-bit: a visible loss, less with --imatrix"),
    LlamaType("iq3_m", 27, 3, 3.8, 0.102534, "3-bit: as good as q3_k_m and smaller"),
    LlamaType("iq3_s", 26, 3, 3.7, 0.111278, "3-bit: a little smaller than iq3_m"),
    LlamaType("q3_k_s", 11, 3, 3.6, 0.228217, "3-bit, small; prefer iq3_s"),
    LlamaType("iq3_xs", 22, 3, 3.5, 0.138693, "3-bit: a clear loss", needs_imatrix=True),
    LlamaType("iq3_xxs", 23, 3, 3.3, 0.183625, "3-bit, smallest: a clear loss", needs_imatrix=True),
    LlamaType("q2_k", 10, 2, 3.2, 0.445132, f"2-bit: a large loss; {_TINY}"),
    LlamaType("q2_k_s", 21, 2, 3.0, 0.403360, f"2-bit: a large loss; {_TINY}", needs_imatrix=True),
    LlamaType("iq2_m", 29, 2, 2.9, 0.325989, f"2-bit: a large loss; {_TINY}", needs_imatrix=True),
    LlamaType("iq2_s", 28, 2, 2.7, 0.439197, f"2-bit: a large loss; {_TINY}", needs_imatrix=True),
    LlamaType("iq2_xs", 20, 2, 2.6, 0.546290, f"2-bit: a large loss; {_TINY}", needs_imatrix=True),
    LlamaType("iq2_xxs", 19, 2, 2.4, 0.812022, f"2-bit: a large loss; {_TINY}", needs_imatrix=True),
    LlamaType("iq1_m", 31, 1, 2.1, 1.393084, "1-bit: answers suffer badly", needs_imatrix=True),
    LlamaType("iq1_s", 24, 1, 2.0, 2.211278, "1-bit: answers suffer badly", needs_imatrix=True),
    LlamaType("tq2_0", 37, 2, 2.1, None, _TERNARY),
    LlamaType("tq1_0", 36, 1, 1.7, None, _TERNARY),
    LlamaType("q2_0", 41, 2, 2.3, None, "only for models that were trained for this type"),
    LlamaType("q1_0", 40, 1, 1.1, None, "only for models that were trained for this type"),
    LlamaType("mxfp4_moe", 38, 4, 4.3, None, "mixtures of experts that were published in MXFP4"),
    LlamaType("f16", 1, 16, 16.0, None, "half precision: the reference for llama.cpp"),
    LlamaType("bf16", 32, 16, 16.0, None, "as f16, with bfloat16's range"),
    LlamaType("f32", 0, 32, 32.0, None, "single precision: twice f16's size for nothing"),
)

# Other names that llama.cpp's own tool takes (tools/quantize/quantize.cpp).
ALIASES: dict[str, str] = {
    "q3_k": "q3_k_m",
    "q4_k": "q4_k_m",
    "q5_k": "q5_k_m",
    "fp16": "f16",
    "fp32": "f32",
}
