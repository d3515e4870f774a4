"""The answers of several files to a file of prompts, read back and compared."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.batch.input.prompting import Prompting
from app.batch.input.source import Row, open_source
from app.compare.prompts import PromptsJob, labels_of
from app.compare.records import PROBE
from app.compare.results import (
    FileResult,
    PairResult,
    PromptResult,
    Results,
    Told,
    Unit,
    equal_from_start,
    medians,
    pair_of,
)
from app.models.entries import ModelEntry, file_quality
from app.models.resolve import model_file
from app.openai.answer import Answer
from app.options import ModelOptions
from runtimes.errors import IngotError
from runtimes.models.registry import tokenizer_of

logger = logging.getLogger(__name__)

_EXPECTED = ("expected", "answer")

Encode = Callable[[str], Sequence[int]]


def collect(job: PromptsJob) -> Results:
    """What a finished job found. Reads the answers and the tokenizers, no weights. Raises
    IngotError or OSError."""
    told = [_answers(job.answers(entry)) for entry in job.entries]
    encoders = [_encoder(entry) for entry in job.entries]
    units = [_unit(encoders[0], encode) for encode in encoders[1:]]
    rows: list[PromptResult] = []
    params = job.sampling.params()
    with open_source(
        str(job.prompts), prompting=Prompting.from_options(job.rows(), params), limit=job.limit
    ) as source:
        for row in source.rows():
            expected = expected_of(row.fields)
            answers = tuple(_told(found.get(row.index), expected) for found in told)
            rows.append(_row(row, answers, expected, units, encoders[0]))
    labels = labels_of(job.entries)
    files = tuple(
        _file(entry, label, [row.answers[number] for row in rows], rows)
        for number, (entry, label) in enumerate(zip(job.entries, labels, strict=True))
    )
    pairs: tuple[PairResult, ...] = tuple(
        pair_of(rows, number, unit) for number, unit in enumerate(units, 1)
    )
    return Results(
        str(job.prompts),
        files,
        pairs,
        tuple(rows),
        temperature=params.temperature,
        max_tokens=params.max_tokens,
        seed=params.seed,
        system=job.system,
    )


def expected_of(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The answers that a row of the input calls right: its ``expected``, else its ``answer``. A
    list has several, and a number is a place in the row's ``choices`` where it has some."""
    name = next((name for name in _EXPECTED if fields.get(name) not in (None, "", [])), None)
    if name is None:
        return ()
    value, choices = fields[name], fields.get("choices")
    index = value if isinstance(value, int) and not isinstance(value, bool) else -1
    if isinstance(choices, list) and 0 <= index < len(choices):
        value = choices[index]
    values = value if isinstance(value, list) else [value]
    texts = [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
    return tuple(text.strip() for text in texts)


def _answers(path: Path) -> dict[int, Answer]:
    found = {}
    with path.open("rb") as file:
        for line in file:
            record = json.loads(line)
            found[int(record["index"])] = Answer.from_json(record)
    return found


def _told(answer: Answer | None, expected: tuple[str, ...]) -> Told:
    if answer is None:
        return Told(error="no answer")
    if answer.error is not None:
        return Told(answer.partial or "", f"{answer.error.code}: {answer.error.message}")
    text = "\n\n".join(answer.texts)
    timings = answer.timings or {}
    return Told(
        text,
        None,
        answer.finish_reason,
        (answer.usage or {}).get("completion_tokens", 0),
        timings.get("decode_tps"),
        timings.get("ttft_s"),
        text.strip() in expected if expected else None,
    )


def _row(
    row: Row,
    answers: tuple[Told, ...],
    expected: tuple[str, ...],
    units: Sequence[Unit],
    encode: Encode | None,
) -> PromptResult:
    task = row.task
    first, *others = answers
    parts: list[int | None] = []
    places: list[int | None] = []
    for unit, other in zip(units, others, strict=True):
        if first.error is not None or other.error is not None or first.text == other.text:
            parts.append(None)
            places.append(None)
            continue
        places.append(equal_from_start(first.text, other.text))
        if unit == "tokens" and encode is not None:
            parts.append(equal_from_start(encode(first.text), encode(other.text)))
        else:
            parts.append(places[-1])
    said = [*(f"{m['role']}: {m['content']}" for m in task.history), *task.turns]
    return PromptResult(
        row.index, str(row.id), "\n".join(said), answers, tuple(parts), tuple(places), expected
    )


def _file(
    entry: ModelEntry, label: str, answers: Sequence[Told], rows: Sequence[PromptResult]
) -> FileResult:
    quality = file_quality(entry)
    good = [one for one in answers if one.error is None]
    speed, wait = medians(good)
    marked = any(row.expected for row in rows)
    return FileResult(
        label=label,
        file=str(entry.path),
        runtime=model_file(str(entry.path), ModelOptions()).runtime,
        bytes=quality.bytes,
        bits_per_weight=quality.bits,
        kl=quality.kl,
        answered=len(good),
        failed=len(answers) - len(good),
        right=sum(one.right is True for one in good) if marked else None,
        completion_tokens=sum(one.tokens for one in good),
        decode_tps=speed,
        ttft_s=wait,
    )


def _encoder(entry: ModelEntry) -> Encode | None:
    """The file's tokenizer, without its weights; None for one that cannot be read."""
    try:
        tokenizer = tokenizer_of(model_file(str(entry.path), ModelOptions()))
    except IngotError as error:
        logger.info("no tokens of %s: %s", entry.label, error)
        return None
    return lambda text: tokenizer.encode(text, add_special=False, parse_special=False)


def _unit(first: Encode | None, other: Encode | None) -> Unit:
    """Tokens where both files cut a text of several scripts alike."""
    alike = first is not None and other is not None and list(first(PROBE)) == list(other(PROBE))
    return "tokens" if alike else "characters"
