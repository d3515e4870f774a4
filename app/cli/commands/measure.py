"""`ingot measure`: files against their original, whoever made them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from app import console
from app.cli.options import AS_TABLE, with_groups
from app.exitcodes import ExitCode
from app.options import MODEL_HELP, SamplingOptions, argument, option, parts
from runtimes.errors import RequestError
from runtimes.settings import KV_HELP, kv_pair

if TYPE_CHECKING:
    from quantize.measure import Ask

_BOUNDS = {"rich_help_panel": "Bounds (exit code 1 where a file is beyond)", "metavar": "NATS"}


@with_groups
def measure(
    files: list[str] = argument(
        f"{MODEL_HELP} Of a folder of several files all are measured.", metavar="FILE"
    ),
    *,
    against: str | None = option(
        None,
        "The original: a Hugging Face folder, ORG/NAME on the hub, or a GGUF file of floats."
        " Required.",
        metavar="ORIGINAL",
    ),
    text: Path | None = option(
        None, "Compare on this text; by default the original's evaluation.txt, or a bundled one."
    ),
    limit: int | None = option(None, "Compare on this many tokens at most.", min=1),
    questions: Path | None = option(
        None, "Graded questions (graded.jsonl); by default the original's.", metavar="FILE"
    ),
    max_kl: float | None = option(None, "The mean KL divergence.", **_BOUNDS),
    max_kl99: float | None = option(None, "Its 99% quantile.", "--max-kl99", **_BOUNDS),
    kv_types: list[str] | None = option(
        None,
        f"Also with these types of llama.cpp's cache, behind --context tokens: {KV_HELP};"
        " repeatable, or separated by commas.",
        metavar="TYPE",
        check=kv_pair,
    ),
    context: int = option(4096, "Tokens that --kv-types are measured behind.", min=64),
    no_speed: bool = option(False, "Do not measure speed and memory."),
    again: bool = option(False, "Measure again what has been measured."),
    prompts: Path | None = option(
        None,
        "Also have the original and each file answer these rows, read as by `ingot compare"
        " --prompts`: which answers are the same, which were right and are wrong.",
        metavar="ROWS",
    ),
    max_tokens: int = option(512, "Tokens of such an answer at most.", min=1),
    output: list[Path] | None = option(
        None,
        "Also write there a page with table and chart (.html), or the chart of size, divergence"
        " and speed alone (.svg, .png); repeatable.",
        metavar="FILE",
    ),
    trust_remote_code: bool = option(
        False, "Run Python code that comes with the original.", "--trust-remote-code"
    ),
    as_json: bool = AS_TABLE,
) -> None:
    """Measure files against the model that they were made from.

    Their tokens, chat template, settings and weights must be the original's;
    how far their answers are from its is measured: KL divergence, graded
    questions, speed, memory. What was found is kept, and shown wherever the
    file is listed. Exits 1 for a file that is not what it should be.
    """
    if against is None:
        raise RequestError("--against ORIGINAL says what the files are held against")
    from app.measured import as_object, print_cards, resolved, write_report
    from quantize.measure import MeasureJob, bounds_passed, measure
    from quantize.options import DEFAULT_LIMIT, SourceOptions
    from quantize.progress import ConsoleReporter, beating
    from quantize.report.picture import check_output

    for path in output or ():
        check_output(path, (".html", ".svg", ".png"))
    job = MeasureJob(
        resolved(files),
        SourceOptions(against, trust_remote_code=trust_remote_code),
        *(text, limit or DEFAULT_LIMIT, questions),
        speed=not no_speed,
        again=again,
        kv_types=tuple(parts(*kv_types or ())),
        context=context,
        ask=None if prompts is None else _asking(prompts, max_tokens),
    )
    reporter = ConsoleReporter()
    with beating(reporter):
        cards = measure(job, reporter)
    passed = [bounds_passed(card, max_kl, max_kl99) for card in cards]
    if as_json:
        console.emit_json(as_object(cards, passed))
    else:
        print_cards(cards, passed)
    for path in output or ():
        write_report(path, cards)
    if any(passed) or any(card.faults for card in cards):
        raise typer.Exit(ExitCode.ROWS_FAILED)


def _asking(prompts: Path, max_tokens: int) -> Ask:
    """Ask two files as `ingot compare` does."""
    import shlex

    from app.batch.run import run_batch
    from app.compare.prompts import PromptsJob, check_prompts, run_prompts
    from app.compare.report import report_of
    from app.models.catalog import entry_of
    from quantize.manifest import OwnRows

    rows, sampling = check_prompts(prompts), SamplingOptions(max_tokens=max_tokens)

    def ask(original: Path, file: Path) -> OwnRows:
        # What runs beside a row decides near-ties: a flip is to be the file's own.
        job = PromptsJob((entry_of(original), entry_of(file)), rows, sampling, reproducible=True)
        codes = run_prompts(job, run_batch, lambda _number: None, fresh=False)
        if codes[-1] == ExitCode.INTERRUPTED:
            raise typer.Exit(ExitCode.INTERRUPTED)
        results = report_of(job)
        (pair,) = results.pairs
        files = shlex.join([str(original), str(file), "--prompts", str(rows)])
        console.note(f"  texts: ingot compare {files} --max-tokens {max_tokens} --reproducible")
        return OwnRows(rows.name, len(results.rows), pair.identical, pair.flips)

    return ask
