"""Cards of measured files as `ingot measure` shows them: a table, a page, one JSON object."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.figures import aligned
from app.models.library import model_paths
from app.options import ModelOptions
from quantize.cards import Card, card_path
from quantize.disk import outfile
from quantize.measure import front, manifest_of
from quantize.report.facts import ROWS, Figure, of_fidelity
from quantize.report.picture import draw_picture
from quantize.report.table import COLUMNS, build_table
from quantize.report.write import render_page
from quantize.terminal import Console
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import read_model
from runtimes.settings import kv_bits

_PIPE_WIDTH = 160
_NAMES_ONCE = 139  # a wider table has columns for the file and its format


def _nats(name: str) -> Any:
    return of_fidelity(lambda f: f"{getattr(f, name):.2g}" if getattr(f, name) is not None else "")


# Of a file that somebody else has made, the tail says more than its speed.
_COLUMNS = {
    **{name: COLUMNS[name] for name in ("size", "bits", "parity", "accuracy", "perplexity")},
    "kl": Figure("KL\nmean", of_fidelity(lambda f: f"{f.kl_mean:.2g} ±{f.kl_error:.1g}")),
    "p50": Figure("KL\n50%", _nats("kl_median"), wide=True),
    "p99": Figure("KL\n99%", _nats("kl_p99")),
    "p999": Figure("KL\n99.9%", _nats("kl_p999"), wide=True),
    "most": Figure("KL\nmax", _nats("kl_max"), wide=True),
    "rows": ROWS,
    **{name: COLUMNS[name] for name in ("top", "prefill", "decode", "decode_16", "peak")},
}


def resolved(names: Sequence[str]) -> list[ModelFile]:
    """The files of ``names``, each once; of a folder of several built files all that it lists.
    Raises ModelError or RequestError."""
    paths = [path for name in names for path in model_paths(name, ModelOptions())]
    return [read_model(path) for path in {path.absolute(): path for path in paths}.values()]


def print_cards(cards: Sequence[Card], passed: Sequence[Sequence[str]]) -> None:
    """The table, and below it what is wrong with each file, or what was checked."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    manifest = manifest_of(cards)
    names = tuple(entry.recipe for entry in manifest.files)
    width = min(console.width, _NAMES_ONCE)
    console.print(build_table(manifest, names, width, _COLUMNS))
    lines = []
    for card, beyond in zip(cards, passed, strict=True):
        notes = (f"note: {note}" for note in card.entry.notes)
        lines.append(f"{card.entry.path}: {_verdict(card)}")
        lines += (f"  {text}" for text in (*card.faults, *beyond, *notes, *_cache_lines(card)))
    if len(cards) > 1 and (best := front(cards)):
        said = ", ".join(card.entry.path for card in best)
        lines.append(f"smaller or nearer than all others: {said}")
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


def _cache_lines(card: Card) -> list[str]:
    """A table of the types of keys and values that were measured, the nearest first."""
    if not card.caches:
        return []
    table = [["keys and values", "bits", "KL mean", "KL 99%", "same top"]]
    for kind, found in sorted(card.caches.items(), key=lambda one: one[1].kl_mean):
        mean = f"{found.kl_mean:.2g} ±{found.kl_error:.1g}"
        line = [kind, f"{kv_bits(kind):.4g}", mean, f"{found.kl_p99:.2g}"]
        table.append([*line, f"{found.same_top:.1%}"])
    return [f"behind {card.cache_tokens:,} tokens:", *aligned(table, left=1)]


def _verdict(card: Card) -> str:
    if card.faults:
        return f"{len(card.faults)} fault{'s' * (len(card.faults) > 1)}"
    tokens, templates = card.entry.token_parity, card.templates
    parts = [f"the same tokens on {tokens.lines:,} lines"] if tokens else []
    parts += [f"the same chat template on {templates.lines} conversations"] if templates else []
    parts += [f"the weights of {card.weights:,} tensors"] if card.weights is not None else []
    return f"no fault found ({', '.join(parts)})"


def as_object(cards: Sequence[Card], passed: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    best = front(cards)
    return {
        "original": dataclasses.asdict(cards[0].original),
        "files": [
            {
                **dataclasses.asdict(card.entry),
                "fingerprint": card.fingerprint,
                "card": str(card_path(card.fingerprint)),
                "templates": dataclasses.asdict(card.templates) if card.templates else None,
                "weights": card.weights,
                "caches": {kind: dataclasses.asdict(one) for kind, one in card.caches.items()},
                "cache_tokens": card.cache_tokens,
                "faults": list(card.faults),
                "beyond": list(beyond),
                "front": card in best,
            }
            for card, beyond in zip(cards, passed, strict=True)
        ],
    }


def write_report(path: Path, cards: Sequence[Card]) -> None:
    """Write the report of the files as a page that needs no other file, or as a picture of size
    against divergence and speed, by the name's end. Raises OSError."""
    with outfile(path) as partial:
        if path.suffix == ".html":
            partial.write_text(render_page(manifest_of(cards)), encoding="utf-8")
        else:
            draw_picture(manifest_of(cards), partial, path.suffix[1:])
