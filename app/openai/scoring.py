"""How likely given texts are behind a prompt: rows that ask for it, and their answers.

The terms are those of lm-evaluation-harness: the sum of a continuation's natural log-probabilities,
whether greedy decoding would give it, and the likeliest as it stands (what ``acc`` counts) and by
the log-probability of a character (``acc_norm``).
"""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.openai.answer import Answer, figures_of
from app.openai.task import Task
from app.openai.validation import MISSING, MOST_CONTINUATIONS, Given, InputError, as_unicode, kind
from runtimes.request import Completion


def scoring_task(task: Task, texts: Sequence[str]) -> Task:
    """Return the task that scores each of ``texts`` behind the prompt of ``task``. Raises
    InputError.
    """
    if len(task.turns) > 1:
        raise InputError(
            "wrong_type", "what is scored follows one prompt, not the turns of a conversation"
        )
    return Task(parts=tuple(replace(task, then=text) for text in texts))


def labels_task(task: Task, labels: Sequence[str], *, raw: bool) -> Task:
    """Return the task that scores each of ``labels``. In ``raw`` text, a space is put before a
    label that has none. Raises InputError.
    """
    space = raw and not any(text[-1].isspace() for text in task.turns)
    texts = [f" {label}" if space and not label[0].isspace() else label for label in labels]
    return replace(scoring_task(task, texts), labels=tuple(labels))


def texts_at(value: Any, name: str, least: int) -> tuple[str, ...]:
    """A list of different texts, as JSON in a table. Raises InputError."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = MISSING
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        said = "other JSON" if value is MISSING else kind(value)
        raise InputError("wrong_type", f"{name!r} must be a list of strings, not {said}")
    if not least <= len(value) <= MOST_CONTINUATIONS:
        said = f"{name!r} must have {least} to {MOST_CONTINUATIONS} strings, not {len(value):,}"
        raise InputError("invalid_value", said)
    for number, one in enumerate(value):
        as_unicode(one, f"{name}.{number}")
        if not one.strip():
            raise InputError("invalid_value", f"{name}.{number} is blank")
        if one in value[:number]:
            raise InputError("invalid_value", f"{name}.{number} is there before: {one[:40]!r}")
    return tuple(value)


def scored(task: Task, completions: Sequence[Completion]) -> Answer:
    """The answer to what ``scoring_task`` or ``labels_task`` made."""
    scores = [
        _score(part.then or "", completion)
        for part, completion in zip(task.parts, completions, strict=True)
    ]
    sums = [score["logprob"] for score in scores]
    best = sums.index(max(sums))
    if task.labels:
        likely = dict(zip(task.labels, _softmax(sums), strict=True))
        return Answer(label=task.labels[best], probabilities=likely, **figures_of(completions))
    by_length = [one / len(score["text"].strip()) for one, score in zip(sums, scores, strict=True)]
    return Answer(
        scores=scores,
        best=best,
        best_norm=by_length.index(max(by_length)),
        **figures_of(completions),
    )


def _score(text: str, completion: Completion) -> Given:
    found, tops = completion.prompt_logprobs or (), completion.prompt_top_logprobs or ()
    pairs = [(one, top) for one, top in zip(found, tops, strict=True) if one is not None]
    return {
        "text": text,
        "logprob": round(max(sum(one for one, _ in pairs), -99999.0), 6),
        "tokens": len(pairs),
        "is_greedy": all(top is not None and one >= max(top.values()) for one, top in pairs),
    }


def _softmax(values: Sequence[float]) -> list[float]:
    most = max(values)
    parts = [math.exp(value - most) for value in values]
    return [round(part / sum(parts), 6) for part in parts]
