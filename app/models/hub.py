"""The hub: models looked for by words, formats and sizes, the builds of one, whether they would
run here, and which to take.

huggingface_hub's own ``list_models`` has no timeout and tries for half a minute before it says that
there is no network, so its pages are asked for here as it asks, with our patience.
"""

from __future__ import annotations

import heapq
import logging
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from app.figures import rate
from app.models import library
from app.models.catalog import bits_of
from app.models.library import Kept
from app.models.pulling import Holdings, is_projector, look, waiting
from quantize.disk import human
from quantize.hub.client import (
    Hub,
    HubError,
    HubName,
    Patience,
    RemoteFile,
    Repository,
    parse_hub_name,
)
from quantize.hub.transfer import arrived, fetch_start
from quantize.progress import Reporter
from runtimes.backend import Backend
from runtimes.errors import IngotError
from runtimes.machine.installed import find_installed
from runtimes.models.gguf import read_start
from runtimes.models.memory import DEFAULT_CONTEXT, estimate
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import backend_of, backends
from runtimes.settings import RunnerSettings

FORMATS = ("gguf", "onnx", "safetensors")
Sort = Literal["downloads", "likes", "updated"]
SORTS: tuple[Sort, ...] = get_args(Sort)
FEW_BITS = 4.5  # of a weight, in the usual 4-bit files: how small a model can reasonably be had
_PAGE = 50  # repositories a request
_PAGES = 20  # that are asked for at most: a filter may let none of them pass
_EXPAND: Any = ["downloads", "likes", "lastModified", "gated", "tags", "gguf", "safetensors"]
_THEIRS = {"updated": "lastModified"}  # orders that the hub calls otherwise
_CHAT = "conversational"  # the hub's tag of models that have a chat template
# "Llama-3.2-1B", "SmolLM2-135M", "Mixtral-8x7B".
_SIZE = re.compile(r"(?:^|[-_.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?=$|[-_.])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Query:
    """A search. ``largest`` bounds the bytes of a 4-bit build; models of unknown size pass."""

    words: str = ""
    formats: tuple[str, ...] = ("gguf",)  # any of these; none: whatever there is
    instruct: bool = True  # models to chat with
    sort: Sort = "downloads"
    largest: int | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A repository as the hub lists it."""

    repo: str
    downloads: int  # of the last month
    likes: int
    updated: datetime | None
    licence: str | None
    gated: bool
    parameters: int | None
    exact: bool  # False: ``parameters`` is what the name says
    architecture: str | None = None
    context: int | None = None  # tokens that the model knows


def quick() -> Hub:
    """Make a client with few attempts, for a user who waits at a screen."""
    return Hub(Patience(attempts=2))


def search(query: Query) -> Iterator[Found]:
    """The repositories, best first, each once. Pages are asked for when they are needed.

    Raises HubError, from the iterator too.
    """
    seen = set[str]()
    listed = [_listed(query, kind) for kind in query.formats or (None,)]
    for one in heapq.merge(*listed, key=lambda one: _rank(one, query.sort), reverse=True):
        size = (one.parameters or 0) * FEW_BITS / 8
        if one.repo not in seen and size <= (query.largest or math.inf):
            seen.add(one.repo)
            yield one


def _rank(found: Found, sort: Sort) -> float:
    if sort == "updated":
        # As if in UTC: not every time of another zone has seconds on this machine.
        return found.updated.replace(tzinfo=UTC).timestamp() if found.updated else 0.0
    return found.downloads if sort == "downloads" else found.likes


def look_up(name: HubName) -> Found:
    """Look one repository up. Raises HubError or UsageError."""
    hub = quick()

    def ask() -> Found:
        said, _ = hub.answer(f"/api/models/{name.repo}", {"expand": _EXPAND})
        with _understood():
            return _found(said)

    return hub.patiently(ask, name, Reporter())


def _listed(query: Query, kind: str | None) -> Iterator[Found]:
    """List the models of one format, page by page."""
    tags = [tag for tag in (kind, query.instruct and _CHAT) if tag]
    sort = _THEIRS.get(query.sort, query.sort)
    asked: dict[str, Any] = {"sort": sort, "limit": _PAGE, "expand": _EXPAND}
    asked |= {"filter": tags} if tags else {}
    asked |= {"search": query.words} if query.words else {}
    for _ in range(_PAGES):
        page, asked = _page(asked)
        yield from page
        if not asked:
            return


def _page(asked: dict[str, Any]) -> tuple[list[Found], dict[str, Any]]:
    """A page, and what to ask for the next one; empty after the last."""
    import httpx2

    hub = quick()
    said, links = hub.patiently(lambda: hub.answer("/api/models", asked), None, Reporter())
    with _understood():
        # A mirror may name the original hub here: only what it asks is taken over.
        params = httpx2.URL(links.get("next", {}).get("url") or "").params
        found = [_found(dict(item)) for item in said]
        known = [one for one in found if parse_hub_name(one.repo)]  # others cannot be pulled
        return known, {key: params.get_list(key) for key in params}


@contextmanager
def _understood() -> Iterator[None]:
    """A proxy's page for logging in, for one, is no answer to a search."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HubError(f"what answers for the hub is not a list of models ({error})") from error


def _found(said: Mapping[str, Any]) -> Found:
    """Read the hub's JSON of a repository."""
    gguf, updated = said.get("gguf") or {}, said.get("lastModified")
    total = _count(gguf.get("total")) or _count((said.get("safetensors") or {}).get("total"))
    licences = (tag.removeprefix("license:") for tag in said.get("tags") or () if "license:" in tag)
    return Found(
        repo=said["id"],
        downloads=_count(said.get("downloads")) or 0,
        likes=_count(said.get("likes")) or 0,
        updated=datetime.fromisoformat(updated) if updated else None,
        licence=next(licences, None),
        gated=bool(said.get("gated")),
        parameters=total or _named_size(said["id"]),
        exact=bool(total),
        architecture=str(gguf["architecture"]) if gguf.get("architecture") else None,
        context=_count(gguf.get("context_length")),
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _named_size(repo: str) -> int | None:
    """Parameters by the name, such as 1.5B."""
    sizes = _SIZE.findall(repo.rpartition("/")[2])
    if not sizes:
        return None
    times, number, unit = sizes[0]
    return int(int(times or 1) * float(number) * (1e9 if unit in "bB" else 1e6))


logger = logging.getLogger(__name__)

# The builds of a repository on the hub, and whether they would run here.


_START = 128 * 2**10  # bytes of a file: what describes a model stands before its tokenizer
MARGIN = 0.25  # of a build's bytes, for all but the weights, where its header is not known
_COMFORT = 0.8  # of the free memory; more is tight


# Whether a build can be loaded into the memory that is free.
Verdict = Literal["fits", "tight", "too big"]


@dataclass(frozen=True, slots=True)
class Need:
    """Memory that one conversation of ``context`` tokens takes."""

    bytes: int
    context: int
    by_header: bool  # False: by the size of its files and ``MARGIN``

    def verdict(self, free: int) -> Verdict:
        """Compare with ``free`` bytes."""
        if self.bytes > free:
            return "too big"
        return "tight" if self.bytes > _COMFORT * free else "fits"


@dataclass(frozen=True, slots=True)
class RemoteBuild:
    """A model that can be pulled, as the library will have it."""

    kept: Kept
    need: Need
    arrived: int  # bytes, of an interrupted download
    here: bool  # in the library

    def bits(self, parameters: int | None) -> float | None:
        """Bits a weight; by the name where the number of ``parameters`` is not known."""
        return self.kept.size * 8 / parameters if parameters else bits_of(self.kept.label)


@dataclass(frozen=True, slots=True)
class Contents:
    """Contents of a repository that are of use here."""

    repo: str
    builds: tuple[RemoteBuild, ...]  # the smallest first
    projectors: tuple[RemoteFile, ...]  # image encoders (mmproj), which are not used here
    originals: int  # bytes of safetensors, which `quantize` could take
    mixture: bool = False  # of experts: a token reads a part of the weights


def contents(name: HubName) -> Contents:
    """Look at a repository by two requests, or three with a GGUF file. Raises HubError or
    UsageError."""
    repo = Repository(name, Reporter(), quick())
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
        mixture,
    )


def room_for(free: int) -> int:
    """The largest build, in bytes, that fits ``free`` when only its size is known."""
    return int(free / (1 + MARGIN))


def _header(repo: Repository, found: Holdings) -> tuple[ModelFile | None, bool]:
    """Read the header of the smallest file that is a model by itself, and whether it is a mixture
    of experts. The builds of a repository are of one model."""
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


# What the hub has, in words for people.


_VERDICTS = {
    "fits": "it fits",
    "tight": "it fits, without room for much else",
    "too big": "it does not fit",
}


def wrong(error: Exception) -> str:
    """Message for the user; each request to the hub ends with a result or with one."""
    if isinstance(error, IngotError | OSError):
        said = str(error) or type(error).__name__
        return f"{said[:1].upper()}{said[1:]}" if said.startswith("the") else said
    logger.error("asking the hub", exc_info=error)
    return f"internal error: {type(error).__name__}: {error}"


def short(count: int) -> str:
    """A count in at most five signs: 940, 34k, 1.2M."""
    for unit, scale in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= 0.9995 * scale:
            value = count / scale
            return f"{value:.1f}{unit}" if value < 9.95 else f"{value:.0f}{unit}"
    return str(count)


def size_class(found: Found) -> str:
    """The parameters, such as 1.2B; ~ where only the name says."""
    if found.parameters is None:
        return "?"
    return f"{'' if found.exact else '~'}{short(found.parameters)}"


def updated(found: Found) -> str:
    """The day of the last change."""
    return f"{found.updated:%Y-%m-%d}" if found.updated else "?"


def facts(found: Found) -> list[str]:
    """Two lines about a repository."""
    said = [f"{size_class(found)} parameters", found.architecture or ""]
    said += [f"{short(found.context)} context" if found.context else ""]
    said += [found.licence or "no licence given", "gated" if found.gated else ""]
    used = f"{short(found.downloads)} downloads a month · {short(found.likes)} likes"
    return [" · ".join(part for part in said if part), f"{used} · {updated(found)}"]


def further(contents: Contents) -> list[str]:
    """Describe the files beside the builds."""
    said = []
    if contents.originals:
        how = f"`quantize {contents.repo}` builds files from it"
        said.append(f"The original, {human(contents.originals)} of safetensors: {how}.")
    if contents.projectors:
        size = human(sum(one.bytes for one in contents.projectors))
        said.append(f"An image encoder (mmproj), {size}: not used here.")
    if not contents.builds:
        said.append("No ready files, GGUF or ONNX.")
    return said


def memory(build: RemoteBuild, free: int) -> str:
    """Tell the memory that a build needs, and that is free."""
    need = build.need
    needs = f"about {human(need.bytes)}, a quarter more than its files,"
    if need.by_header:
        needs = human(need.bytes)
    return (
        f"{build.kept.label} needs {needs} with {need.context:,} tokens of context; {human(free)}"
        f" are free: {_VERDICTS[need.verdict(free)]}"
    )


def heading(query: Query, free: int) -> str:
    """Title of the results."""
    kind = "Instruct models" if query.instruct else "Models"
    fit = f" that fit in {human(free)}" if query.largest is not None else ""
    return f"{kind}{fit}, by {query.sort}"


# Which build of a model to take on this machine.


_READING = 10.0  # tokens a second, about as fast as people read
_LOSSLESS = 9.0  # bits a weight: above, files are larger and not better
_GOOD = 4.0  # bits a weight, below which quality falls quickly


@cache
def bandwidth() -> float:
    """Bytes a second that this machine reads from memory; takes half a second the first time."""
    from runtimes.machine.cpu import available_cores
    from runtimes.machine.hardware import memory_bandwidth

    return memory_bandwidth(available_cores())


def advise(
    found: Contents, parameters: int | None, free: int, bandwidth: float | None
) -> tuple[RemoteBuild, str] | None:
    """The build to take, the largest that fits with room and answers faster than one reads, and why
    in one line; None when nothing fits. A token of a dense model needs each byte of it once, so
    ``bandwidth``, in bytes a second, bounds its speed."""
    usable = {one.format for one in backends() if find_installed(one.name)}
    there = [build for build in found.builds if build.kept.kind in usable]
    room = [one for one in there if one.need.verdict(free) == "fits"]
    fitting = room or [one for one in there if one.need.verdict(free) == "tight"][:1]
    useful = [b for b in fitting if (b.bits(parameters) or 0) < _LOSSLESS] or fitting[:1]
    if not useful:
        return None
    best = useful[-1]
    why = "the largest that fits with room" if room else "the only size that fits, without room"
    if len(useful) < len(fitting):
        why = "the largest below 16 bits, which would be no better" if room else why
    if bandwidth is None or found.mixture:
        return best, f"{best.kept.label}: {why}"
    quick = [one for one in useful if bandwidth / one.kept.size >= _READING]
    if quick and quick[-1] is not best:
        best, why = quick[-1], "the largest that fits and keeps up with reading"
    elif not quick:
        good = [one for one in useful if (one.bits(parameters) or _GOOD) >= _GOOD]
        best, why = (good or useful[-1:])[0], "the quickest of good quality, and still slow here"
    speed = f"; at most {rate(bandwidth / best.kept.size)} (memory bandwidth)"
    return best, f"{best.kept.label}: {why}{speed}"
