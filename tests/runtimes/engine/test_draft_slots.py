"""A draft's slots over random histories, and when its guesses are bought.

Its runner's keys and values are the tokens themselves, as in ``histories``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from runtimes.engine.draft import Draft
from runtimes.engine.propose import Proposer
from runtimes.engine.sequence import Sequence
from runtimes.request import Request, SamplingParams
from runtimes.runner import Capabilities, StepRows
from runtimes.settings import SchedulerSettings
from tests.runtimes.engine.histories import (
    History,
    Shape,
    TokenSlots,
    expected_output,
    held_by,
    make_sequence,
    next_token,
    tokens_of,
)
from tests.runtimes.engine.test_scheduler import events, shapes

VOCABULARY = 200


class TokenRunner:
    """What follows by ``next_token``; something else where ``wrong`` divides the length."""

    def __init__(self, slots: int, *, mixed: bool, wrong: int = 0, context: int = 1000) -> None:
        self.kv = TokenSlots(slots, can_trim=True)
        self.wrong, self.steps = wrong, 0
        self.capabilities = Capabilities(
            "tokens", slots, context, batch=20, vocab_size=VOCABULARY, mixed_batch=mixed
        )

    def execute(self, plan: StepRows) -> np.ndarray:
        slots = [row.slot for row in plan]
        assert slots == sorted(set(slots))
        assert sum(len(row.tokens) for row in plan) <= self.capabilities.batch
        alone = len(plan) == 1 or all(len(row.tokens) == 1 for row in plan)
        assert alone or self.capabilities.mixed_batch
        self.steps += 1
        found = []
        for row in plan:
            held = self.kv.held[row.slot]
            assert row.position == len(held), "no gap"
            held += row.tokens
            assert len(held) <= self.capabilities.context
            if row.logits:
                off = self.wrong and len(held) % self.wrong == 0
                found.append(np.eye(1, VOCABULARY, next_token(held) + bool(off))[0])
        return np.array(found, np.float32).reshape(len(found), VOCABULARY)

    def close(self) -> None:
        pass


class Drafting(Proposer):
    """Buys guesses of every other row or so; checks the slots before and after each step."""

    def __init__(self, draft: Draft, slots: TokenSlots) -> None:
        super().__init__(draft)
        self._held_in = slots.held
        self.right = self.rows = 0

    def propose(self, decoding, most):
        wanted = {}
        for one in decoding:
            left = one.request.params.max_tokens - len(one.output) - 1
            count = min(1 + len(one.output) % 4, left, most, self.draft.room(one))
            if count > 0 and next_token(one.prompt + one.output) % 2:
                wanted[one], most = count, most - count
        found = self._ask_draft(wanted)
        assert all(len(tokens) == wanted[one] for one, tokens in found.items())
        self.rows = max(self.rows, len(found))
        for one in found:
            whole = one.tokens(0, one.length) + found[one][:-1]
            assert held_by(self.draft)[one] == whole
        self.check()
        return found

    def learn(self, rows, more, seconds, accepted):
        self.draft.settle(one for one, _ in accepted)
        self.right += sum(right for _, right in accepted)
        for one, _ in accepted:
            held = held_by(self.draft)[one]
            assert held == one.tokens(0, len(held)), "no wrong guess is left"
        self.check()

    def check(self) -> None:
        """What it believes of the slots is so."""
        for one, held in held_by(self.draft).items():
            assert held == self._held_in[self.draft._of[one]]


def with_draft(shape: Shape, wrong: int) -> tuple[History, Drafting]:
    history = History(shape)
    runner = TokenRunner(shape.slots, mixed=shape.mixed, wrong=wrong)
    drafting = Drafting(Draft("tokens", runner, VOCABULARY), runner.kv)
    if history.scheduler.proposer is not None:
        history.scheduler.proposer = drafting
    return history, drafting


@settings(max_examples=120, deadline=None)
@given(events, shapes)
def test_slots_follow_their_rows_whatever_happens(events, shape):
    """Accepted and wrong guesses, cancellations, preemption, failed steps, moved rows."""
    speculates = replace(shape.settings, speculation=True)
    history, drafting = with_draft(replace(shape, settings=speculates), wrong=3)
    for kind, value in events:
        if kind == "add":
            history.add(*value)
        elif kind == "cancel":
            history.cancel(value)
        else:
            history.step(fails=value)
    history.run_out()
    assert not history.live
    for row in history.finished:
        assert row.output == expected_output(row.request, row.index)
    assert not held_by(drafting.draft), "every slot is free at the end"


@pytest.mark.parametrize(("slots", "mixed"), [(1, False), (4, True)])
def test_histories_do_draft(slots, mixed):
    """The property above would hold for a draft that nobody asks."""
    settings = SchedulerSettings(speculation=True)
    history, drafting = with_draft(Shape(slots, 64, mixed, settings=settings), wrong=7)
    rows = [history.add([100 + i, 3, 4, *range(30)], 40) for i in range(slots)]
    history.run_out()
    assert drafting.right > 10 * slots
    assert drafting.rows > slots // 2
    for row in rows:
        assert row.guessed["drafted_tokens"] == row.guessed["proposed_tokens"] > 0
        assert row.guessed["accepted_drafts"] < row.guessed["drafted_tokens"]


def test_preempted_rows_give_their_slots_up():
    runner = TokenRunner(1, mixed=False)
    draft = Draft("tokens", runner, VOCABULARY)
    first, second = (make_sequence(Request([n, 2, 3], SamplingParams())) for n in (1, 9))
    first.slot = second.slot = 0
    assert draft.guess({first: 2})[first][0] == next_token([1, 2, 3])
    first.slot = -1
    assert draft.guess({second: 2})[second][0] == next_token([9, 2, 3])
    assert list(held_by(draft)) == [second]
    assert tokens_of(runner.kv.held[0])[:3] == [9, 2, 3]


def test_a_long_row_is_caught_up_by_a_pass_at_a_time():
    runner = TokenRunner(2, mixed=True)
    draft = Draft("tokens", runner, VOCABULARY)
    long = make_sequence(Request(list(range(50)), SamplingParams()))
    short = make_sequence(Request([1, 2], SamplingParams()))
    assert draft.guess({long: 1, short: 2}).keys() == {short}
    assert runner.steps == 3
    assert draft.guess({long: 1}) == {}
    assert len(held_by(draft)[long]) == 40
    assert draft.guess({long: 1}) == {long: [next_token(long.prompt)]}


def test_what_a_row_leaves_serves_the_next():
    runner = TokenRunner(1, mixed=False)
    draft = Draft("tokens", runner, VOCABULARY)
    first, second = (make_sequence(Request([*range(40), n], SamplingParams())) for n in (50, 60))
    while not draft.guess({first: 1}):
        pass  # it is caught up
    draft.forget(first)
    before = runner.steps
    assert draft.guess({second: 1}) == {second: [next_token(second.prompt)]}
    assert runner.steps == before + 1


class Priced(Draft):
    """A draft whose steps take what the test says, in steps of the model."""

    def __init__(self, runner: TokenRunner, cost: float) -> None:
        super().__init__("priced", runner, VOCABULARY)
        self.price, self._step_s = cost, {1: cost}

    def guess(self, wanted):
        found = super().guess(wanted)
        self.seconds = self.price * max(map(len, found.values()), default=0)
        self.caught_up_s = 0.0
        self._step_s, self._token_s = {1: self.price}, 0.0
        return found


def play(draft: Draft, sequence: Sequence, steps: int, token: float = 0.05) -> tuple[float, int]:
    """Seconds that the row's tokens take by steps of one second, each further token ``token`` of
    it, and how many tokens the draft has guessed."""
    proposer, whole, drafted = Proposer(draft), 0.0, 0
    while len(sequence.output) < steps:
        proposer.begin()
        guesses = proposer.propose([sequence], 100).get(sequence, [])
        tokens = [next_token(sequence.prompt + sequence.output)]
        for guess in guesses:
            if guess != tokens[-1]:
                break
            tokens.append(next_token(sequence.prompt + sequence.output + tokens))
        right = len(tokens) - 1
        sequence.output += tokens
        seconds = 1 + token * len(guesses)
        accepted = [(sequence, right)] if guesses else []
        proposer.learn(1, len(guesses), seconds, accepted)
        whole += seconds + proposer.drafting_s
        drafted += len(guesses) if sequence in proposer.drafted else 0
    return whole, drafted


def row() -> Sequence:
    return make_sequence(Request([1, 2, 3], SamplingParams(max_tokens=5000)))


def test_a_draft_is_bought_where_it_pays_and_costs_nothing_where_it_does_not():
    steps = 1000
    long = {"context": 6000}
    cheap, drafted = play(Priced(TokenRunner(1, mixed=False, **long), 0.1), row(), steps)
    assert cheap < 0.4 * steps
    assert drafted > 0.5 * steps
    # All right, and as dear as the model's own steps.
    dear, drafted = play(Priced(TokenRunner(1, mixed=False, **long), 1.0), row(), steps)
    assert drafted == 0
    assert dear <= 1.02 * steps
    # Every other one wrong, for half a step each; all wrong, for a tenth.
    for wrong, cost in ((2, 0.5), (1, 0.1), (1, 0.5)):
        draft = Priced(TokenRunner(1, mixed=False, wrong=wrong, **long), cost)
        lost, drafted = play(draft, row(), steps)
        assert lost <= 1.02 * steps, (wrong, cost)
        assert drafted > 0, "it has been tried"
