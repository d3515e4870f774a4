"""Manifest of a folder of builds, `manifest.json`, and whether the listed files are still the bytes
that were built. Front ends read models through it.

Light on purpose: no torch, no transformers, no native runtime.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from quantize.disk import files_of, sha256_of, write_atomically
from quantize.fromjson import GARBLED, from_json
from quantize.recipes import Format
from runtimes.errors import ModelError
from runtimes.untrusted import check_name, load_json

NAME = "manifest.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """Origin of a file: the model that it was built from."""

    name: str
    hash: str  # of the configuration and the weights
    revision: str | None = None  # the commit of a model from the hub
    lora: str | None = None  # the adapter that was merged


@dataclass(frozen=True, slots=True)
class TokenParity:
    """Lines compared with the original tokenizer, and how many of them differed."""

    lines: int
    differences: int


@dataclass(frozen=True, slots=True)
class Quality:
    """Exact-match accuracy on the graded questions, overall and by task (0 to 1)."""

    task_accuracy: float
    questions: int
    tasks: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Perplexity:
    """How well a model predicts a text."""

    value: float
    error: float  # the standard error of ``value``
    tokens: int  # that were predicted
    text: str  # its name
    text_sha256: str
    windows: int = 0  # pieces of the text; 0: not recorded


@dataclass(frozen=True, slots=True)
class Fidelity:
    """A shipped file's next-token distributions against the float model's, on the same token ids.

    KL divergences are in nats, from the float model to the file.
    """

    perplexity: Perplexity
    kl_mean: float
    kl_error: float  # the standard error of the mean
    kl_p99: float  # the 99th percentile over the tokens
    same_top: float  # the share of positions (0 to 1) with the same likeliest token
    kl_median: float | None = None
    kl_p999: float | None = None
    kl_max: float | None = None


@dataclass(frozen=True, slots=True)
class Flips:
    """Answers of ``rows`` that were right and became wrong, and the other way round: two files may
    be right equally often, each with other rows (A. Dutta et al., "Accuracy is Not All You Need",
    2024)."""

    rows: int
    to_wrong: int
    to_right: int

    @property
    def share(self) -> float:
        """Flips per row, 0 to 1."""
        return (self.to_wrong + self.to_right) / self.rows if self.rows else 0.0

    def __str__(self) -> str:
        return f"{self.to_wrong}↓ {self.to_right}↑"


@dataclass(frozen=True, slots=True)
class OwnRows:
    """A user's rows that the original and the file were asked greedily, how many answers are the
    same, and flips of the rows that say which answer is right."""

    prompts: str  # the name of their file
    rows: int
    same: int
    flips: Flips | None = None

    def __str__(self) -> str:
        return f"{self.same}/{self.rows}{f' {self.flips}' if self.flips else ''}"


@dataclass(frozen=True, slots=True)
class FileSpeeds:
    """Tokens per second: prefill, and decoding with 1 row and with 16 rows together."""

    prefill_tps: float
    decode_tps_1: float
    decode_tps_16: float
    prefill_tps_16: float | None = None  # 16 prompts at once
    load_s: float | None = None  # from nothing to the first possible step
    peak_bytes: int | None = None  # the most memory of the process, everything included
    # Of figures that are medians of several laps, by name: the slowest and the fastest lap.
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    others: float | None = None  # the share of the processor (0 to 1) that other programs took


@dataclass(frozen=True, slots=True)
class Allocation:
    """How a file keeps its target: the type of each tensor, the mean KL divergence that was
    predicted, in nats, the number of files tried, what tuning measured, and what is predicted of
    the best file that is a megabyte larger. Of a file that was
    built for speed also the seconds that a step of so many rows was predicted to take. ``rebuild``
    is the command that builds the file exactly again. ``cache`` is the type of keys and values that
    was chosen with a bound of memory, ``cache_kl`` the divergence of the file with it, measured at
    the end of ``cache_tokens`` tokens, and ``cache_loss`` by how much f16 there has less."""

    types: dict[str, str]
    predicted: float
    tries: int
    tuned: float | None = None
    next_mb: float | None = None
    step_s: float | None = None
    rows: int = 0
    rebuild: str = ""
    cache: str = "f16"
    cache_kl: float | None = None
    cache_tokens: int = 0
    cache_loss: float | None = None


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One built file (GGUF) or folder (ONNX)."""

    format: Format
    recipe: str
    bits: int  # the size class of the recipe
    path: str  # relative to the manifest
    bytes: int
    sha256: dict[str, str]  # of each file, named as seen from the manifest
    source: ModelOrigin
    tools: dict[str, str]
    token_parity: TokenParity | None = None
    quality: Quality | None = None
    fidelity: Fidelity | None = None
    speed: FileSpeeds | None = None
    notes: tuple[str, ...] = ()  # for the user, such as tensors that fell back to another type
    route: str = ""  # by which tools it was made
    inputs: str = ""  # the hash of everything that decides its content
    imatrix: str | None = None  # the importance matrix used, by name and checksum
    # What the figures were measured against and with: only those of files with the same one may be
    # compared.
    measurement: str = ""
    bits_per_weight: float | None = None  # what the file really stores
    allocation: Allocation | None = None  # of a file that was built for a target
    rows: OwnRows | None = None

    @property
    def whole(self) -> Fidelity | None:
        """Fidelity with what keys and values of the chosen types add to the mean divergence."""
        if self.fidelity is None or self.allocation is None:
            return self.fidelity
        whole = self.fidelity.kl_mean + (self.allocation.cache_loss or 0.0)
        return dataclasses.replace(self.fidelity, kl_mean=whole)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model that all files are builds of."""

    name: str
    architecture: str
    parameters: int
    # The float model's own, of the ``measurement`` that files may share.
    quality: Quality | None = None
    perplexity: Perplexity | None = None
    bytes: int = 0  # of its weights on disk
    measurement: str = ""
    # Bytes, and predicted divergence in nats, of GGUF files, and of ONNX folders, whose tensors'
    # types are chosen for a target; () where no target was asked for.
    mixes: tuple[tuple[float, float], ...] = ()
    onnx_mixes: tuple[tuple[float, float], ...] = ()
    quantized: str = ""  # of one that is quantized already: its types

    @property
    def stored(self) -> str:
        """How its own weights are, in a word."""
        return "quantized" if self.quantized else "float"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything in the folder, in the order in which it was built."""

    model: ModelInfo
    files: tuple[FileEntry, ...] = ()
    version: int = VERSION

    def entry(self, recipe: str) -> FileEntry | None:
        """The file built by ``recipe``, if there is one."""
        return next((entry for entry in self.files if entry.recipe == recipe), None)

    def with_entry(self, entry: FileEntry) -> Manifest:
        """A copy in which ``entry`` takes the place of an earlier build by the same recipe."""
        return dataclasses.replace(self, files=(*self.without(entry.recipe).files, entry))

    def without(self, recipe: str) -> Manifest:
        """A copy that does not list the build by ``recipe``."""
        return dataclasses.replace(self, files=tuple(e for e in self.files if e.recipe != recipe))

    def to_json(self) -> str:
        """The text of `manifest.json`."""
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"


def load_manifest(folder: Path) -> Manifest:
    """Read ``folder``'s manifest, which may come from elsewhere. Raises ModelError when it is
    missing, not one of ours, or names a file that may be outside ``folder``."""
    path = folder / NAME
    try:
        data = load_json(path)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ModelError(f"{path} is not JSON ({error}); build the model again") from error
    try:
        if data["version"] != VERSION:
            raise ModelError(
                f"{path} is of version {data['version']}, this program reads {VERSION};"
                " build the model again"
            )
        manifest = from_json(Manifest, data)
    except GARBLED as error:
        raise ModelError(f"{path} is damaged ({error!r}); build the model again") from error
    sizes = [manifest.model.parameters, *(entry.bytes for entry in manifest.files)]
    if min(sizes) < 0:
        raise ModelError(f"{path} is damaged (a size below 0); build the model again")
    for entry in manifest.files:
        for name in (entry.path, *entry.sha256):
            check_name(name, str(path))
    return manifest


def write_manifest(folder: Path, manifest: Manifest, work: Path | None = None) -> None:
    """Replace ``folder``'s manifest in one step: a reader sees the old one or the new one.

    ``work`` is a folder on the same disk where the new one is written first.
    """
    write_atomically(folder / NAME, manifest.to_json(), work)


def entry_path(folder: Path, entry: FileEntry) -> Path:
    """Path of ``entry``, to be read. A manifest may come from elsewhere, so a path that leaves
    the folder, by ``..``, from the root, or through a link, raises ModelError, as does a missing
    file and one of another size than was built. What is removed or written goes by
    `runtimes.untrusted.inside` besides."""
    path = listed_path(folder, entry.path)
    if not path.exists():
        raise ModelError(f"{path} is missing, though {NAME} lists it; build it again")
    parts = (folder / check_name(name, str(folder / NAME)) for name in entry.sha256)
    found = sum(file.stat().st_size for file in parts if file.is_file())
    if found != entry.bytes:
        raise ModelError(
            f"{path} has {found:,} bytes and was built with {entry.bytes:,}: it was cut off or"
            f" changed; build it again (`ingot doctor --checksums {folder}` looks at every file)"
        )
    return path


def listed_path(folder: Path, name: str) -> Path:
    """Path of the file ``name`` of ``folder``'s manifest, to be read.

    Raises ModelError for one outside: `check_name` refuses the name, or a link leads elsewhere,
    other than to the files of huggingface_hub's cache, whose folders are links to them.
    """
    path = folder / check_name(name, str(folder / NAME))
    real, leads = (Path(os.path.realpath(one)) for one in (folder, path))
    blobs = [real.parents[1] / "blobs"] if real.parent.name == "snapshots" else []
    if not any(leads.is_relative_to(one) for one in (real, *blobs)):
        raise ModelError(f"{folder / NAME} names {name!r}, a link to what is outside its folder")
    return path


@dataclass(frozen=True, slots=True)
class Digest:
    """Size in bytes and sha256 of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One file; ``problem`` is empty when its bytes are the ones that were built."""

    path: Path
    bytes: int
    problem: str = ""


def digest(file: Path) -> Digest:
    """Read ``file`` once, as a stream."""
    return Digest(file.stat().st_size, sha256_of(file))


def digests(path: Path, without: str = "") -> dict[str, Digest]:
    """Every file below the folder ``path``, except one named ``without`` in it, by its name as seen
    from there."""
    names = sorted(file.relative_to(path).as_posix() for file in files_of(path))
    return {name: digest(path / name) for name in names if name != without}


def findings(folder: Path, entry: FileEntry) -> Iterator[Finding]:
    """The files of ``entry`` against the checksums in it, one after the other."""
    try:
        entry_path(folder, entry)
    except ModelError as error:
        yield Finding(folder / entry.path, 0, str(error))
        return
    for name, wanted in entry.sha256.items():
        yield compare(folder, name, wanted)


def is_whole(folder: Path, entry: FileEntry) -> bool:
    """Whether all bytes of ``entry`` are there as they were built."""
    return not any(finding.problem for finding in findings(folder, entry))


def compare(folder: Path, name: str, wanted: str) -> Finding:
    """The file ``name`` in ``folder``, whose sha256 should be ``wanted``."""
    try:
        file = listed_path(folder, name)
    except ModelError:
        return Finding(folder / name, 0, "lies outside the folder")
    try:
        if file.exists() and not file.is_file():  # a pipe would be waited for
            return Finding(file, 0, "is no file")
        found = digest(file)
    except FileNotFoundError:
        return Finding(file, 0, "is missing")
    except OSError as error:
        return Finding(file, 0, f"cannot be read: {error.strerror}")
    other = found.sha256 != wanted
    return Finding(file, found.bytes, "has other bytes than were built" if other else "")
