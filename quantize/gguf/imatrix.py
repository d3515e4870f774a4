"""The importance matrix that GGUF types are made with: computed from a text, or given ready.

The matrix holds, for each weight tensor, the mean square of each input channel over a text. It is
computed with llama.cpp itself on the half-precision GGUF file, as its llama-imatrix tool does, so
that every architecture that llama.cpp knows, mixtures of experts and GGUF sources included, needs
no mapping of names.
"""

import hashlib
import importlib.metadata
import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

from quantize.children.process import run_child
from quantize.errors import UsageError
from quantize.gguf.imatrix_child import compute
from quantize.gguf.imatrixfile import ImportanceMatrix, is_matrix, read_matrix, write_matrix
from quantize.progress.console import Reporter
from quantize.source import SourceModel
from runtimes.models.gguf import TensorInfo, read_header
from runtimes.paths import cache_dir

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
    kept = cache_dir() / "imatrix" / f"{_key(given, model)}.gguf"
    if _usable(kept, export):
        progress.note(f"the importance matrix of {given.name} is the one computed before")
        shutil.copyfile(kept, out)
        return out
    with progress.stage(f"computing the importance matrix from {given.name}"):
        tokens = _compute(given, export, out, work, progress)
    if tokens < _FEW:
        progress.note(
            f"{given.name} has {tokens:,} tokens; an importance matrix is better for some ten"
            " thousand more"
        )
    try:
        _keep(out, kept)
    except OSError as error:
        progress.note(f"the importance matrix is not kept for later runs: {error}")
    return out


def check_fit(matrix: ImportanceMatrix, export: Path, given: Path) -> list[str]:
    """Raise UsageError unless ``matrix`` is of the model in ``export``; what the user should know
    of the tensors on which it says nothing."""
    tensors = {info.name: info for info in read_header(export).tensors}
    if not any(name in tensors for name in matrix.entries):
        raise UsageError(
            f"{given} is another model's importance matrix: it names no tensor of this one"
        )
    for name, entry in matrix.entries.items():
        if name in tensors and entry.sums.size != _channels(tensors[name]):
            raise UsageError(
                f"{given} is another model's importance matrix: {name} has {entry.sums.size} values"
                f" there, and {_channels(tensors[name])} here"
            )
    weights = [
        name
        for name, info in tensors.items()
        if len(info.shape) > 1 and name.startswith("blk.") and "_norm" not in name
    ]
    silent = [name for name in weights if name not in matrix.entries]
    if not silent:
        return []
    return [
        f"the importance matrix says nothing on {len(silent)} of {len(weights)} tensors, such as"
        f" {silent[0]}; these are quantized without"
    ]


def _channels(info: TensorInfo) -> int:
    """llama.cpp wants a value per input channel of each of a tensor's matrices."""
    return info.shape[0] * (info.shape[2] if len(info.shape) > 2 else 1)


def _key(text: Path, model: SourceModel) -> str:
    with text.open("rb") as file:
        words = hashlib.file_digest(file, "sha256").hexdigest()
    parts = _METHOD, importlib.metadata.version("llama-cpp-python"), model.fingerprint().hash, words
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _usable(kept: Path, export: Path) -> bool:
    if not kept.is_file():
        return False
    try:
        check_fit(read_matrix(kept), export, kept)
    except UsageError:  # damaged: compute it again
        return False
    return True


def _compute(text: Path, export: Path, out: Path, work: Path, progress: Reporter) -> int:
    tokens = run_child(
        partial(compute, export, text, out, _FEWEST),
        what="computing the importance matrix",
        work=work,
        progress=progress,
    )
    if tokens < _FEWEST:
        raise UsageError(
            f"{text} has {tokens} tokens, too few for an importance matrix: give some hundred kB of"
            " text like that which the model is for"
        )
    return tokens


def _keep(made: Path, kept: Path) -> None:
    """Into the cache in one step: another run may be reading there."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".partial-", dir=kept.parent)
    os.close(handle)
    partial = Path(name)
    try:
        shutil.copyfile(made, partial)
        partial.replace(kept)
    finally:
        partial.unlink(missing_ok=True)
