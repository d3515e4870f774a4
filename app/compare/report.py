"""The report of a comparison: made when its job is done, kept for those who look at it later, with
the votes that were cast since."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from app.compare.blind import Ballot
from app.compare.page import to_json
from app.compare.prompts import PromptsJob
from app.compare.results import Results
from quantize.disk import write_atomically
from quantize.fromjson import from_json
from runtimes.errors import RequestError


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
