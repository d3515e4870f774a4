"""Importance matrix that GGUF types are made with: computed from a text, or given ready.

The matrix holds, for each weight tensor, the mean square of each input channel over a text. It is
computed with llama.cpp itself on the half-precision GGUF file, as its llama-imatrix tool does
(``IMatrixCollector::collect_imatrix`` of tools/imatrix/imatrix.cpp), so that every architecture
that llama.cpp knows, mixtures of experts and GGUF sources included, needs no mapping of names.
"""

import contextlib
import ctypes
import importlib.metadata
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantize.arrays import Array, Doubles
from quantize.children import report_progress, run_child
from quantize.disk import made_whole, sha256_of, sha256_text
from quantize.errors import UsageError
from quantize.gguf.ggml import library_of
from quantize.gguf.imatrixfile import (
    ImatrixEntry,
    ImportanceMatrix,
    is_matrix,
    read_matrix,
    write_matrix,
)
from quantize.progress import Reporter
from quantize.source import SourceModel
from runtimes.errors import ModelError, OutOfMemoryError
from runtimes.llamacpp.context import load_model
from runtimes.llamacpp.native import NativeBatch, library, recent_errors
from runtimes.llamacpp.omp_wait import OmpWaitPolicy
from runtimes.llamacpp.tokenizer import LlamaTokenizer
from runtimes.machine.cpu import available_cores
from runtimes.models.gguf import TensorInfo, read_header
from runtimes.models.registry import read_model
from runtimes.paths import cache_dir
from runtimes.runner import StepRow
from runtimes.settings import RunnerSettings

_F32 = 0  # ggml_type
_DENSE, _EXPERTS = b"MUL_MAT", b"MUL_MAT_ID"
_OBJECT_BYTES = 32  # struct ggml_object of ggml.h, which precedes every tensor


class _Tensor(ctypes.Structure):
    """``struct ggml_tensor`` of ggml/include/ggml.h; ``_check_layout`` compares it with the
    library's own."""


_Tensor._fields_ = [
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * 4),
    ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_int32 * 16),
    ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(_Tensor) * 10),
    ("view_src", ctypes.c_void_p),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * 64),
    ("extra", ctypes.c_void_p),
    ("padding", ctypes.c_char * 8),
]


class Collector:
    """Sums up the squares of what goes into each weight tensor of the layers.

    ``callback`` is the context parameter ``cb_eval``. What goes wrong inside it stops the step;
    ``raise_error`` tells.
    """

    def __init__(self) -> None:
        lib = library()
        self.callback = lib.ggml_backend_sched_eval_callback(self._call)
        self._ggml = library_of()
        self._ops: dict[int, bytes] = {}
        self._sums: dict[str, Doubles] = {}
        self._counts: dict[str, Doubles] = {}
        self._error: Exception | None = None

    def entries(self) -> dict[str, ImatrixEntry]:
        """Entries by the name of the weight tensor. Raises ModelError for infinities."""
        found = {}
        for name, sums in self._sums.items():
            if not np.isfinite(sums).all():
                raise ModelError(f"the input of {name} is not finite: the model is damaged")
            found[name] = ImatrixEntry(
                sums.astype(np.float32), self._counts[name].astype(np.float32)
            )
        return found

    def raise_error(self) -> None:
        """Raise what went wrong in the callback, if anything did."""
        if self._error is not None:
            raise self._error

    def _call(self, address: int, ask: bool, _user: Any) -> bool:
        # ctypes would print an exception and go on.
        try:
            tensor = _Tensor.from_address(address)
            if ask:
                return self._wants(tensor, address)
            self._collect(tensor)
            return True
        except Exception as error:
            self._error = error
            return False

    def _wants(self, tensor: _Tensor, address: int) -> bool:
        if tensor.op not in self._ops:
            _check_layout(self._ggml, tensor, address)
            self._ops[tensor.op] = self._ggml.ggml_op_name(tensor.op)
        if self._ops[tensor.op] not in (_DENSE, _EXPERTS):
            return False
        weight, inputs = tensor.src[0].contents, tensor.src[1].contents
        return bool(weight.name.startswith(b"blk.")) and inputs.type == _F32

    def _collect(self, tensor: _Tensor) -> None:
        weight, inputs = tensor.src[0].contents, tensor.src[1].contents
        squares = np.square(self._values(inputs, np.float32), dtype=np.float64)
        matrices, width = weight.ne[2] * weight.ne[3], inputs.ne[0]
        name = weight.name.decode()
        sums = self._sums.setdefault(name, np.zeros((matrices, width)))
        counts = self._counts.setdefault(name, np.zeros(matrices))
        if self._ops[tensor.op] == _EXPERTS:
            # [1, tokens, slots, width] goes through the experts [tokens, used]; with fewer slots
            # than experts used, they share.
            experts = self._values(tensor.src[2].contents, np.int32)[0, 0]
            for i in range(experts.shape[1]):
                np.add.at(sums, experts[:, i], squares[0, :, i % squares.shape[2]])
                np.add.at(counts, experts[:, i], 1)
            return
        # Rows of all matrices' inputs; where the weight is one matrix, all rows are its.
        for i3 in range(squares.shape[0]):
            for i2 in range(squares.shape[1]):
                matrix = i3 % weight.ne[3] * weight.ne[2] + i2 % weight.ne[2]
                sums[matrix] += squares[i3, i2].sum(axis=0)
                counts[matrix] += squares.shape[2]

    def _values(self, tensor: _Tensor, dtype: npt.DTypeLike) -> Array:
        """A copy of the tensor's values, in NumPy's order of dimensions (the slowest first)."""
        pointer = ctypes.byref(tensor)
        buffer = np.empty(self._ggml.ggml_nbytes(pointer), np.uint8)
        self._ggml.ggml_backend_tensor_get(pointer, buffer.ctypes.data, 0, buffer.nbytes)
        return np.ndarray(
            tuple(tensor.ne)[::-1], dtype, buffer=buffer.data, strides=tuple(tensor.nb)[::-1]
        )


def _check_layout(ggml: Any, tensor: _Tensor, address: int) -> None:
    """Raise ModelError unless the installed library's tensors are laid out as ours."""
    ours = (
        _OBJECT_BYTES + ctypes.sizeof(_Tensor),
        address + _Tensor.name.offset,
        tensor.data,
    )
    theirs = ggml.ggml_tensor_overhead(), ggml.ggml_get_name(address), ggml.ggml_get_data(address)
    if ours != theirs:
        raise ModelError(
            "the installed llama.cpp is of another version than importance matrices are computed"
            " with here; compute one with its llama-imatrix tool and give that file"
        )


CHUNK = 512  # tokens that see each other, as llama-imatrix has it
_STEP = 128  # tokens at once: bounds the logits, which must be computed for every token
_FEWEST = 256  # tokens; with less, most channels have hardly been seen
_FEW = 10_000  # tokens below which the user is told
_METHOD = "1"  # to be raised whenever the same text gives another matrix


def prepare_imatrix(
    given: Path, model: SourceModel, export: Path, work: Path, progress: Reporter
) -> Path:
    """``given``, a text or a ready matrix in either of llama.cpp's formats, as a file in ``work``.

    ``export`` is the model's half-precision GGUF file. A matrix that was computed for the same
    model and text before is taken from the cache. Raises UsageError when there is no such file,
    the text is too short, or the matrix is damaged or of another model.
    """
    out = work / "imatrix.gguf"
    if is_matrix(given):
        matrix = read_matrix(given)
        for note in check_fit(matrix, export, given):
            progress.note(note)
        write_matrix(out, matrix)
        return out
    parts = _METHOD, importlib.metadata.version("llama-cpp-python"), model.fingerprint().hash
    key = sha256_text("\n".join((*parts, sha256_of(given))))
    kept = cache_dir() / "imatrix" / f"{key}.gguf"
    if _usable(kept, export):
        progress.note(f"the importance matrix of {given.name} is the one computed before")
        shutil.copyfile(kept, out)
        return out
    what = f"computing the importance matrix from {given.name}"
    with progress.stage(what):
        tokens = run_child(partial(compute, export, given, out, _FEWEST), what, work, progress)
    if tokens < _FEWEST:
        raise UsageError(
            f"{given} has {tokens} tokens, too few for an importance matrix: give some hundred kB"
            " of text like that which the model is for"
        )
    if tokens < _FEW:
        progress.note(
            f"{given.name} has {tokens:,} tokens; an importance matrix is better for some ten"
            " thousand more"
        )
    try:
        with made_whole(kept) as made:
            shutil.copyfile(out, made)
    except OSError as error:
        progress.note(f"the importance matrix is not kept for later runs: {error}")
    return out


def check_fit(matrix: ImportanceMatrix, export: Path, given: Path) -> list[str]:
    """Raise UsageError unless ``matrix`` is of the model in ``export``; what the user should know
    of the tensors on which it says nothing."""
    tensors = {info.name: info for info in read_header(export).tensors}
    other = f"{given} is another model's importance matrix"
    if not matrix.entries.keys() & tensors.keys():
        raise UsageError(f"{other}: it names no tensor of this one")
    for name, entry in matrix.entries.items():
        if name in tensors and entry.sums.size != _channels(tensors[name]):
            raise UsageError(
                f"{other}: {name} has {entry.sums.size} values there, and"
                f" {_channels(tensors[name])} here"
            )
    weights = [
        name
        for name, info in tensors.items()
        if len(info.shape) > 1 and name.startswith("blk.") and "_norm" not in name
    ]
    silent = [name for name in weights if name not in matrix.entries]
    said = f"the importance matrix says nothing on {len(silent)} of {len(weights)} tensors, such as"
    return [f"{said} {first}; these are quantized without" for first in silent[:1]]


def _channels(info: TensorInfo) -> int:
    """llama.cpp wants a value per input channel of each of a tensor's matrices."""
    return info.shape[0] * (info.shape[2] if len(info.shape) > 2 else 1)


def _usable(kept: Path, export: Path) -> bool:
    with contextlib.suppress(OSError, UsageError):  # not there, or damaged: compute it again
        check_fit(read_matrix(kept), export, kept)
        return True
    return False


def compute(model: Path, text: Path, out: Path, fewest: int) -> int:
    """Runs in a child process: write the importance matrix of the GGUF file ``model`` over the file
    ``text`` to ``out``.

    Each chunk begins with BOS where the model's vocabulary says so. Returns the number of the
    text's tokens; with fewer than ``fewest`` nothing is computed.
    """
    lib, file = library(), read_model(model)
    # Weights in their plain layout, on the processor: nothing is gained from other kernels here.
    native = load_model(file, RunnerSettings(gpu_layers=0, extra_buffers=False))
    tokens = LlamaTokenizer(native).encode(text.read_text(encoding="utf-8", errors="replace"))
    if len(tokens) < fewest:
        return len(tokens)
    vocab = lib.llama_model_get_vocab(native)
    bos = int(lib.llama_vocab_bos(vocab)) if lib.llama_vocab_get_add_bos(vocab) else None
    chunks = chunked(tokens, min(CHUNK, file.context_length), bos)
    collector = Collector()
    context = _context(native, collector, len(chunks[0]))
    memory, batch = lib.llama_get_memory(context), NativeBatch(_STEP)
    omp_wait = OmpWaitPolicy(available_cores())
    done = 0
    for chunk in chunks:
        if memory:
            lib.llama_memory_clear(memory, True)
        for start in range(0, len(chunk), _STEP):
            row = StepRow(0, start, chunk[start : start + _STEP], logits=0)
            # Logits for every token: llama.cpp leaves the others out of the last layer.
            batch.fill((row,), every=True)
            with omp_wait:
                code = lib.llama_decode(context, batch.native)
            collector.raise_error()
            if code != 0:
                raise ModelError(f"llama.cpp failed in a step: {recent_errors() or f'code {code}'}")
        done += len(chunk)
        report_progress(done, sum(map(len, chunks)), "tokens")
    omp_wait.close()
    matrix = ImportanceMatrix(collector.entries(), text.name, len(chunks), len(chunks[0]))
    write_matrix(out, matrix)
    return len(tokens)


def chunked(tokens: Sequence[int], size: int, bos: int | None) -> list[list[int]]:
    """``tokens`` in pieces of ``size`` at most, each with ``bos`` in front."""
    front = [] if bos is None else [bos]
    step = size - len(front)
    return [[*front, *tokens[i : i + step]] for i in range(0, len(tokens), step)]


def _context(model: Any, collector: Collector, length: int) -> Any:
    lib = library()
    params = lib.llama_context_default_params()
    params.n_ctx = length
    params.n_batch = params.n_ubatch = params.n_outputs_max = _STEP
    params.n_threads = params.n_threads_batch = available_cores()
    params.n_seq_max = 1
    params.no_perf = True
    params.op_offload = params.offload_kqv = False
    params.cb_eval = collector.callback
    context = lib.llama_init_from_model(model, params)
    if not context:
        raise OutOfMemoryError(f"no memory for a context of {length} tokens: {recent_errors()}")
    return context
