"""Results in words: cells of tables, Markdown; and written to a file, Markdown or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from app.compare.results import FileResult, PairResult, PromptResult, Results, Votes, as_object
from app.figures import duration
from app.here import same_file
from quantize.disk import check_outfile, human, outfile
from runtimes.errors import RequestError
from runtimes.output import json_text, markdown, markdown_lines

SUFFIXES = (".md", ".json")
FILE_HEAD = ("file", "size", "bits", "KL", "tok/s", "first token", "answered", "right")
PAIR_HEAD = ("against the first", "same", "same part", "parts at", "flips", "speed")


def file_cells(file: FileResult) -> tuple[str, ...]:
    """A line below FILE_HEAD; empty where nothing is known."""
    failed = f" ({file.failed:,} failed)" if file.failed else ""
    return (
        file.label,
        "" if file.bytes is None else human(file.bytes),
        "" if file.bits_per_weight is None else f"{file.bits_per_weight:.2f}",
        "" if file.kl is None else f"{file.kl:.4f}",
        "" if file.decode_tps is None else f"{file.decode_tps:,.1f}",
        "" if file.ttft_s is None else duration(file.ttft_s),
        f"{file.answered:,}{failed}",
        "" if file.right is None else f"{file.right:,}",
    )


def pair_cells(pair: PairResult, results: Results) -> tuple[str, ...]:
    """A line below PAIR_HEAD."""
    share = "" if pair.identical_share is None else f" ({pair.identical_share:.0%})"
    mean, middle = pair.first_difference_mean, pair.first_difference_median
    parts = "nowhere" if mean is None or middle is None else f"{mean:,.1f}, {middle:,.0f}"
    flips = pair.flips
    ratio = speed_ratio(results, pair.file)
    return (
        results.files[pair.file].label,
        f"{pair.identical:,} of {pair.rows:,}{share}",
        "" if pair.same_share is None else f"{pair.same_share:.0%}",
        parts if parts == "nowhere" else f"{parts} {pair.unit}",
        "" if flips is None else f"{flips.to_wrong}↓ {flips.to_right}↑",
        "" if ratio is None else f"{ratio:.2f}x",
    )


def speed_ratio(results: Results, number: int) -> float | None:
    """Decode speed of a later file against the first one's."""
    mine, theirs = results.files[0].decode_tps, results.files[number].decode_tps
    return theirs / mine if mine and theirs else None


def notes(results: Results) -> list[str]:
    """What one must know to read the figures."""
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
    """Such as "q4 against q8: preferred 3 of 10 times (95%: 11% to 60%), 2 tied, 1 skipped"."""
    decided = votes.wins + votes.losses
    names = f"{results.files[votes.file].label} against {results.files[0].label}"
    return (
        f"{names}: preferred {votes.wins:,} of {decided:,} times (95%: {votes.low:.0%} to"
        f" {votes.high:.0%}), {votes.ties:,} tied, {votes.skipped:,} skipped"
    )


def as_markdown(results: Results) -> str:
    """A page: figures, pairs, votes, and the texts side by side."""
    asked = f"temperature {results.temperature:g}, at most {results.max_tokens:,} tokens each"
    files, pairs = results.files, results.pairs
    parts = [f"# Comparison of {len(files)} files", ""]
    parts += [f"{len(results.rows):,} prompts of {markdown(results.prompts)}; {asked}.", ""]
    parts += _table(FILE_HEAD, [file_cells(file) for file in files])
    parts += ["", *_table(PAIR_HEAD, [pair_cells(pair, results) for pair in pairs])]
    parts += ["", *(f"- {note}" for note in notes(results))]
    if results.votes:
        parts += ["", "## Blind preference", ""]
        parts += [f"- {markdown(votes_line(votes, results))}" for votes in results.votes]
    parts += ["", "## Answers"]
    for row in results.rows:
        parts += [
            "",
            f"### {row.index}: {markdown(row.id)}",
            "",
            *(f"> {line}" for line in markdown_lines(row.prompt)),
            "",
        ]
        if row.expected:
            parts += [f"Expected: {' or '.join(map(markdown, row.expected))}", ""]
        answers = [_cell(row, n) for n in range(len(files))]
        parts += _lines([[markdown(file.label) for file in files], answers])
    return "\n".join(parts) + "\n"


def check_output(path: Path, prompts: Path | None = None) -> None:
    """Raises RequestError where the report could not be written, or would replace the ``prompts``,
    before any work is done."""
    if path.suffix.lower() not in SUFFIXES:
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
    as_json = path.suffix.lower() == ".json"
    text = to_json(results) if as_json else as_markdown(results)
    with outfile(path) as partial:
        partial.write_text(text, encoding="utf-8")


def to_json(results: Results) -> str:
    """The JSON form."""
    return json_text(as_object(results), 1) + "\n"


def _cell(row: PromptResult, number: int) -> str:
    """An answer; where it parts from the first is marked as on the screen."""
    told = row.answers[number]
    if told.error is not None:
        return f"Failed: {markdown(told.error)}"
    at = row.places[number - 1] if number else None
    text = told.text if at is None else f"{told.text[:at]}▶{told.text[at:]}"
    mark = "" if told.right is None else " ✓" if told.right else " ✗"
    return "<br>".join(markdown_lines(text)) + mark


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    return _lines([[markdown(cell) for cell in line] for line in (head, *lines)])


def _lines(cells: Sequence[Sequence[str]]) -> list[str]:
    """A table of ready cells."""
    first, *rest = [f"| {' | '.join(line)} |" for line in cells]
    return [first, "|" + "---|" * len(cells[0]), *rest]


def place_of(text: str, at: int) -> str | None:
    """What stands in a text where it parts from another one: the rest of a word, at least one
    character; None for the end."""
    if at >= len(text):
        return None
    rest = text[at + 1 :]
    ends = [end for sign in " \n\t" if (end := rest.find(sign)) >= 0]
    return text[at : at + 1 + min(ends, default=len(rest))]
