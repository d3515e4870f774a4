"""Measuring a model's tables of sensitivities; kept in the cache, so that a second target is nearly
free. A run that was killed resumes at the layer where it was."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from quantize.allocate.solve import (
    SAMPLE,
    WINDOWS,
    Rater,
    TypeTable,
    Unit,
    read_table,
    sweep_seconds,
    write_table,
)
from quantize.allocate.sweep import Matrix, sweep
from quantize.children import run_child
from quantize.disk import sha256_text, write_atomically
from quantize.errors import BusyError, ToolError, UsageError
from quantize.fromjson import from_json
from quantize.gguf.imatrixfile import is_matrix
from quantize.options import Options
from quantize.progress import Reporter
from quantize.quality.float_child import encode, load_network
from quantize.quality.text import BUNDLED, WINDOW, cut
from quantize.source import SourceModel
from quantize.source.files import CALIBRATION
from runtimes.machine.locks import Lock, another_run
from runtimes.paths import cache_dir

_METHOD = 3  # raised when the same model and text give another table
_DONE = "done.json"


def sensitivities(
    source: SourceModel, raters: Sequence[Rater], text: Path, work: Path, progress: Reporter
) -> TypeTable:
    """The table of the first of ``raters``, over the first windows of ``text``. All that are not
    known yet are measured in one pass.

    Raises ToolError for a table that was changed, BusyError while another run measures it.
    """
    folder = cache_dir() / "sensitivities"
    kept = [folder / f"{_named(rater.key)}.json" for rater in raters]
    missing = [
        (rater, path) for rater, path in zip(raters, kept, strict=True) if not path.is_file()
    ]
    if missing:
        _measure_missing(source, missing, text, work, progress)
    else:
        progress.note("the table of sensitivities is the one measured before")
    return read_table(kept[0])


def _named(key: str) -> str:
    return sha256_text(f"{key} {_METHOD} {WINDOWS} {SAMPLE}")[:32]


def _measure_missing(
    source: SourceModel,
    missing: Sequence[tuple[Rater, Path]],
    text: Path,
    work: Path,
    progress: Reporter,
) -> None:
    raters = [rater for rater, _ in missing]
    whole = _named(" ".join(rater.key for rater in raters))
    partial_folder = missing[0][1].with_name(f"{whole}.partial")
    partial_folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = Lock(partial_folder)
    except BlockingIOError as error:
        raise BusyError(
            f"{another_run(partial_folder)} measures this model; wait for it"
        ) from error
    with lock:
        seconds = sweep_seconds(source)
        told = f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} seconds"
        progress.note(f"measuring sensitivities takes about {told}")
        with progress.stage("measuring how much each tensor matters"):
            call = partial(_measure, source, text, raters, partial_folder)
            tables = run_child(call, "measuring sensitivities", work, progress, torch=True)
        for (_, path), table in zip(missing, tables, strict=True):
            write_table(path, table)
        shutil.rmtree(partial_folder)


def _measure(
    source: SourceModel, text: Path, raters: Sequence[Rater], folder: Path
) -> list[TypeTable]:
    """Runs in a child process."""
    import torch

    done, units = _resumed(folder, len(raters))
    ids, bos = encode(source, text.read_text(encoding="utf-8"))
    windows = cut(ids, WINDOW, bos, len(ids)).ids[:WINDOWS]
    # As `sweep_bytes` counts them: a layer is widened while it is worked on.
    network = load_network(source, wide=False)
    tokens = sum(map(len, windows))

    def rate(tensor: Matrix) -> None:
        for rater, own in zip(raters, units, strict=True):
            own.append(rater.rate(tensor, tokens))

    def finished(parts: int) -> None:
        state = {"done": parts, "units": [[asdict(unit) for unit in own] for own in units]}
        write_atomically(folder / _DONE, json.dumps(state))

    torch.manual_seed(0)
    sweep(network, windows, folder, done, rate, finished)
    return [TypeTable(tuple(own), tokens, text.name) for own in units]


def _resumed(folder: Path, raters: int) -> tuple[int, list[list[Unit]]]:
    """How many parts a killed run had finished, and what it had found for each rater."""
    try:
        state = json.loads((folder / _DONE).read_bytes())
    except OSError:
        return 0, [[] for _ in range(raters)]
    except ValueError as error:
        raise ToolError(f"{folder / _DONE} is damaged ({error}): delete the folder") from error
    return state["done"], [[from_json(Unit, unit) for unit in own] for own in state["units"]]


# The texts that a target is found with: to measure sensitivities on, and to measure tries on.
# They share nothing with each other, nor with the one that has the verdict.


_BUNDLED = BUNDLED.with_name(CALIBRATION)
_LEAST = 4_000  # characters
_MOST = 400_000  # characters; more is not needed
_SHARE = 2 / 3  # of the text for sensitivities, the rest for tries
_PASSAGE, _EVERY = 200, 100  # characters that two texts have in common only if one has the other's


def calibration_text(options: Options, source: SourceModel) -> Path:
    """The text that the user gave for the importance matrix, else the model's own, else the one
    that is bundled."""
    if options.imatrix is not None and not is_matrix(options.imatrix):
        return options.imatrix
    own = source.folder / CALIBRATION
    return own if own.is_file() else _BUNDLED


def split_texts(given: Path, final: Path | None) -> tuple[str, str]:
    """``given`` in two parts, to measure sensitivities on and to measure tries on. Raises
    UsageError if it cannot be read, is too short, or has a passage of ``final``, or of itself,
    twice."""
    text = read_calibration(given)
    cut = text.rfind("\n", 0, int(len(text) * _SHARE)) + 1 or int(len(text) * _SHARE)
    parts = text[:cut], text[cut:]
    verdict = read_calibration(final or BUNDLED)
    for one, other, names in (
        *((part, verdict, f"{given.name} and {(final or BUNDLED).name}") for part in parts),
        (parts[0], parts[1], f"the two parts of {given.name}"),
    ):
        if passage := _shared(one, other):
            raise UsageError(
                f"{names} share a passage ({passage[:40]!r} ...): what is measured on a text that"
                " was learnt from says nothing. Give another one with --imatrix or --measure-text"
            )
    if len(text) < _LEAST:
        raise UsageError(
            f"{given} has {len(text):,} characters: give at least {_LEAST:,}, to choose types by"
        )
    return parts


def read_calibration(path: Path) -> str:
    """Up to 400,000 characters of the text. Raises UsageError."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(_MOST)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as text: {error}") from error


def _shared(one: str, other: str) -> str | None:
    """A passage of ``one`` that ``other`` has too."""
    one, other = " ".join(one.split()), " ".join(other.split())
    passages = (one[at : at + _PASSAGE] for at in range(0, len(one) - _PASSAGE, _EVERY))
    return next((passage for passage in passages if passage in other), None)
