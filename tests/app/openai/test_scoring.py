"""What is scored, and what the scores of its tokens say."""

from __future__ import annotations

import math

import pytest

from app.openai.scoring import scored
from runtimes.request import Completion, FinishReason, Timings, Usage
from tests.app.openai.readers import row as ask


def completion(*tokens: tuple[float, float]) -> Completion:
    """Of tokens with their own log-probability and the highest one there, behind two others."""
    logs = (None, None, *(own for own, _ in tokens))
    tops = (None, None, *({7: best} for _, best in tokens))
    count = len(logs)
    return Completion(
        "a",
        "",
        (),
        FinishReason.LENGTH,
        Usage(count, 0),
        Timings(0.0, 0.1, 0.1, 0.0, 0.1, count, 0),
        prompt_logprobs=logs,
        prompt_top_logprobs=tops,
    )


def test_scores_are_sums_over_the_tokens_of_a_continuation():
    task = ask({"prompt": "x", "continuations": [" a", " long one"]}, "score")
    answer = scored(task, [completion((-1.0, -1.0)), completion((-1.0, -0.5), (-0.75, -0.75))])
    assert answer.scores == [
        {"text": " a", "logprob": -1.0, "tokens": 1, "is_greedy": True},
        {"text": " long one", "logprob": -1.75, "tokens": 2, "is_greedy": False},
    ]
    # Eight characters without the space before them: more likely for its length.
    assert (answer.best, answer.best_norm) == (0, 1)
    assert answer.texts == [" a"]
    assert answer.usage is not None
    assert (answer.usage["prompt_tokens"], answer.usage["completion_tokens"]) == (7, 0)


def test_a_label_has_its_share_of_the_probability():
    task = ask({"text": "x", "labels": ["good", "bad"]}, "classify")
    answer = scored(task, [completion((-3.0, 0.0)), completion((-2.0, 0.0))])
    assert answer.label == "bad"
    share = 1 / (1 + math.e)
    assert answer.probabilities == pytest.approx({"good": share, "bad": 1 - share}, abs=1e-6)
    assert (answer.scores, answer.texts) == (None, ["bad"])


@pytest.mark.parametrize(
    ("row", "options", "continuations"),
    [
        ({"text": "x:"}, {}, ["good", "bad"]),
        ({"text": "x:"}, {"raw": True}, [" good", " bad"]),
        ({"text": "x: "}, {"raw": True}, ["good", "bad"]),
        ({"prompt": "x", "choices": [" a", "b"]}, {"raw": True, "labels": ()}, [" a", " b"]),
        ({"text": "x", "labels": '["a", "b"]'}, {"labels": ()}, ["a", "b"]),
        ({"messages": [{"role": "user", "content": "x"}]}, {}, ["good", "bad"]),
    ],
)
def test_what_follows_for_a_label(row, options, continuations):
    task = ask(row, "classify", **{"labels": ("good", "bad"), **options})
    assert [part.then for part in task.parts] == continuations
