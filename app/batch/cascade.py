"""A job of two models, `ingot batch --first`: the smaller one answers every row, and the larger one
those rows that the smaller is not sure of.

How sure is sure enough is learned on a sample of the rows, which both answer. Each of ten
thresholds, which keep the surest tenth of all rows, two tenths and so on, is tried on the sampled
rows that are as sure: had fewer than the share ``agree`` of such rows the same answer from both
models, so many alike among the tried ones would be less likely than a tenth of 1 - ``confidence``
(the exact binomial test, corrected after Bonferroni for ten of them). The lowest threshold that
passes is taken.

Each model has a job of its own, with its journal: that of the smaller writes OUT.first.jsonl. Its
answers that are kept go to the journal of OUT, from which the larger one's job goes on as after a
crash.
"""

from __future__ import annotations

import json
import math
import time
from array import array
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from app import console
from app.batch.input.source import Row, Source
from app.batch.journal.journal import Journal, Matcher, journal_path, short_key
from app.batch.report.figures import FirstFigures, JobFigures
from app.batch.report.progress import Progress
from app.batch.run import run_batch
from app.batch.runner import check_out, check_settings, run_to_file
from app.batch.schedule.engines import JobPlan
from app.batch.spec import BatchSpec, CascadeOptions, OutputOptions, SampleOptions
from app.exitcodes import ExitCode
from app.openai.answer import Answer
from app.options import ModelOptions, PlanOptions
from runtimes.errors import RequestError
from runtimes.untrusted import JsonObject

Indexes = npt.NDArray[np.uint64]  # of rows
Certainties = npt.NDArray[np.float64]  # by the smaller model, of these rows

_THRESHOLDS = 10
_MOST_SAMPLED = 500
_SAMPLED_OF = 3  # the sample is at most one row of so many
_ADDED = "prompt_tokens cached_tokens completion_tokens elapsed_s load_s retried crashes".split()


def run_cascade(spec: BatchSpec, *, as_json: bool = False, quiet: bool = False) -> ExitCode:
    """Answer every row by one of both models, as ``run_batch`` does by one.

    Raises IngotError; what was answered is in the journals then.
    """
    _check(spec)
    return run_batch(spec, as_json=as_json, quiet=quiet, to_file=partial(_ask_both, quiet=quiet))


def first_path(out: Path) -> Path:
    """The output of the smaller model's job."""
    return out.with_name(f"{out.name}.first.jsonl")


def _check(spec: BatchSpec) -> None:
    """Raises RequestError for what a job of two models cannot do."""
    refused = {
        f"--task {spec.rows.task}": spec.rows.task not in ("generate", "classify"),
        "--n and --best-of": spec.samples.n > 1 or spec.samples.best_of is not None,
        "--logprobs": spec.samples.logprobs or spec.samples.top_logprobs > 0,
        "--adapter": bool(spec.adapters.adapter),
        "--test": spec.test,
        "--dry-run": spec.rows.dry_run,
        "an input from stdin": spec.input == "-",
        "an output to stdout": spec.output == "-",
    }
    for name, given in refused.items():
        if given:
            raise RequestError(f"--first does not go with {name}: leave one of them out")
    if spec.model is None or spec.output is None:
        raise RequestError("name OUT and the model: ingot batch IN OUT --model MODEL --first SMALL")


def with_certainty(answer: Answer) -> Answer:
    """The answer with the probability that its model gave it, in the place of its tokens'; without
    one where there is none of the whole answer."""
    certainty = None
    if answer.error is None and answer.responses is None and answer.choices is None:
        if answer.probabilities:
            certainty = max(answer.probabilities.values())
        elif answer.logprobs:
            certainty = math.exp(sum(entry["logprob"] for entry in answer.logprobs))
    rounded = None if certainty is None else float(f"{min(certainty, 1.0):.6g}")
    return replace(answer, logprobs=None, certainty=rounded)


def _ask_both(
    plan: JobPlan, out: Path, progress: Progress, *, asked: BatchSpec, quiet: bool
) -> JobFigures:
    """The larger model's job, once the smaller one has had the rows: answer a sample, keep what the
    smaller model is sure of, answer the rest."""
    cascade, begun = plan.spec.cascade, time.monotonic()
    given = _FirstAnswers(plan.source, first_path(out), plan.source.stamp())
    first = _ask_first(plan, out, quiet=quiet)
    kept_by = {"model": first.model, "agree": cascade.agree, "confidence": cascade.confidence}
    if first.ended:
        return JobFigures(
            rows=first.rows,
            slots=0,
            memory_bytes=0,
            prefill_tps=0.0,
            decode_tps=0.0,
            ended=first.ended,
        )
    if not quiet:
        console.note(f"then: {plan.settings.model}")
    plan = replace(plan, settings=replace(plan.settings, first=kept_by))
    if (most := plan.spec.running.max_time) is not None:
        left = max(most - (time.monotonic() - begun), 0.001)
        running = replace(plan.spec.running, max_time=left)
        plan = replace(plan, spec=replace(plan.spec, running=running))
    able, sure = given.certainties()
    chosen = sample(able, fewest_for(cascade.agree, cascade.confidence))
    learning = run_to_file(plan, out, progress, asked=asked, only=chosen)
    if learning.ended:
        return learning
    plan = replace(plan, spec=replace(plan.spec, fresh=False, force=False))
    with Journal(journal_path(out)) as journal, progress.doing("comparing answers"):
        pairs = list(_sampled(given, journal, chosen))
        figures = replace(learn(sure, pairs, cascade), model=first.model)
        if figures.threshold is not None:
            kept = _keep(given, journal, chosen, figures)
            figures = replace(figures, kept=kept)
    rest = run_to_file(plan, out, progress, asked=asked, goes_on=True)
    return _both(first, learning, rest, figures)


def _ask_first(plan: JobPlan, out: Path, *, quiet: bool) -> JobFigures:
    """Do the smaller model's job, unless the larger one's would be refused."""
    spec = plan.spec
    check_out(out, plan.source, replace=spec.fresh)
    if not (spec.fresh or spec.force):
        with Journal(journal_path(out)) as journal:  # all but which model is the smaller one
            before = (journal.settings or {}).get("first")
            bound = {"agree": spec.cascade.agree, "confidence": spec.cascade.confidence}
            same = {**before, **bound} if isinstance(before, dict) else None
            check_settings(out, journal, replace(plan.settings, first=same))
    small = replace(
        spec,
        model=spec.cascade.first,
        output=str(first_path(out)),
        cascade=CascadeOptions(),
        samples=SampleOptions(logprobs=spec.rows.task == "generate"),
        out=OutputOptions(format="jsonl", input_fields=False, shard=spec.out.shard),
        options=ModelOptions(context=spec.options.context, threads=spec.options.threads),
        engine=PlanOptions(profile=spec.engine.profile),
    )
    found: list[JobFigures] = []

    def ask(part: JobPlan, path: Path, progress: Progress, *, asked: BatchSpec) -> JobFigures:
        found.append(run_to_file(part, path, progress, asked=asked, change=with_certainty))
        return found[-1]

    if not quiet:
        console.note(f"first: {spec.cascade.first}")
    run_batch(small, quiet=quiet, to_file=ask)
    return found[-1]


def _both(
    first: JobFigures, learning: JobFigures, rest: JobFigures, figures: FirstFigures
) -> JobFigures:
    """Figures of both parts of the larger model's job; rates are those of the second, unless it had
    no row."""
    whole = rest if rest.slots else learning
    added = {name: getattr(learning, name) + getattr(rest, name) for name in _ADDED}
    own = learning.answered_here + rest.answered_here
    if figures.kept and own and first.answered_here and not rest.ended:
        spent = first.load_s + first.elapsed_s + min(learning.load_s, rest.load_s)
        saved = figures.kept * added["elapsed_s"] / own - spent
        figures = replace(figures, saved_s=round(saved, 1))
    return replace(
        whole,
        **added,
        answered=rest.answered,
        failed=rest.failed,
        cached=learning.cached,
        reused=learning.reused,
        errors=rest.errors,
        ended=rest.ended,
        first=figures,
    )


@dataclass(frozen=True, slots=True)
class _FirstAnswers:
    """The smaller model's output ``path``, with the rows of the input as it was at ``stamp``."""

    source: Source
    path: Path
    stamp: str

    def rows(self) -> Iterator[tuple[Row, Answer]]:
        """The valid rows and their answers. Raises RequestError when the input is another now, so
        that no row gets another one's answer."""
        record: JsonObject = {"index": -1}
        with self.path.open("rb") as file:
            for row in self.source.rows():
                while record["index"] < row.index:
                    line = next(file, None)
                    if line is None or (record["index"] < 0 and self.source.stamp() != self.stamp):
                        raise RequestError(
                            f"{self.source.name} changed while the job ran; run the same command"
                            " again (rows that stayed the same are not computed again)"
                        )
                    record = json.loads(line)
                if row.problem is None:
                    answer, own = Answer.from_json(record), row.task.sampling
                    if own is not None and own.logprobs:  # which are not kept
                        answer = replace(answer, certainty=None)
                    yield row, answer

    def certainties(self) -> tuple[Indexes, Certainties]:
        """Indexes of the rows that the smaller model answered, and how sure it is of each; a row
        that repeats an earlier one counts once. 24 bytes a row, a few times as many meanwhile."""
        indexes, keys, sure = array("Q"), array("Q"), array("d")
        for row, answer in self.rows():
            if answer.certainty is not None:
                indexes.append(row.index)
                keys.append(short_key(row.key))
                sure.append(answer.certainty)
        _, firsts = np.unique(np.array(keys), return_index=True)
        return np.array(indexes)[firsts], np.array(sure)[firsts]


def sample(rows: Indexes, fewest: int) -> Set[int]:
    """Rows that both models answer: nothing but their index decides which, so that a larger input
    with the same beginning has most of them again. None where they would be too few."""
    able = np.sort(rows)
    size = min(_MOST_SAMPLED, len(able) // _SAMPLED_OF)
    if size < fewest:
        return frozenset()
    mixed = able * np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return frozenset(able[np.argsort(mixed, kind="stable")[:size]].tolist())


def _sampled(
    given: _FirstAnswers, journal: Journal, chosen: Set[int]
) -> Iterator[tuple[float, bool]]:
    """Yield of each sampled row that both models have answered how sure the smaller one was, and
    whether the answers are alike."""
    matcher = Matcher(journal.entries)
    for row, small in given.rows():
        offset = matcher.take(row.key)
        if row.index in chosen and offset is not None and small.certainty is not None:
            answer = journal.read(offset, row.key)
            if answer.answered_by is None:
                yield small.certainty, alike(small, answer)


def alike(one: Answer, other: Answer) -> bool:
    """Whether two answers say the same, spaces apart."""
    if one.label is not None or other.label is not None:
        return one.label == other.label
    calls = [[call["function"] for call in answer.tool_calls or ()] for answer in (one, other)]
    texts = [(answer.response or "").split() for answer in (one, other)]
    return texts[0] == texts[1] and calls[0] == calls[1]


def _keep(given: _FirstAnswers, journal: Journal, chosen: Set[int], figures: FirstFigures) -> int:
    """Give the journal of OUT the smaller model's answers that are sure enough, unless it has one
    for the row; return how many of those that it has now are the smaller model's."""
    matcher, kept = Matcher(journal.entries), 0
    assert figures.threshold is not None
    for row, small in given.rows():
        offset = matcher.take(row.key)
        if offset is not None:
            kept += journal.read(offset, row.key).answered_by is not None
        elif small.certainty is None or row.index in chosen:
            continue
        elif small.certainty >= figures.threshold:
            journal.append(row.key, row.index, replace(small, answered_by=figures.model))
            kept += 1
    return kept


# The bound


def fewest_for(agree: float, confidence: float) -> int:
    """How many rows, all alike, pass the test."""
    return math.ceil(math.log((1 - confidence) / _THRESHOLDS) / math.log(agree))


def at_least(count: int, trials: int, share: float) -> float:
    """The probability of ``count`` or more of ``trials``, each with the probability ``share``."""
    logs = math.log(share), math.log1p(-share)
    return math.fsum(
        math.exp(
            math.lgamma(trials + 1)
            - math.lgamma(n + 1)
            - math.lgamma(trials - n + 1)
            + n * logs[0]
            + (trials - n) * logs[1]
        )
        for n in range(count, trials + 1)
    )


def learn(
    sure: Certainties, pairs: Sequence[tuple[float, bool]], cascade: CascadeOptions
) -> FirstFigures:
    """The lowest threshold that passes, and the sampled rows that it was passed with; without one,
    those of the highest."""
    known = np.sort(sure)
    level = (1 - cascade.confidence) / _THRESHOLDS
    agree, confidence = cascade.agree, cascade.confidence
    figures = FirstFigures(agree=agree, confidence=confidence, sampled=len(pairs))
    for tenth in range(len(known) and _THRESHOLDS):
        threshold = float(known[len(known) * tenth // _THRESHOLDS])
        tried = [same for certainty, same in pairs if certainty >= threshold]
        figures = replace(figures, tried=len(tried), alike=sum(tried))
        if at_least(figures.alike, figures.tried, cascade.agree) <= level:
            return replace(figures, threshold=threshold)
    return figures
