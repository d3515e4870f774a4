"""`ingot batch merge OUT PART...`: the outputs of all shards of a job as one, in input order.

The journal beside each part tells which shard of which job it is, so that no part can be missing,
doubled or of another job without being named.
"""

import csv
import heapq
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from app.batch.input.source import Shard
from app.batch.journal.journal import journal_path
from app.batch.journal.lines import read_state, told
from app.batch.output.publish import write_output
from app.batch.output.records import FORMATS, JSONL, OPENAI, OutputFormat, Record, suffix_format
from app.batch.settings import comparable
from app.here import same_file
from runtimes.errors import RequestError

# What reading a part raises whose lines are not as they were written.
_DAMAGE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError),
    csv.Error,
)


@dataclass(frozen=True, slots=True)
class ShardOutput:
    """The output of one shard."""

    path: Path
    shard: Shard
    format: OutputFormat
    job: str  # what all parts of a job have in common


def merge(out: Path, paths: Sequence[Path], *, replace: bool = False) -> dict[str, int]:
    """Write ``out`` from all parts of a job; over an older file only with ``replace``. How many
    rows, failed ones and parts there are.

    Raises RequestError naming the parts that are missing, doubled, unfinished or of another job,
    and OutOfMemoryError for a full disk.
    """
    # `part*.jsonl` names the journals too.
    journals = {journal_path(path) for path in paths}
    parts = [_part(path) for path in paths if path not in journals]
    _check(out, parts)
    if out.exists() and not replace:
        raise RequestError(f"{out} exists; --fresh replaces it")
    rows = failed = 0

    def records() -> Iterator[Record]:
        nonlocal rows, failed
        rows = failed = 0  # tables are written in two passes
        for index, record in heapq.merge(*map(_records, parts), key=itemgetter(0)):
            if index != rows:
                raise RequestError(f"the row of index {rows} is in no part")
            rows += 1
            failed += bool(record.get("error") or record.get("error.code"))
            yield record

    write_output(out, parts[0].format, records, "The parts are untouched")
    return {"rows": rows, "failed": failed, "parts": len(parts)}


def _part(path: Path) -> ShardOutput:
    if not path.is_file():
        raise RequestError(f"{path}: no such file")
    journal = journal_path(path)
    if not journal.is_file():
        raise RequestError(
            f"{path} has no {journal.name} beside it, which tells what part it is: copy both"
        )
    log = read_state(journal)
    run = log.run
    if log.damaged and (run is None or log.end is None or log.settings_lost):
        what = "; ".join(told(journal, log.damaged, "run the command of this part again"))
        raise RequestError(f"nothing tells what part {path} is: {what}")
    if run is None or run.get("shard") is None:
        raise RequestError(f"{path} was not made with --shard")
    if log.end is None or log.end["unfinished"]:
        raise RequestError(f"{path} (part {run['shard']}) is not finished; run its command again")
    shard, format = Shard.parse(run["shard"]), FORMATS.get(str(run.get("format")))
    if format is None:
        raise RequestError(f"{journal} does not say of which format {path} is")
    job = [comparable(log.settings or {}), shard.count, run.get("input_rows"), format.name]
    return ShardOutput(path, shard, format, json.dumps(job, sort_keys=True))


def _check(out: Path, parts: Sequence[ShardOutput]) -> None:
    first, found = parts[0], dict[int, ShardOutput]()
    for part in parts:
        if part.job != first.job:
            raise RequestError(
                f"{part.path} and {first.path} are not of one job: model, sampling, input, number "
                "of parts or format differ"
            )
        if any(same_file(out, one) for one in (part.path, journal_path(part.path))):
            raise RequestError(f"{out} is one of the parts; name another file")
        if (other := found.setdefault(part.shard.number, part)) is not part:
            raise RequestError(f"{part.path} and {other.path} are both part {part.shard}")
    named = suffix_format(out)
    if named is not first.format and not (named is JSONL and first.format is OPENAI):
        raise RequestError(f"the parts are {first.format.name}; give {out} a name that says so")
    count = first.shard.count
    missing = [f"{number}/{count}" for number in range(1, count + 1) if number not in found]
    if missing:
        raise RequestError(f"parts are missing: {', '.join(missing)}")


def _records(part: ShardOutput) -> Iterator[tuple[int, Record]]:
    """Each record with the index of its row, in order. Raises RequestError."""
    try:
        yield from part.format.read(part.path)
    except _DAMAGE as error:
        raise RequestError(
            f"{part.path} is damaged ({error}); remove it and run the command of this part again, "
            "which writes it again from its journal"
        ) from error
