"""A comparison in words: lines for screens and the shell, Markdown and JSON for files."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from app.compare.blind import Ballot
from app.compare.page import (
    FILE_HEAD,
    PAIR_HEAD,
    file_cells,
    notes,
    pair_cells,
    to_json,
    votes_line,
)
from app.compare.prompts import PromptsJob
from app.compare.records import Agreement, CompareReport, Parting, Side, SideState
from app.compare.results import Results
from app.figures import duration, rate
from quantize.disk import human, write_atomically
from quantize.fromjson import from_json
from quantize.terminal import Console
from runtimes.errors import RequestError
from runtimes.output import markdown, markdown_lines
from runtimes.untrusted import visible

_SHOWN = 24  # characters of a token
_NAMES = {"mine": "first", "theirs": "other"}  # in JSON


def figures_of(side: Side, *, speed: bool = True) -> list[str]:
    """Such as ["25.1 tok/s", "first token 120 ms", ...], as much as is known; without ``speed`` all
    but the first."""
    found = side.figures
    ended = side.state is SideState.DONE and found.finish_reason not in (None, "stop")
    parts = (
        speed and found.decode_tps is not None and rate(found.decode_tps),
        found.ttft_s is not None and f"first token {duration(found.ttft_s)}",
        found.prefill_tps is not None and f"prefill {rate(found.prefill_tps)}",
        found.peak_bytes is not None and f"{human(found.peak_bytes)} memory",
        found.completion_tokens > 0 and f"{found.completion_tokens:,} tokens",
        ended and f"ended by {found.finish_reason}",
    )
    return [part for part in parts if part]


def agreement_lines(report: CompareReport) -> list[str]:
    """Each later file against the first one; none where answers cannot be compared."""
    if not report.question.greedy:
        return []
    first, *others = report.sides
    pairs = zip(report.agreements, others, strict=True)
    return [agreement_line(found, side, first) for found, side in pairs]


def agreement_line(found: Agreement | None, side: Side, first: Side) -> str:
    """One line: how far ``side`` says what ``first`` says."""
    if found is None:
        return f"{side.label}: nothing to compare"
    start = "" if found.same_prompt else "asked with other tokens (another chat template); "
    if found.parting is None:
        whole = first.whole and side.whole
        end = "equal" if whole else "equal as far as both go"
        return f"{side.label}: {start}{end}, {found.same:,} {found.unit}"
    line = f"{side.label}: {start}equal for {found.same:,} of {found.longest:,} {found.unit}"
    line += f" ({found.same_share:.0%})"
    if found.share is not None:
        line += f", {found.share:.0%} in common"
    return f"{line}; then {parting_text(found.parting)}"


def parting_text(parting: Parting) -> str:
    """Such as "'I' here and 'T' there: a near-tie, their two best were 0.015 apart"."""
    line = f"{_quoted(parting.mine)} became {_quoted(parting.theirs)}"
    gaps = [gap for gap in parting.gaps if gap is not None]
    if not gaps:
        return line
    word = "a near-tie" if parting.near_tie else "no tie"
    apart = " and ".join(f"{gap:.3f}" for gap in gaps)
    return f"{line} ({word}: the two best were {apart} apart)"


def lines(report: CompareReport) -> list[str]:
    """A line of figures for each file, and one for each agreement."""
    wide = max(len(side.label) for side in report.sides)
    shown = []
    for side in report.sides:
        said = side.error or " · ".join(figures_of(side)) or str(side.state)
        stopped = "stopped · " if side.state is SideState.STOPPED else ""
        shown.append(f"{side.label:<{wide}}  {stopped}{said}")
    if agreements := agreement_lines(report):
        shown += [f"Against {report.sides[0].label}:", *(f"  {line}" for line in agreements)]
    return shown


def as_json(report: CompareReport) -> dict[str, Any]:
    """Everything, for programs."""
    params = report.question.params
    sampling = {name: getattr(params, name) for name in ("temperature", "max_tokens", "seed")}
    return {
        "messages": [dict(message) for message in report.question.messages],
        "sampling": sampling,
        "together": report.together,
        "files": [_side_json(side) for side in report.sides],
        "agreements": [None if a is None else _agreement_json(a) for a in report.agreements],
    }


def as_markdown(report: CompareReport) -> str:
    """A page: the question, a table of figures, the agreement, the answers."""
    way = "all at once" if report.together else "one after another"
    parts = ["# Comparison", ""]
    for message in report.question.messages:
        parts += [
            f"**{markdown(str(message['role']))}:**",
            "",
            *_quote(str(message["content"])),
            "",
        ]
    parts += [
        f"Asked {way}, temperature {report.question.params.temperature:g}.",
        "",
        "| file | tok/s | first token | prefill tok/s | peak memory | tokens | ended by |",
        "|---|---|---|---|---|---|---|",
    ]
    parts += [_row(side) for side in report.sides]
    if agreements := agreement_lines(report):
        parts += ["", f"Against {markdown(report.sides[0].label)}:", ""]
        parts += [f"- {markdown(line)}" for line in agreements]
    for side in report.sides:
        parts += ["", f"## {markdown(side.label)}", ""]
        parts += [f"Failed: {markdown(side.error)}"] if side.error else _quote(side.text)
    return "\n".join(parts) + "\n"


def _row(side: Side) -> str:
    found = side.figures
    cells = (
        side.label,
        "" if found.decode_tps is None else f"{found.decode_tps:,.1f}",
        "" if found.ttft_s is None else duration(found.ttft_s),
        "" if found.prefill_tps is None else f"{found.prefill_tps:,.1f}",
        "" if found.peak_bytes is None else human(found.peak_bytes),
        f"{found.completion_tokens:,}",
        found.finish_reason or str(side.state),
    )
    return "| " + " | ".join(map(markdown, cells)) + " |"


def _side_json(side: Side) -> dict[str, Any]:
    figures = asdict(side.figures)
    peak, reason = figures.pop("peak_bytes"), figures.pop("finish_reason")
    return {
        "label": side.label,
        "model": side.contender.model,
        "recipe": side.contender.options.recipe,
        "file": side.file,
        "runtime": side.runtime,
        "state": str(side.state),
        "text": side.text,
        "token_ids": list(side.token_ids),
        **figures,
        "peak_memory_bytes": peak,
        "finish_reason": reason,
        "error": side.error,
    }


def _agreement_json(found: Agreement) -> dict[str, Any]:
    parting, difference = found.parting, None
    if parting is not None:
        difference = asdict(parting) | {"near_tie": parting.near_tie}
        difference = {_NAMES.get(n, n): v for n, v in difference.items() if n != "places"}
    return {
        "unit": found.unit,
        "same_from_start": found.same,
        "longest": found.longest,
        "common": found.common,
        "same_share": round(found.same_share, 6),
        "share": None if found.share is None else round(found.share, 6),
        "same_prompt": found.same_prompt,
        "difference": difference,
    }


def _quote(text: str) -> list[str]:
    """As a block quote: the text stays itself, whatever Markdown is in it."""
    return [f"> {line}" for line in markdown_lines(text)]


def _quoted(text: str | None) -> str:
    if text is None:
        return "the end"
    if not text:
        return "a token without text"
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


_WIDE = 200  # of a pipe, where nothing is wrapped


# Results as tables for a terminal; plain text where stdout is none.


def print_tables(results: Results) -> None:
    """Print all but the texts to stdout. Raises BrokenPipeError when nobody reads it."""
    width = None if sys.stdout.isatty() else _WIDE
    shown = Console(width=width, highlight=False, emoji=False, markup=False)
    for table in figures(results):
        shown.print(table)
        shown.print()
    for votes in results.votes:
        shown.print(votes_line(votes, results))
    for note in notes(results):
        shown.print(note, style="dim")


def figures(results: Results, hues: Sequence[str] = ()) -> list[Table]:
    """Of the files, and of the pairs; names are in the colours of the files, if these are given."""
    files = _table(FILE_HEAD, [file_cells(file) for file in results.files], hues)
    pairs = [pair_cells(pair, results) for pair in results.pairs]
    return [files, _table(PAIR_HEAD, pairs, hues[1:])]


def _table(head: Sequence[str], lines: Sequence[Sequence[str]], hues: Sequence[str] = ()) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    used = [n for n in range(len(head)) if any(line[n] for line in lines)]
    for at in used:
        table.add_column(head[at], justify="right" if at else "left", overflow="fold")
    for number, line in enumerate(lines):
        name = Text(visible(line[0]), hues[number % len(hues)] if hues else "")
        table.add_row(name, *(line[at] for at in used[1:]))
    return table


# The report of a comparison: made when its job is done, kept for those who look at it later, with
# the votes that were cast since.


def report_of(job: PromptsJob) -> Results:
    """Collect the answers, and keep the report. Raises IngotError or OSError."""
    from app.compare.collect import collect  # the readers of all formats: those who look need none

    results = collect(job)
    write_atomically(job.folder / "results.json", to_json(results))
    return with_votes(results, ballot_of(results, job.folder))


def read_report(folder: Path) -> Results:
    """What ``report_of`` kept in a job's folder. Raises RequestError."""
    try:
        data = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        return from_json(Results, data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RequestError(f"no report of this comparison can be read: {error}") from error


def ballot_of(results: Results, folder: Path) -> Ballot:
    """The pairs of a report and the votes on them. Raises OSError."""
    return Ballot(results, folder / "votes.jsonl")


def with_votes(results: Results, ballot: Ballot) -> Results:
    """The report as it is exported."""
    return replace(results, votes=ballot.count())
