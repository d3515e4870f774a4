"""Half-precision GGUF file to a smaller type, by llama.cpp's own quantizer; single tensors to types
of their own; and how large a file of each type will be.

For sizes the quantizer has a dry run, which reads the header of a half-precision file alone. For a
model that is not converted yet, a header with its shapes is written before a hole of the data's
size.
"""

import ctypes
import difflib
import math
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from quantize.children import report_progress, run_child
from quantize.errors import UsageError
from quantize.gguf.imatrixfile import GgufValue, gguf_head, read_matrix
from quantize.progress import SILENT, Reporter
from quantize.recipes import FileSize, Recipe, gguf_bits, require_matrix
from quantize.source import SourceModel
from quantize.source.shapes import Shapes, shapes_of, vocabulary_bytes, weights_in
from runtimes.errors import ModelError
from runtimes.llamacpp.native import library
from runtimes.models.gguf import TENSOR_TYPES, GgufHeader, read_header

_F16 = 1  # both the llama_ftype and the ggml_type
_ERROR = 4  # ggml_log_level of ggml.h
_TEXT = 3  # llama_model_kv_override_type of llama.h
LONGEST = 127  # bytes of a text in llama.h's `llama_model_kv_override`
_FALLBACK = re.compile(
    r"not divisible by\s+(\d+) \(required for type\s+(\w+)\).*?falling back to\s+(\w+)", re.DOTALL
)
_STEP = re.compile(r"^\[\s*(\d+)/\s*(\d+)\]")
# What llama.cpp converts weights to (`ggml_quantize_chunk` of ggml.c), by the numbers of ggml_type.
_NOT_FOR_WEIGHTS = "Q8_1 Q8_K I8 I16 I32 I64 F64".split()
TYPES: dict[str, int] = {
    name.lower(): number
    for number, (name, _, _) in TENSOR_TYPES.items()
    if name not in _NOT_FOR_WEIGHTS
}
# `tensor_requires_imatrix` of llama.cpp's src/llama-quant.cpp, which asks for none for the
# embedding and the output.
_NEEDS_MATRIX = "iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq3_xxs".split()
_NEVER_NEED = {"token_embd.weight", "per_layer_token_embd.weight", "output.weight"}


def needs_matrix(kind: str, tensor: str) -> bool:
    """Whether llama.cpp makes ``tensor`` of that type with an importance matrix only."""
    return kind in _NEEDS_MATRIX and tensor not in _NEVER_NEED


def quantize_gguf(
    source: Path,
    out: Path,
    recipe: Recipe,
    work: Path,
    imatrix: Path | None = None,
    overrides: Mapping[str, str] = MappingProxyType({}),
    progress: Reporter = SILENT,
    metadata: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Write ``source`` to ``out`` in the recipe's type; returns what the user should know.

    ``imatrix`` is what `prepare_imatrix` gave. ``overrides`` maps regular expressions over tensor
    names to types. ``progress`` hears of each tensor. ``metadata`` is added to the file,
    in texts of `LONGEST` bytes at most. Raises UsageError for overrides that cannot be carried out
    or a matrix that is needed and missing, ToolError for what llama.cpp refuses.
    """
    require_matrix([recipe], imatrix)
    header = read_header(source)
    asked = _resolve(overrides, header, has_matrix=imatrix is not None)
    notes: list[str] = []
    if recipe.is_float and asked:
        notes = [f"{recipe.name} is not quantized, single tensors neither"]
        asked = {}
    if recipe.ftype == _F16 and header.metadata.get("general.file_type") == _F16:
        # Our own export, which lies near the work folder and which other recipes still read, need
        # not exist twice; a file of the user's must not share its bytes with ours.
        if source.resolve().is_relative_to(work.resolve().parent):
            out.hardlink_to(source)
        else:
            shutil.copyfile(source, out)
        return notes
    types = {name: TYPES[kind] for name, kind in asked.items()}
    call = partial(_quantize, source, out, recipe.ftype, imatrix, types, dict(metadata))
    fallbacks = run_child(call, f"quantizing to {recipe.name}", work, progress)
    made = read_header(out)
    notes += [f"{told}; the file has {gguf_bits(made):.1f} bits a weight" for told in fallbacks]
    return [*notes, *_kept_otherwise(asked, made)] if asked else notes


def _quantize(
    source: Path,
    out: Path,
    ftype: int,
    imatrix: Path | None,
    types: Mapping[str, int],
    metadata: Mapping[str, str],
) -> list[str]:
    """Runs in a child process; returns what the user should know. ``types`` maps tensor names to a
    ggml_type of their own."""
    lib = library()
    errors: list[str] = []

    def hear(level: int, line: str) -> None:
        if level == _ERROR and line.strip("=\n "):
            errors.append(line.strip())
        sys.stderr.write(line)
        if step := _STEP.match(line):
            report_progress(int(step[1]) - 1, int(step[2]), "tensors")

    params = lib.llama_model_quantize_default_params()
    params.ftype = ftype
    params.allow_requantize = True  # what may not be is refused when the source is opened
    # Arrays of structures; an empty one ends each.
    if imatrix is not None:
        entries = read_matrix(imatrix).entries
        means = {name: np.ascontiguousarray(entry.means) for name, entry in entries.items()}
        params.imatrix = (lib.llama_model_imatrix_data * (len(means) + 1))(
            *(
                (name.encode(), array.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), array.size)
                for name, array in means.items()
            )
        )
    if types:  # one pattern a tensor: the user's are Python's, llama.cpp's another dialect
        params.tt_overrides = (lib.llama_model_tensor_override * (len(types) + 1))(
            *((f"^{re.escape(name)}$".encode(), kind) for name, kind in types.items())
        )
    if metadata:
        params.kv_overrides = (lib.llama_model_kv_override * (len(metadata) + 1))()
        for override, (key, text) in zip(params.kv_overrides, metadata.items(), strict=False):
            override.tag, override.key, override.value.val_str = _TEXT, key.encode(), text.encode()
    code, said = run_quantizer(source, out, params, hear)
    if code != 0:
        raise ModelError("; ".join(errors) or f"llama_model_quantize returned {code}")
    return _fallbacks("".join(said))


def run_quantizer(
    source: Path, out: Path, params: Any, hear: Callable[[int, str], None] = lambda *_: None
) -> tuple[int, list[str]]:
    """Run llama.cpp's quantizer; its code and its log, each piece of which ``hear`` gets with its
    level. Runs in a child process."""
    lib = library()
    lines: list[str] = []

    @lib.llama_log_callback  # type: ignore[untyped-decorator]
    def log(level: int, text: bytes | None, _user: Any) -> None:
        lines.append((text or b"").decode("utf-8", errors="replace"))
        hear(level, lines[-1])

    lib.llama_log_set(log, ctypes.c_void_p(0))
    code = lib.llama_model_quantize(bytes(source), bytes(out), ctypes.byref(params))
    return code, lines


def _fallbacks(log: str) -> list[str]:
    """Tensors that got another type because their rows do not fit the blocks of the one wanted."""
    total = re.search(r"of (\d+) tensor\(s\) required fallback quantization", log)
    found = Counter((block, wanted, got) for block, wanted, got in _FALLBACK.findall(log))
    if not total or not found:
        return []
    blocks = " or ".join(sorted({block for block, _, _ in found}, key=int))
    stored = ", ".join(
        f"{count} as {got.upper()} instead of {wanted.upper()}"
        for (_, wanted, got), count in found.most_common()
    )
    return [
        f"{found.total()} of {total[1]} tensors have rows that are not a multiple of {blocks}"
        f" weights, as the type wanted for them needs, and were stored in a larger one: {stored}"
    ]


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


def _resolve(
    overrides: Mapping[str, str], header: GgufHeader, *, has_matrix: bool
) -> dict[str, str]:
    """Tensor names and the types asked for them: of the first pattern that is found in a name."""
    check_overrides(overrides)
    # Tensors without rows are never quantized.
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
        if needs_matrix(kind, name) and not has_matrix:
            raise UsageError(
                f"{name} cannot be made {kind} without an importance matrix: give --imatrix"
            )
    return chosen


def _kept_otherwise(asked: Mapping[str, str], header: GgufHeader) -> list[str]:
    """Notes on tensors that llama.cpp gave another type than ``asked``."""
    made = {info.name: info.type_name.lower() for info in header.tensors}
    other = [name for name, kind in asked.items() if made[name] != kind]
    return [
        f"{len(other)} of {len(asked)} tensors with a type of their own did not get it, such as"
        f" {first}: {made[first]} instead of {asked[first]} (llama.cpp keeps some tensors as they"
        " are, and 256-weight blocks do not fit every row)"
        for first in other[:1]
    ]


_LINE = re.compile(r"^\[ *\d+/ *\d+\] (\S+) +- \[.*?type = +(\w+),.*?(?:\((\w+)\))?$", re.MULTILINE)
_BLOCKS = {name: (weights, size) for name, weights, size in TENSOR_TYPES.values()}
_ALIGNMENT = 32
_PAIRS = 1500  # bytes of the metadata beside the vocabulary, about


def gguf_sizes(source: SourceModel, ftypes: Sequence[int]) -> dict[int, FileSize]:
    """By llama.cpp's ``enum llama_ftype``, without the types that it cannot give this model: one's
    blocks may be longer than its rows. Runs in a child process. Raises ModelError for a model that
    llama.cpp's quantizer does not understand."""
    if source.kind == "gguf":
        header = read_header(source.weights[0])
        shapes = {tensor.name: tensor.shape for tensor in header.tensors}
        begin = header.data_begins
        return _sizes(source.weights[0], shapes, begin, ftypes)
    found = shapes_of(source)
    tokens = found.weights.get("token_embd.weight", (0, 0))[-1]
    with tempfile.TemporaryDirectory(prefix="ingot-sizes-") as folder:
        path = Path(folder, "shapes.gguf")
        begin = _write_shapes(path, found)
        begin += vocabulary_bytes(source, tokens) + _PAIRS
        return _sizes(path, found.weights, begin, ftypes)


def _sizes(
    path: Path, shapes: Mapping[str, tuple[int, ...]], begin: int, ftypes: Sequence[int]
) -> dict[int, FileSize]:
    """``begin`` is where the data begin in the file."""
    count = weights_in(shapes)
    sizes, refused = {}, None
    for ftype in ftypes:
        try:
            types = _types(path, ftype)
        except ModelError as error:
            refused = error
            continue
        total = 0
        for name, kind in types.items():
            weights, size = _BLOCKS[kind]
            whole = math.prod(shapes[name]) // weights * size
            total += -(-whole // _ALIGNMENT) * _ALIGNMENT
        sizes[ftype] = FileSize(begin + total, total * 8 / count)
    if refused is not None and not sizes:
        raise refused
    return sizes


def _types(path: Path, ftype: int) -> dict[str, str]:
    """Each tensor's type in the file that would be made, by a dry run."""
    lib = library()
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.dry_run, params.allow_requantize = ftype, True, True
    code, said = run_quantizer(path, path.with_suffix(".none"), params)
    found = {name: (made or was).upper() for name, was, made in _LINE.findall("".join(said))}
    if code != 0 or not found:
        raise ModelError(f"llama.cpp cannot tell the sizes: {''.join(said[-2:]).strip()}")
    return found


def _write_shapes(path: Path, shapes: Shapes) -> int:
    """A header with these tensors, and a hole where their data would be; returns its length. To
    the quantizer it is a Llama: the types that it chooses go by the tensors' names."""
    heads = int(shapes.number("num_attention_heads", "n_head", default=1))
    embedding = shapes.weights.get("token_embd.weight", (heads,))[0]
    pairs: dict[str, GgufValue] = {
        "general.architecture": "llama",
        "general.file_type": _F16,
        "llama.context_length": int(shapes.number("max_position_embeddings", default=2048)),
        "llama.embedding_length": embedding,
        "llama.block_count": max(shapes.layers, 1),
        "llama.feed_forward_length": int(shapes.number("intermediate_size", default=4 * embedding)),
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": int(shapes.number("num_key_value_heads", default=heads)),
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": shapes.weights.get("token_embd.weight", (0, 0))[-1],
    }
    experts = shapes.number("num_local_experts", "num_experts")
    if experts:
        used = shapes.number("num_experts_per_tok", default=2)
        pairs |= {"llama.expert_count": int(experts), "llama.expert_used_count": int(used)}
    kinds = {name: _F16 for name, shape in shapes.weights.items() if len(shape) > 1}
    head, data = gguf_head(pairs, shapes.weights, kinds)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + data)
    return len(head)
