"""Comparisons in words: lines for screens and the shell, tables, Markdown and JSON for files."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from app.compare.answers import Agreement, CompareReport, Parting, Side, SideState
from app.compare.prompts import PromptsJob, collect
from app.compare.results import Ballot, FileResult, PairResult, PromptResult, Results, Votes
from app.figures import duration, rate
from app.here import same_file
from quantize.disk import check_outfile, human, outfile, write_atomically
from quantize.fromjson import from_json
from quantize.terminal import Console
from runtimes.errors import RequestError
from runtimes.output import json_text, markdown, markdown_lines
from runtimes.untrusted import JsonObject, visible

_SHOWN = 24  # characters of a token
_NAMES = {"mine": "first", "theirs": "other"}  # in JSON
_WIDE = 200  # of a pipe, where nothing is wrapped
SIDE_HEAD = ("file", "tok/s", "first token", "prefill tok/s", "peak memory", "tokens", "ended by")
FILE_HEAD = ("file", "size", "bits", "KL", "tok/s", "first token", "answered", "right")
PAIR_HEAD = ("against the first", "same", "same part", "parts at", "flips", "speed")


def figures_of(side: Side, *, speed: bool = True) -> list[str]:
    """List what is known, as in ["25.1 tok/s", "first token 120 ms", ...]; without ``speed`` all
    but the first."""
    ended = side.state is SideState.DONE and side.finish_reason not in (None, "stop")
    where = " within the reasoning" if side.thought and not side.text else ""
    parts = (
        speed and side.decode_tps is not None and rate(side.decode_tps),
        side.ttft_s is not None and f"first token {duration(side.ttft_s)}",
        side.prefill_tps is not None and f"prefill {rate(side.prefill_tps)}",
        side.peak_bytes is not None and f"{human(side.peak_bytes)} memory",
        side.tokens > 0 and f"{side.tokens:,} tokens",
        side.thought_tokens > 0 and f"{side.thought_tokens:,} of thinking",
        ended and f"ended by {side.finish_reason}{where}",
    )
    return [part for part in parts if part]


def agreement_lines(report: CompareReport) -> list[str]:
    """Each later file against the first one; none where answers cannot be compared."""
    first, *others = report.sides
    found = report.agreements if report.question.greedy else ()
    return [agreement_line(*pair, first) for pair in zip(found, others, strict=False)]


def agreement_line(found: Agreement | None, side: Side, first: Side) -> str:
    """One line: how far ``side`` says what ``first`` says."""
    if found is None:
        return f"{side.label}: nothing to compare"
    start = "" if found.same_prompt else "asked with other tokens (another chat template); "
    line = f"{side.label}: {start}equal"
    if found.parting is None:
        far = "" if first.whole and side.whole else " as far as both go"
        return f"{line}{far}, {found.same:,} {found.unit}"
    line += f" for {found.same:,} of {found.longest:,} {found.unit} ({found.same_share:.0%})"
    if found.share is not None:
        line += f", {found.share:.0%} in common"
    line += f"; then {parting_text(found.parting)}"
    places = zip(found.parting.places, (first, side), strict=True)
    if any(at < len(one.thought) for at, one in places):
        line += ", while thinking"
        line += "; the answers are the same" if first.text and first.text == side.text else ""
    return line


def parting_text(parting: Parting) -> str:
    """Tell the first difference, as in "'I' became 'T' (a near-tie: the two best were 0.015
    apart)"."""
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
        if side.unheeded:
            shown.append(f"{'':<{wide}}  --thinking: {side.unheeded}")
    if agreements := agreement_lines(report):
        shown += [f"Against {report.sides[0].label}:", *(f"  {line}" for line in agreements)]
    return shown


def as_json(report: CompareReport) -> JsonObject:
    """Return the comparison for programs."""
    names = "temperature max_tokens seed thinking think_tokens"
    return {
        "messages": [dict(message) for message in report.question.messages],
        "sampling": _values(report.question.params, names),
        "together": report.together,
        "files": [_side_json(side) for side in report.sides],
        "agreements": [None if a is None else _agreement_json(a) for a in report.agreements],
    }


def as_markdown(report: CompareReport) -> str:
    """A page: the question, a table of figures, the agreement, the answers."""
    way = "all at once" if report.together else "one after another"
    parts = ["# Comparison", ""]
    for message in report.question.messages:
        parts += [f"**{markdown(message['role'])}:**", "", *_quote(message["content"]), ""]
    parts += [f"Asked {way}, temperature {report.question.params.temperature:g}.", ""]
    parts += _page_table(SIDE_HEAD, [_side_cells(side) for side in report.sides])
    if agreements := agreement_lines(report):
        parts += ["", f"Against {markdown(report.sides[0].label)}:", ""]
        parts += [f"- {markdown(line)}" for line in agreements]
    for side in report.sides:
        parts += ["", f"## {markdown(side.label)}", ""]
        parts += ["Thinking:", "", *_quote(side.thought), ""] if side.thought else []
        parts += [f"Failed: {markdown(side.error)}"] if side.error else _quote(side.text)
    return "\n".join(parts) + "\n"


def _side_cells(side: Side) -> tuple[str, ...]:
    return (
        side.label,
        _known("{:,.1f}".format, side.decode_tps),
        _known(duration, side.ttft_s),
        _known("{:,.1f}".format, side.prefill_tps),
        _known(human, side.peak_bytes),
        f"{side.tokens:,}",
        side.finish_reason or str(side.state),
    )


def _known(show: Callable[[Any], str], value: Any) -> str:
    """``value`` as ``show`` writes it; empty for None."""
    return "" if value is None else show(value)


def _values(of: object, names: str) -> JsonObject:
    return {name: getattr(of, name) for name in names.split()}


def _side_json(side: Side) -> JsonObject:
    return {
        "label": side.label,
        "model": side.contender.model,
        "recipe": side.contender.options.recipe,
        **_values(side, "file runtime state text"),
        "reasoning": side.thought or None,
        "token_ids": side.token_ids,
        "prompt_tokens": len(side.prompt) or None,
        "completion_tokens": side.tokens,
        "reasoning_tokens": side.thought_tokens,
        **_values(side, "load_s ttft_s prefill_tps decode_tps total_s"),
        "peak_memory_bytes": side.peak_bytes,
        **_values(side, "finish_reason unheeded error"),
    }


def _agreement_json(found: Agreement) -> JsonObject:
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
    """Make a table of the files and one of the pairs; ``hues``: the colours of the names."""
    files = _table(FILE_HEAD, [file_cells(file) for file in results.files], hues)
    pairs = [pair_cells(pair, results) for pair in results.pairs]
    return [files, _table(PAIR_HEAD, pairs, hues[1:])]


def _table(head: Sequence[str], lines: Sequence[Sequence[str]], hues: Sequence[str]) -> Table:
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
    results = collect(job)
    write_atomically(job.folder / "results.json", results_json(results))
    return _with_votes(results, job.folder)


def read_report(folder: Path) -> Results:
    """Read what ``report_of`` kept in a job's folder, and the votes since. Raises RequestError, or
    OSError for votes that cannot be read."""
    try:
        data = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        results = from_json(Results, data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RequestError(f"no report of this comparison can be read: {error}") from error
    return _with_votes(results, folder)


def ballot_of(results: Results, folder: Path) -> Ballot:
    """The pairs of a report and the votes on them. Raises OSError."""
    return Ballot(results, folder / "votes.jsonl")


def _with_votes(results: Results, folder: Path) -> Results:
    return replace(results, votes=ballot_of(results, folder).count())


# A file of prompts


def file_cells(file: FileResult) -> tuple[str, ...]:
    """Return a line below FILE_HEAD; cells of unknown figures are empty."""
    failed = f" ({file.failed:,} failed)" if file.failed else ""
    return (
        file.label,
        _known(human, file.bytes),
        _known("{:.2f}".format, file.bits_per_weight),
        _known("{:.4f}".format, file.kl),
        _known("{:,.1f}".format, file.decode_tps),
        _known(duration, file.ttft_s),
        f"{file.answered:,}{failed}",
        _known("{:,}".format, file.right),
    )


def pair_cells(pair: PairResult, results: Results) -> tuple[str, ...]:
    """Return a line below PAIR_HEAD."""
    share = _known(" ({:.0%})".format, pair.identical_share)
    mean, middle = pair.first_difference_mean, pair.first_difference_median
    first, other = results.files[0], results.files[pair.file]
    mine, theirs = first.decode_tps, other.decode_tps
    return (
        other.label,
        f"{pair.identical:,} of {pair.rows:,}{share}",
        _known("{:.0%}".format, pair.same_share),
        "nowhere" if mean is None else f"{mean:,.1f}, {middle:,.0f} {pair.unit}",
        str(pair.flips or ""),
        f"{theirs / mine:.2f}x" if mine and theirs else "",
    )


def notes(results: Results) -> list[str]:
    """Explain the figures."""
    said = ["tok/s and first token are medians over the answers, several of which run at a time."]
    if any(pair.first_difference_mean is not None for pair in results.pairs):
        said.append("Parts at: mean and median of the first difference, over answers that differ.")
    if any(pair.unit == "characters" for pair in results.pairs):
        said.append(
            "The files of some pairs have other tokenizers: there places count characters of the"
            " texts, not tokens."
        )
    if results.temperature > 0:
        said.append("The answers were sampled: they differ by chance too, not only by the file.")
    if any(pair.flips for pair in results.pairs):
        said.append("Flips: right answers that became wrong (↓), and wrong ones right (↑).")
    if all(file.kl is None for file in results.files):
        said.append("KL is not known: no manifest beside the files has measured it.")
    return said


def votes_line(votes: Votes, results: Results) -> str:
    """Count votes, as in "q4 against q8: preferred 3 of 10 times (95%: 11% to 60%), 2 tied,
    ..."."""
    names = f"{results.files[votes.file].label} against {results.files[0].label}"
    return (
        f"{names}: preferred {votes.wins:,} of {votes.wins + votes.losses:,} times"
        f" (95%: {votes.low:.0%} to"
        f" {votes.high:.0%}), {votes.ties:,} tied, {votes.skipped:,} skipped"
    )


def results_markdown(results: Results) -> str:
    """A page: figures, pairs, votes, and the texts side by side."""
    asked = f"temperature {results.temperature:g}, at most {results.max_tokens:,} tokens each"
    files, pairs = results.files, results.pairs
    parts = [f"# Comparison of {len(files)} files", ""]
    parts += [f"{len(results.rows):,} prompts of {markdown(results.prompts)}; {asked}.", ""]
    parts += _page_table(FILE_HEAD, [file_cells(file) for file in files])
    parts += ["", *_page_table(PAIR_HEAD, [pair_cells(pair, results) for pair in pairs])]
    parts += ["", *(f"- {note}" for note in notes(results))]
    if results.votes:
        parts += ["", "## Blind preference", ""]
        parts += [f"- {markdown(votes_line(votes, results))}" for votes in results.votes]
    parts += ["", "## Answers"]
    for row in results.rows:
        parts += ["", f"### {row.index}: {markdown(row.id)}", "", *_quote(row.prompt), ""]
        if row.expected:
            parts += [f"Expected: {' or '.join(map(markdown, row.expected))}", ""]
        answers = [_cell(row, n) for n in range(len(files))]
        parts += _lines([[markdown(file.label) for file in files], answers])
    return "\n".join(parts) + "\n"


def check_output(path: Path, prompts: Path | None = None) -> None:
    """Raises RequestError where the report could not be written, or would replace the ``prompts``,
    before any work is done."""
    if path.suffix.lower() not in (".md", ".json"):
        raise RequestError(f"--output: {path} must end with .md or .json")
    try:
        check_outfile(path)
    except OSError as error:
        said = error.strerror or error
        raise RequestError(f"--output: {path} cannot be written: {said}") from error
    if prompts is not None and same_file(path, prompts):
        raise RequestError("--output would replace the prompts; name another file")


def write_results(results: Results, path: Path) -> None:
    """Put the report in place in one step, in the form that its suffix says. Raises RequestError,
    or OSError for a full disk."""
    check_output(path)
    form = results_json if path.suffix.lower() == ".json" else results_markdown
    with outfile(path) as partial:
        partial.write_text(form(results), encoding="utf-8")


def results_json(results: Results) -> str:
    """Write the report as JSON: all fields, and the shares that follow from them."""
    found = asdict(results)
    for pair, data in zip(results.pairs, found["pairs"], strict=True):
        data["identical_share"] = pair.identical_share
        if pair.flips is not None:
            data["flips"]["share"] = pair.flips.share
    for row, data in zip(results.rows, found["rows"], strict=True):
        data["same"] = [row.same(number) for number in range(1, len(results.files))]
    return json_text(found, 1) + "\n"


def _cell(row: PromptResult, number: int) -> str:
    """An answer; where it parts from the first is marked as on the screen."""
    told = row.answers[number]
    if told.error is not None:
        return f"Failed: {markdown(told.error)}"
    at = row.places[number - 1] if number else None
    text = told.text if at is None else f"{told.text[:at]}▶{told.text[at:]}"
    mark = "" if told.right is None else " ✓" if told.right else " ✗"
    return "<br>".join(markdown_lines(text)) + mark


def _page_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    return _lines([[markdown(cell) for cell in line] for line in (head, *lines)])


def _lines(cells: Sequence[Sequence[str]]) -> list[str]:
    """A table of ready cells."""
    first, *rest = [f"| {' | '.join(line)} |" for line in cells]
    return [first, "|" + "---|" * len(cells[0]), *rest]


def place_of(text: str, at: int) -> str | None:
    """Return the rest of the word at ``at``, where a text parts from another one: at least one
    character; None for the end."""
    found = re.compile(r".[^ \n\t]*", re.DOTALL).match(text, at)
    return found and found[0]
