"""Looking for models on the hub by words, formats and sizes.

huggingface_hub's own ``list_models`` has no timeout and tries for half a minute before it says that
there is no network, so its pages are asked for here as it asks, with our patience.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from quantize.hub.client import Hub, Patience
from quantize.hub.errors import HubError
from quantize.hub.names import HubName, parse_hub_name
from quantize.progress.console import Reporter

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

FORMATS = ("gguf", "onnx", "safetensors")
Sort = Literal["downloads", "likes", "updated"]
SORTS: tuple[Sort, ...] = ("downloads", "likes", "updated")
FEW_BITS = 4.5  # of a weight, in the usual 4-bit files: how small a model can reasonably be had
_PAGE = 50  # repositories a request
_PAGES = 20  # that are asked for at most: a filter may let none of them pass
_EXPAND: Any = ["downloads", "likes", "lastModified", "gated", "tags", "gguf", "safetensors"]
_THEIRS: dict[Sort, str] = {"downloads": "downloads", "likes": "likes", "updated": "lastModified"}
_CHAT = "conversational"  # the hub's tag of models that have a chat template
# "Llama-3.2-1B", "SmolLM2-135M", "Mixtral-8x7B".
_SIZE = re.compile(r"(?:^|[-_.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?=$|[-_.])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Query:
    """What is looked for. ``largest`` bounds the bytes of a 4-bit build; models of which nobody
    knows the size pass."""

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

    @property
    def about_bytes(self) -> int | None:
        """The size of a usual 4-bit build."""
        return None if self.parameters is None else int(self.parameters * FEW_BITS / 8)


def quick() -> Hub:
    """For somebody who waits at a screen."""
    return Hub(Patience(attempts=2))


def search(query: Query, hub: Hub | None = None) -> Iterator[Found]:
    """The repositories, best first, each once. Pages are asked for when they are needed.

    Raises HubError, from the iterator too.
    """
    hub, seen = hub or quick(), set[str]()
    kinds = query.formats or (None,)
    found = heapq.merge(
        *(_listed(query, kind, hub) for kind in kinds), key=_ORDER[query.sort], reverse=True
    )
    for one in found:
        size = one.about_bytes
        if one.repo in seen or (query.largest and size is not None and size > query.largest):
            continue
        seen.add(one.repo)
        yield one


def look_up(name: HubName, hub: Hub | None = None) -> Found:
    """One repository. Raises HubError or UsageError."""
    hub = hub or quick()

    def ask() -> Found:
        from huggingface_hub import ModelInfo

        parse: Any = ModelInfo  # it has no types
        said, _ = hub.answer(f"/api/models/{name.repo}", {"expand": _EXPAND})
        with _understood():
            return _found(parse(**{"siblings": None, **said}))

    return hub.patiently(ask, name, Reporter())


_NEVER = datetime.min
_ORDER: dict[Sort, Callable[[Found], Any]] = {
    "downloads": lambda one: one.downloads,
    "likes": lambda one: one.likes,
    "updated": lambda one: (one.updated or _NEVER).replace(tzinfo=None),
}


def _listed(query: Query, kind: str | None, hub: Hub) -> Iterator[Found]:
    """What the hub lists for one format, page by page."""
    from huggingface_hub import ModelInfo

    parse: Any = ModelInfo  # it has no types
    tags = [tag for tag in (kind, _CHAT if query.instruct else None) if tag]
    asked: dict[str, Any] = {"sort": _THEIRS[query.sort], "limit": _PAGE, "expand": _EXPAND}
    asked |= {"filter": tags} if tags else {}
    asked |= {"search": query.words} if query.words else {}
    for _ in range(_PAGES):
        items, asked = _page(asked, hub)
        for item in items:
            with _understood():
                one = _found(parse(**{"siblings": None, **item}))
                known = parse_hub_name(one.repo)
            if known is not None:  # else nothing can be pulled by it
                yield one
        if not asked:
            return


def _page(asked: dict[str, Any], hub: Hub) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A page, and what to ask for the next one; empty after the last."""
    import httpx2

    said, links = hub.patiently(lambda: hub.answer("/api/models", asked), None, Reporter())
    with _understood():
        items = [dict(item) for item in said]
        # A mirror may name the original hub here: only what it asks is taken over.
        params = httpx2.URL(links.get("next", {}).get("url") or "").params
    return items, {key: params.get_list(key) for key in params}


@contextmanager
def _understood() -> Iterator[None]:
    """A proxy's page for logging in, for one, is no answer to a search."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HubError(f"what answers for the hub is not a list of models ({error})") from error


def _found(info: ModelInfo) -> Found:
    gguf = info.gguf or {}
    total = _count(gguf.get("total")) or _count(info.safetensors and info.safetensors.total)
    licences = (tag.removeprefix("license:") for tag in info.tags or [] if "license:" in tag)
    return Found(
        repo=info.id,
        downloads=_count(info.downloads) or 0,
        likes=_count(info.likes) or 0,
        updated=info.last_modified,
        licence=next(licences, None),
        gated=bool(info.gated),
        parameters=total or _named_size(info.id),
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
