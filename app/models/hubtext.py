"""What the hub has, in words for people."""

import logging

from app.models.remote import Contents, RemoteBuild, Verdict
from app.models.search import Found, Query
from quantize.disk import human
from runtimes.errors import IngotError

logger = logging.getLogger(__name__)

_VERDICTS = {
    Verdict.FITS: "it fits",
    Verdict.TIGHT: "it fits, without room for much else",
    Verdict.TOO_BIG: "it does not fit",
}


def wrong(error: Exception) -> str:
    """What a user is told of it; nothing that asks the hub may end without a word."""
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
    """What is there beside the builds."""
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
    """What a build needs, against what is free."""
    need = build.need
    needs = f"about {human(need.bytes)}, a quarter more than its files,"
    if need.by_header:
        needs = human(need.bytes)
    return (
        f"{build.kept.label} needs {needs} with {need.context:,} tokens of context; {human(free)}"
        f" are free: {_VERDICTS[need.verdict(free)]}"
    )


def heading(query: Query, free: int) -> str:
    """What the results are."""
    kind = "Instruct models" if query.instruct else "Models"
    fit = f" that fit in {human(free)}" if query.largest is not None else ""
    return f"{kind}{fit}, by {query.sort}"
