"""Figures as people read them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.figures import duration, figures_line, timings_json
from runtimes.request import Completion, FinishReason, Timings, Usage


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0354, "35 ms"),
        (4.21, "4.2 s"),
        (99.4, "99.4 s"),
        (99.6, "1 min 40 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 05 min"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def completion(tokens: int) -> Completion:
    timings = Timings(0.0, 0.5, 0.5, 2.0, 2.5, prompt_tokens=10, completion_tokens=tokens)
    return Completion("r", "x", (), FinishReason.STOP, Usage(10, tokens), timings)


def test_tokens_that_were_not_sampled_one_a_step_are_told_where_there_are_any() -> None:
    plain = completion(5)
    assert not {"forced_tokens", "proposed_tokens"} & timings_json(plain.timings).keys()
    timings = replace(plain.timings, forced_tokens=2, proposed_tokens=7, accepted_tokens=0)
    assert timings_json(timings).items() >= {("forced_tokens", 2), ("accepted_tokens", 0)}
    line = figures_line(replace(plain, timings=timings))
    assert "2 forced · 0 of 7 guesses right" in line
    timings = replace(timings, accepted_tokens=5, drafted_tokens=6, accepted_drafts=4)
    line = figures_line(replace(plain, timings=timings))
    assert "5 of 7 guesses right (the draft's: 4 of 6)" in line
    assert timings_json(timings).items() >= {("drafted_tokens", 6), ("accepted_drafts", 4)}
