"""Guesses: where they come from, when they are made, and that they change no answer."""

from __future__ import annotations

import itertools
import json
import random
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from quantize.resolve import resolve
from runtimes.engine.engine import Engine
from runtimes.engine.propose import History, Proposer
from runtimes.engine.sequence import Sequence
from runtimes.request import Completion, Constraint, FinishReason, Request, SamplingParams
from runtimes.runner import StepRow
from runtimes.settings import RunnerSettings, SchedulerSettings
from tests.runtimes.engine.histories import make_sequence
from tests.runtimes.engine.test_engine import chat
from tests.runtimes.engine.test_kv import REGROUPED
from tests.runtimes.ties import near_tie, near_ties


def row(prompt: list[int], output: list[int], most: int = 100) -> Sequence:
    sequence = make_sequence(Request(prompt, SamplingParams(max_tokens=most)))
    sequence.output = output
    return sequence


def test_what_followed_before_is_guessed():
    history = History()
    sequence = row([1, 2, 3, 4, 5, 6, 7, 9], [2, 3, 4])
    guess = history.guess(sequence, 2)
    assert guess is not None
    assert (guess.tokens, guess.match) == ([5, 6], 3)
    sequence.output += [5, 6]
    longer = history.guess(sequence, 16)
    assert longer is not None
    assert longer.match == 5
    assert longer.tokens[:5] == [7, 9, 2, 3, 4]
    sequence.output += [8]
    assert history.guess(sequence, 4) is None
    assert history.guess(row([1, 2], []), 4) is None


def test_what_repeats_itself_goes_on():
    guess = History().guess(row([5, 1, 2, 1, 2, 1, 2], []), 5)
    assert guess is not None
    assert guess.tokens == [1, 2, 1, 2, 1]


def play(proposer: Proposer, cost: float, right: bool, steps: int) -> int:
    """How many of so many steps had guesses; one of their tokens takes ``cost`` of a plain step."""
    sequence, made = row([7, 8, 9] * 20, [7, 8, 9], 1000), 0
    for _ in range(steps):
        guesses = proposer.propose([sequence], 100).get(sequence, [])
        made += bool(guesses)
        accepted = len(guesses) if right else 0
        seconds = 1 + cost * len(guesses)
        proposer.learn(1, len(guesses), seconds, [(sequence, accepted)] if guesses else [])
    return made


def test_guesses_stop_and_come_back():
    proposer = Proposer()
    assert play(proposer, 0.2, right=True, steps=200) > 150
    assert play(proposer, 0.2, right=False, steps=400) < 40
    assert play(proposer, 0.2, right=True, steps=400) > 100


def gain(rows: int, cost: float, chance: float, seed: int) -> float:
    """How many times as many tokens a second as without, where a step's time varies by a quarter,
    and each guess is right with ``chance``."""
    dice, proposer = random.Random(seed), Proposer()
    many = [row([7 + i, 8, 9] * 20, [7 + i, 8, 9], 100_000) for i in range(rows)]
    tokens, seconds = 0, 0.0
    for _ in range(600):
        guesses, accepted = proposer.propose(many, 300), []
        for one, guessed in guesses.items():
            right = itertools.takewhile(lambda _: dice.random() < chance, guessed)
            accepted.append((one, len(list(right))))
        more = sum(map(len, guesses.values()))
        took = 1 + cost * more
        proposer.learn(rows, more, took * dice.lognormvariate(0, 0.25), accepted)
        tokens += rows + sum(right for _, right in accepted)
        seconds += took
    return tokens / rows / seconds


@pytest.mark.parametrize(
    ("rows", "cost", "chance", "least"),
    [
        (16, 1 / 17, 0.9, 0.98),
        (4, 1 / 5, 0.6, 0.98),
        (1, 0.6, 0.5, 0.98),
        (1, 0.35, 0.9, 1.6),
        (16, 1 / 30, 0.9, 1.15),
    ],
)
def test_times_that_vary_make_it_lose_nothing_and_miss_little(rows, cost, chance, least):
    assert statistics.mean(gain(rows, cost, chance, seed) for seed in range(2)) > least


def test_a_further_token_is_taken_for_no_cheaper_than_a_row():
    made = {}
    for known in (False, True):
        proposer, dice = Proposer(), random.Random(1)
        many = [row([7 + i, 8, 9] * 20, [7 + i, 8, 9], 1000) for i in range(16)]
        for rows, seconds in ((8, 1.0), (16, 2.0)) if known else ((16, 2.0),):
            for _ in range(20):
                proposer.learn(rows, 0, seconds, [])
        made[known] = 0
        for _ in range(200):
            guesses = proposer.propose(many, 300)
            made[known] += bool(guesses)
            accepted = [(one, int(dice.random() < 0.5)) for one in guesses]
            # Every step with guesses falls into a fast moment of the machine.
            proposer.learn(16, sum(map(len, guesses.values())), 2.0, accepted)
    assert made[False] > 150
    assert made[True] < 30


class Eager(Proposer):
    """Guesses at every step, whatever it costs: what is known of the answers, and some wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[tuple[int, ...]] = []

    def propose(self, decoding, most):
        found: dict[Sequence, list[int]] = {}
        for one in decoding:
            begin, left = len(one.output), one.request.params.max_tokens - len(one.output) - 1
            guess = list(self.answers[one.index][begin : begin + min(6, most, left)])
            if guess:
                guess[-1] += begin % 3 == 0
                found[one], most = guess, most - len(guess)
        return found

    def learn(self, rows, more, seconds, accepted):
        pass


REPEAT = "Repeat after me: the fox and the sea, the fox and the sea, the fox and the sea."
NAME = {"enum": ["something long and forced", "another one"]}
AGE = {"type": "integer", "minimum": 0, "maximum": 120}
SCHEMA = {
    "type": "object",
    "properties": {"favourite_animals_name": NAME, "age_in_whole_years": AGE},
    "required": ["favourite_animals_name", "age_in_whole_years"],
    "additionalProperties": False,
}


@pytest.fixture(
    scope="module",
    params=[("q8_0", False, 1), ("q4_k_m", True, 4), ("onnx-int4", False, 1)],
    ids=["split", "unified", "onnx"],
)
def engines(request, pebble_built: Path) -> Iterator[list[Engine]]:
    """Without speculation, and with guesses at every step."""
    recipe, unified, slots = request.param
    path = resolve(pebble_built, recipe=recipe)
    settings = RunnerSettings(slots=slots, context=256, unified_kv=unified)
    with (
        Engine.load(path, settings) as plain,
        Engine.load(path, settings, SchedulerSettings(speculation=True)) as eager,
    ):
        scheduler = eager._core.scheduler
        assert scheduler.proposer is not None
        assert plain._core.scheduler.proposer is None
        scheduler.proposer = Eager()
        yield [plain, eager]


VARIANTS = {
    "greedy": {},
    "seeded": {"temperature": 0.8, "seed": 5, "top_k": 20},
    "penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.2},
    "stop": {"stop": ("sea, the",)},
    "samples": {"temperature": 0.7, "seed": 9, "n": 2},
    "long": {"ignore_eos": True, "max_tokens": 150},
}


def ask_both(engines: list[Engine], text: str, params: SamplingParams) -> list[Completion]:
    """The answer without speculation, then with guesses by it."""
    plain, eager = engines
    done = plain.submit(Request(chat(plain, text), params)).result(120)
    eager._core.scheduler.proposer.answers = [one.token_ids for one in done.choices]
    return [done, eager.submit(Request(chat(eager, text), params)).result(120)]


@pytest.mark.parametrize("name", VARIANTS)
def test_answers_are_the_same(engines, name):
    wanted = {"max_tokens": 48, "top_logprobs": 2, **VARIANTS[name]}
    params = SamplingParams(**wanted)
    plain, eager = ask_both(engines, REPEAT, params)
    for one, other in zip(plain.choices, eager.choices, strict=True):
        if one.token_ids != other.token_ids:
            # Rounding differs by how many tokens go in together.
            if "temperature" not in wanted:
                near_ties([one], [other], near_tie(plain.model, unified=True))
        else:
            assert one.text == other.text
            assert one.finish_reason is other.finish_reason
            assert one.logprobs == pytest.approx(other.logprobs, abs=0.05)
    if name in ("greedy", "long"):
        times = eager.timings
        assert 0 < times.accepted_tokens <= times.proposed_tokens


def test_a_constraint_forces_tokens_and_changes_none(engines):
    params = SamplingParams(
        max_tokens=100, constraint=Constraint("json_schema", json.dumps(SCHEMA))
    )
    done, steps = [], []
    for engine in engines:
        before = engine.stats()
        if done:
            engine._core.scheduler.proposer.answers = [done[0].token_ids]
        done.append(engine.submit(Request(chat(engine, "Make a record."), params)).result(120))
        after = engine.stats()
        steps.append(after.steps - before.steps)
        forced = done[-1].timings.forced_tokens
        assert after.forced_tokens - before.forced_tokens == forced
        assert after.completion_tokens - before.completion_tokens == len(done[-1].token_ids)
    plain, eager = done
    assert plain.token_ids == eager.token_ids
    assert plain.finish_reason is FinishReason.STOP
    assert json.loads(plain.text)
    assert plain.timings.forced_tokens == 0
    assert eager.timings.forced_tokens > 5
    assert steps[1] <= steps[0] - eager.timings.forced_tokens


def test_a_full_context_and_few_tokens_end_alike(engines):
    for most in (1, 2, 3, 300):
        params = SamplingParams(max_tokens=most, ignore_eos=True)
        plain, eager = ask_both(engines, REPEAT, params)
        assert len(plain.token_ids) == len(eager.token_ids)
        assert plain.finish_reason is eager.finish_reason


def test_a_step_with_guesses_gives_the_logits_of_single_steps(engines):
    """So tokens that are sampled from them keep their distribution."""
    prompt, runner = chat(engines[1], REPEAT), engines[1]._core._runner
    guesses = prompt[4:8]
    runner.kv.trim(0, 0)
    runner.execute((StepRow(0, 0, prompt, 1),))
    together = runner.execute((StepRow(0, len(prompt), guesses, len(guesses)),)).copy()
    runner.kv.trim(0, len(prompt))
    for at, token in enumerate(guesses):
        single = runner.execute((StepRow(0, len(prompt) + at, (token,), 1),))
        assert np.abs(single[0] - together[at]).max() <= REGROUPED
    runner.kv.trim(0, 0)
