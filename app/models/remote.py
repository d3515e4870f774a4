"""The builds of a repository on the hub, and whether they would run here."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from app.models import library
from app.models.catalog import bits_of
from app.models.library import Kept
from app.models.pulling import Holdings, is_projector, look, waiting
from quantize.hub.client import Hub, RemoteFile, Repository
from quantize.hub.names import HubName
from quantize.hub.transfer import arrived, fetch_start
from quantize.progress.console import Reporter
from runtimes.backend import Backend
from runtimes.errors import IngotError
from runtimes.models.gguf import read_start
from runtimes.models.memory import DEFAULT_CONTEXT, estimate
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import backend_of, backends
from runtimes.settings import RunnerSettings

logger = logging.getLogger(__name__)

_START = 128 * 2**10  # bytes of a file: what describes a model stands before its tokenizer
MARGIN = 0.25  # of a build's bytes, for all but the weights, where its header is not known
_COMFORT = 0.8  # of the free memory; more is tight


class Verdict(StrEnum):
    """Whether a build can be loaded into the memory that is free."""

    FITS = "fits"
    TIGHT = "tight"
    TOO_BIG = "too big"


@dataclass(frozen=True, slots=True)
class Need:
    """Memory that one conversation of ``context`` tokens takes."""

    bytes: int
    context: int
    by_header: bool  # False: by the size of its files and ``MARGIN``

    def verdict(self, free: int) -> Verdict:
        """With ``free`` bytes."""
        if self.bytes > free:
            return Verdict.TOO_BIG
        return Verdict.TIGHT if self.bytes > _COMFORT * free else Verdict.FITS


@dataclass(frozen=True, slots=True)
class RemoteBuild:
    """A model that can be pulled, as the library will have it."""

    kept: Kept
    need: Need
    arrived: int  # bytes, of an interrupted download
    here: bool  # in the library

    def bits(self, parameters: int | None) -> float | None:
        """Of a weight; without the number of ``parameters`` as the name says."""
        return self.kept.size * 8 / parameters if parameters else bits_of(self.kept.label)


@dataclass(frozen=True, slots=True)
class Contents:
    """What a repository has of use here."""

    repo: str
    builds: tuple[RemoteBuild, ...]  # the smallest first
    projectors: tuple[RemoteFile, ...]  # image encoders (mmproj), which are not used here
    originals: int  # bytes of safetensors, which `quantize` could take
    file: ModelFile | None  # what the header of one of the builds says
    mixture: bool = False  # of experts: a token reads a part of the weights


def contents(name: HubName, hub: Hub) -> Contents:
    """What is there, by two requests, or three with a GGUF file. Raises HubError or UsageError."""
    repo = Repository(name, Reporter(), hub)
    found = look(repo)
    file, mixture = _header(repo, found)
    model, folder = library.read(found.listing.repo), waiting(found.listing.repo)
    builds = [
        RemoteBuild(kept, _need(kept, file), arrived(folder, files), model.has(kept))
        for kept, files in found.ready
    ]
    taken = {one.path for _, files in found.ready for one in files}
    rest = [one for one in found.listing.files if one.path not in taken]
    return Contents(
        found.listing.repo,
        tuple(sorted(builds, key=lambda build: build.kept.size)),
        tuple(one for one in rest if is_projector(one.path)),
        sum(one.bytes for one in rest if one.path.endswith(".safetensors")),
        file,
        mixture,
    )


def room_for(free: int) -> int:
    """The largest build, in bytes, that fits ``free`` when only its size is known."""
    return int(free / (1 + MARGIN))


def _header(repo: Repository, found: Holdings) -> tuple[ModelFile | None, bool]:
    """What the smallest file that is a model by itself says, and whether it is a mixture of
    experts. The builds of a repository are of one model."""
    singles = [(kept, files) for kept, files in found.ready if _backend(kept).suffixes]
    if not singles:
        return None, False
    kept, files = min(singles, key=lambda one: one[0].size)
    try:
        start = fetch_start(repo, found.listing, files[0], _START)
        file = _backend(kept).peek(start, Path(kept.main), kept.size)
        said = read_start(start).metadata if file else {}
    except IngotError as error:  # gated, or damaged: sizes are known all the same
        logger.info("the header of %s is not known: %s", kept.main, error)
        return None, False
    return file, any(key.endswith(".expert_count") and n for key, n in said.items())


def _backend(kept: Kept) -> Backend:
    return next(one for one in backends() if one.format == kept.kind)


def _need(kept: Kept, file: ModelFile | None) -> Need:
    if file is None or backend_of(file).format != kept.kind:
        return Need(int(kept.size * (1 + MARGIN)), DEFAULT_CONTEXT, by_header=False)
    needs = estimate(replace(file, nbytes=kept.size), RunnerSettings(slots=1)).total
    return Need(needs, min(DEFAULT_CONTEXT, file.context_length), by_header=True)
