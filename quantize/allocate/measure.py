"""Measuring a model's table of sensitivities; kept in the cache, so that a second target is nearly
free. A run that was killed resumes at the layer where it was."""

import hashlib
import json
import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from quantize.allocate.cost import WINDOWS, sweep_seconds
from quantize.allocate.sweep import Array, Matrix, sweep
from quantize.allocate.table import Choice, Table, Unit, read_table, write_table
from quantize.children.process import run_child
from quantize.disk import write_atomically
from quantize.errors import BusyError, ToolError
from quantize.fromjson import from_json
from quantize.gguf.imatrixfile import read_matrix
from quantize.gguf.quantize import TYPES, needs_matrix
from quantize.gguf.rounding import rounded
from quantize.progress.console import Reporter
from quantize.quality.float_child import encode, load_network
from quantize.quality.text import WINDOW
from quantize.source import SourceModel
from runtimes.errors import ModelError
from runtimes.machine.locks import Lock, another_run
from runtimes.models.gguf import TENSOR_TYPES
from runtimes.paths import cache_dir

Ints = npt.NDArray[np.int64]


_METHOD = 1  # raised when the same model and text give another table
_DONE = "done.json"
_ALIGNMENT = 32  # bytes that tensors of a GGUF file are padded to
_SAMPLE = 1 << 18  # weights of a matrix that are rounded in every type; of more a sample of rows
# Types that are worth choosing among; those of blocks of 256 where the rows allow them.
_TYPES = (
    *("f16", "q8_0", "q6_k", "q5_1", "q5_0", "q5_k", "q4_1", "q4_k", "q4_0", "iq4_nl", "iq4_xs"),
    *("q3_k", "iq3_s", "q2_k", "iq3_xxs", "iq2_s"),
)


def sensitivities(
    source: SourceModel, key: str, text: Path, matrix: Path, work: Path, progress: Reporter
) -> Table:
    """The table for GGUF types of ``source``, over the first windows of ``text``, with the
    importance ``matrix`` that the file will be made with. ``key`` is a hash of what decides it.

    Raises ToolError for a table that was changed, BusyError while another run measures it.
    """
    name = hashlib.sha256(f"{key} {_METHOD} {WINDOWS} {_SAMPLE}".encode()).hexdigest()[:32]
    folder = cache_dir() / "sensitivities"
    kept = folder / f"{name}.json"
    if kept.is_file():
        progress.note("the table of sensitivities is the one measured before")
        return read_table(kept)
    partial_folder = folder / f"{name}.partial"
    partial_folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = Lock(partial_folder)
    except BlockingIOError as error:
        raise BusyError(
            f"{another_run(partial_folder)} measures this model; wait for it"
        ) from error
    with lock:
        progress.note(f"measuring sensitivities takes about {_minutes(sweep_seconds(source))}")
        with progress.stage("measuring how much each tensor matters"):
            call = partial(_measure, source, text, matrix, partial_folder)
            table = run_child(call, "measuring sensitivities", work, progress, torch=True)
        write_table(kept, table)
        shutil.rmtree(partial_folder)
    return table


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} seconds"


def _measure(source: SourceModel, text: Path, matrix: Path, folder: Path) -> Table:
    """Runs in a child process."""
    import torch

    done, units = _resumed(folder)
    ids, bos = encode(source, text.read_text(encoding="utf-8"))
    length = min(WINDOW, len(ids))
    windows = [ids[at : at + length] for at in range(0, len(ids) - length + 1, length)][:WINDOWS]
    if bos is not None:
        windows = [[bos, *window[1:]] for window in windows]
    network = load_network(source.folder, trust_remote_code=source.trust_remote_code)
    tokens = length * len(windows)
    means = {name: entry.means for name, entry in read_matrix(matrix).entries.items()}

    def rate(tensor: Matrix) -> None:
        units.append(_unit(tensor, tokens, means.get(tensor.name)))

    def finished(parts: int) -> None:
        state = {"done": parts, "units": [asdict(unit) for unit in units]}
        write_atomically(folder / _DONE, json.dumps(state))

    torch.manual_seed(0)
    sweep(network, windows, folder, done, rate, finished)
    return Table(tuple(units), tokens, text.name)


def _resumed(folder: Path) -> tuple[int, list[Unit]]:
    """How many parts a killed run had finished, and what it had found."""
    try:
        state = json.loads((folder / _DONE).read_text(encoding="utf-8"))
    except OSError:
        return 0, []
    except ValueError as error:
        raise ToolError(f"{folder / _DONE} is damaged ({error}): delete the folder") from error
    return state["done"], [from_json(Unit, unit) for unit in state["units"]]


def _unit(tensor: Matrix, tokens: int, means: Array | None) -> Unit:
    """What each type that fits ``tensor`` takes and loses. ``means`` is the importance matrix of
    all its matrices [matrices * in]."""
    count, _, width = tensor.weight.shape
    own = None if means is None else means.reshape(count, width)
    kinds = [
        kind
        for kind in _TYPES
        if width % TENSOR_TYPES[TYPES[kind]][1] == 0
        and (means is not None or not needs_matrix(kind, tensor.name))
    ]
    losses = dict.fromkeys(kinds, 0.0)
    for i, (weight, fisher) in enumerate(zip(tensor.weight, tensor.fisher, strict=True)):
        rows, scale = _sampled(weight, fisher, _SAMPLE // count)
        weight, worth = weight[rows], fisher[rows] * scale[:, None]
        for kind in kinds:
            moved = rounded(weight, kind, None if own is None else own[i]) - weight
            losses[kind] += 0.5 * float((worth * moved**2).sum(dtype=np.float64))
    if not np.isfinite(list(losses.values())).all():
        raise ModelError(f"{tensor.name} has weights or gradients that are not finite")
    choices = tuple(
        Choice(
            kind,
            _nbytes(tensor.weight.size, kind),
            (losses[kind] + (0.0 if kind == "f16" else _inputs(tensor, kind))) / tokens,
        )
        for kind in kinds
    )
    matrices, height, width = tensor.weight.shape
    return Unit(tensor.name, matrices, height, width, choices)


def _inputs(tensor: Matrix, kind: str) -> float:
    """The divergence of inputs in 8 bits, which kernels of that type round to."""
    block = 256 if TENSOR_TYPES[TYPES[kind]][1] == 256 else 32
    return tensor.activations.get(block, 0.0)


def _nbytes(weights: int, kind: str) -> int:
    _, block, size = TENSOR_TYPES[TYPES[kind]]
    return -(-weights // block * size // _ALIGNMENT) * _ALIGNMENT


def _sampled(weight: Array, fisher: Array, most: int) -> tuple[Ints, Array]:
    """Rows whose errors stand for those of all, and how many rows each stands for: those that
    matter most by themselves, and of the rest some that are drawn."""
    rows, keep = len(weight), max(64, most // weight.shape[1])
    if rows <= keep:
        return np.arange(rows), np.ones(rows, np.float32)
    order = np.argsort(-(fisher * weight**2).sum(axis=1))
    top, rest = order[: keep // 2], order[keep // 2 :]
    drawn = np.random.default_rng(0).choice(rest, keep - len(top), replace=False)
    scale = np.ones(keep, np.float32)
    scale[len(top) :] = len(rest) / len(drawn)
    return np.concatenate([top, drawn]), scale
