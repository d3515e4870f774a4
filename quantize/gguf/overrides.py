"""Types for single tensors, beside the one that a recipe gives to most of them."""

import difflib
import re
from collections.abc import Mapping

from quantize.errors import UsageError
from runtimes.models.gguf import TENSOR_TYPES, GgufHeader

# What llama.cpp converts weights to (`ggml_quantize_chunk` of ggml.c), by the numbers of ggml_type.
_NOT_FOR_WEIGHTS = {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"}
TYPES: dict[str, int] = {
    name.lower(): number
    for number, (name, _, _) in TENSOR_TYPES.items()
    if name not in _NOT_FOR_WEIGHTS
}
# `tensor_requires_imatrix` of llama.cpp's src/llama-quant.cpp, which asks for none for the
# embedding and the output.
_NEEDS_MATRIX = {"iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs"}
_NEVER_NEED = {"token_embd.weight", "per_layer_token_embd.weight", "output.weight"}


def check_overrides(overrides: Mapping[str, str]) -> None:
    """Raise UsageError for a pattern that is no regular expression, or an unknown type."""
    for pattern, kind in overrides.items():
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(
                f"the tensor pattern {pattern!r} is not a regular expression: {error}"
            ) from error
        if kind.lower() not in TYPES:
            near = difflib.get_close_matches(kind.lower(), TYPES, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(TYPES)}"
            raise UsageError(f"unknown tensor type {kind!r} for {pattern!r}: {hint}")


def resolve_overrides(
    overrides: Mapping[str, str], header: GgufHeader, *, has_matrix: bool
) -> dict[str, str]:
    """Tensor names and the types asked for them. Of several patterns that are found in a name, the
    first counts.

    Raises UsageError for a bad pattern or type, one that fits no tensor with rows (others are never
    quantized), and a type that needs an importance matrix without one.
    """
    check_overrides(overrides)
    names = [info.name for info in header.tensors if len(info.shape) > 1]
    chosen: dict[str, str] = {}
    for pattern, kind in overrides.items():
        found = [name for name in names if re.search(pattern, name)]
        if not found:
            example = ", ".join(names[:3])
            raise UsageError(
                f"the tensor pattern {pattern!r} fits no tensor of this model; they are called"
                f" {example} ..."
            )
        for name in found:
            chosen.setdefault(name, kind.lower())
    for name, kind in chosen.items():
        if kind in _NEEDS_MATRIX and name not in _NEVER_NEED and not has_matrix:
            raise UsageError(
                f"{name} cannot be made {kind} without an importance matrix: give --imatrix"
            )
    return chosen


def kept_otherwise(asked: Mapping[str, str], header: GgufHeader) -> list[str]:
    """What the user should know of tensors that llama.cpp gave another type than ``asked``."""
    made = {info.name: info.type_name.lower() for info in header.tensors}
    other = [name for name, kind in asked.items() if made[name] != kind]
    if not other:
        return []
    first = other[0]
    return [
        f"{len(other)} of {len(asked)} tensors with a type of their own did not get it, such as"
        f" {first}: {made[first]} instead of {asked[first]} (llama.cpp keeps some tensors as they"
        " are, and 256-weight blocks do not fit every row)"
    ]
